"""python -m xlnet_jax.factorize: a command of xlnet_jax/__main__.py."""

from xlnet_jax.__main__ import COMMANDS

main = COMMANDS["factorize"].start(__name__)
