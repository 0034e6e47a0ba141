"""python -m xlnet_jax.finetune: a command of xlnet_jax/__main__.py."""

from xlnet_jax.__main__ import COMMANDS

main = COMMANDS["finetune"].start(__name__)
