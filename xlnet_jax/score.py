"""python -m xlnet_jax.score: a command of xlnet_jax/__main__.py."""

from xlnet_jax.__main__ import COMMANDS

main = COMMANDS["score"].start(__name__)
