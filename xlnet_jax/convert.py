"""python -m xlnet_jax.convert: a command of xlnet_jax/__main__.py."""

from xlnet_jax.__main__ import COMMANDS

main = COMMANDS["convert"].start(__name__)
