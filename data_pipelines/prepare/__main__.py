"""python -m data_pipelines.prepare: a command of xlnet_jax/__main__.py."""

from xlnet_jax.__main__ import COMMANDS

main = COMMANDS["prepare"].start(__name__)
