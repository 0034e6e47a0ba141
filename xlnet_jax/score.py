"""python -m xlnet_jax.score: a command of xlnet_jax/__main__.py."""

from xlnet_jax.start import start

start("score", __name__)
