"""python -m xlnet_jax.embed: a command of xlnet_jax/__main__.py."""

from xlnet_jax.start import start

start("embed", __name__)
