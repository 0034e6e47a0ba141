"""python -m xlnet_jax.generate: a command of xlnet_jax/__main__.py."""

from xlnet_jax.__main__ import COMMANDS

main = COMMANDS["generate"].start(__name__)
