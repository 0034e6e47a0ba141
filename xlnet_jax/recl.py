"""python -m xlnet_jax.recl: a command of xlnet_jax/__main__.py."""

from xlnet_jax.start import start

start("recl", __name__)
