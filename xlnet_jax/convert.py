"""python -m xlnet_jax.convert: a command of xlnet_jax/__main__.py."""

from xlnet_jax.start import start

start("convert", __name__)
