"""python -m xlnet_jax.attention: a command of xlnet_jax/__main__.py."""

from xlnet_jax.__main__ import COMMANDS

main = COMMANDS["attention"].start(__name__)
