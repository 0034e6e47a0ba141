"""python -m data_pipelines.inspect: a command of xlnet_jax/__main__.py."""

from xlnet_jax.start import start

start("inspect", __name__)
