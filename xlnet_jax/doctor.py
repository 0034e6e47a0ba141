"""python -m xlnet_jax.doctor: a command of xlnet_jax/__main__.py."""

from xlnet_jax.__main__ import COMMANDS

main = COMMANDS["doctor"].start(__name__)
