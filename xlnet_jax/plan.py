"""python -m xlnet_jax.plan: a command of xlnet_jax/__main__.py."""

from xlnet_jax.__main__ import COMMANDS

main = COMMANDS["plan"].start(__name__)
