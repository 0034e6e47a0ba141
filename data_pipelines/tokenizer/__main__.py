"""python -m data_pipelines.tokenizer: a command of xlnet_jax/__main__.py."""

from xlnet_jax.start import start

start("tokenizer", __name__)
