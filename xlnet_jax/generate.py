"""python -m xlnet_jax.generate: a command of xlnet_jax/__main__.py."""

from xlnet_jax.start import start

start("generate", __name__)
