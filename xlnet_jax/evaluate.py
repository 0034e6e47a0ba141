"""python -m xlnet_jax.evaluate: a command of xlnet_jax/__main__.py."""

from xlnet_jax.start import start

start("evaluate", __name__)
