"""python -m xlnet_jax.evaluate: a command of xlnet_jax/__main__.py."""

from xlnet_jax.__main__ import COMMANDS

main = COMMANDS["evaluate"].start(__name__)
