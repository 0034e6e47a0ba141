"""python -m xlnet_jax.attention: a command of xlnet_jax/__main__.py."""

from xlnet_jax.start import start

start("attention", __name__)
