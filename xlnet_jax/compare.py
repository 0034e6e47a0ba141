"""python -m xlnet_jax.compare: a command of xlnet_jax/__main__.py."""

from xlnet_jax.start import start

start("compare", __name__)
