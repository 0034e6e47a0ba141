"""python -m data_pipelines.tokenizer: a command of xlnet_jax/__main__.py."""

from xlnet_jax.__main__ import COMMANDS

main = COMMANDS["tokenizer"].start(__name__)
