"""python -m xlnet_jax.recl: a command of xlnet_jax/__main__.py."""

from xlnet_jax.__main__ import COMMANDS

main = COMMANDS["recl"].start(__name__)
