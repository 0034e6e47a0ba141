"""python -m data_pipelines.inspect: a command of xlnet_jax/__main__.py."""

from xlnet_jax.__main__ import COMMANDS

main = COMMANDS["inspect"].start(__name__)
