"""python -m xlnet_jax.embed: a command of xlnet_jax/__main__.py."""

from xlnet_jax.__main__ import COMMANDS

main = COMMANDS["embed"].start(__name__)
