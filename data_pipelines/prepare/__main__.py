"""python -m data_pipelines.prepare: a command of xlnet_jax/__main__.py."""

from xlnet_jax.start import start

start("prepare", __name__)
