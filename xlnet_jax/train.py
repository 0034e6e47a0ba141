"""python -m xlnet_jax.train: a command of xlnet_jax/__main__.py."""

from xlnet_jax.start import start

start("train", __name__)
