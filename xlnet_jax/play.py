"""python -m xlnet_jax.play: a command of xlnet_jax/__main__.py."""

from xlnet_jax.start import start

start("play", __name__)
