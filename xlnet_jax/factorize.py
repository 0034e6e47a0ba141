"""python -m xlnet_jax.factorize: a command of xlnet_jax/__main__.py."""

from xlnet_jax.start import start

start("factorize", __name__)
