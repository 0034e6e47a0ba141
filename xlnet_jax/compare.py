"""python -m xlnet_jax.compare: a command of xlnet_jax/__main__.py."""

from xlnet_jax.__main__ import COMMANDS

main = COMMANDS["compare"].start(__name__)
