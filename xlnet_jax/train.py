"""python -m xlnet_jax.train: a command of xlnet_jax/__main__.py."""

from xlnet_jax.__main__ import COMMANDS

main = COMMANDS["train"].start(__name__)
