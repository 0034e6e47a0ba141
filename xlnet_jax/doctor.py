"""python -m xlnet_jax.doctor: a command of xlnet_jax/__main__.py."""

from xlnet_jax.start import start

start("doctor", __name__)
