"""python -m xlnet_jax.plan: a command of xlnet_jax/__main__.py."""

from xlnet_jax.__main__ import COMMANDS

main = COMMANDS["plan"].main

if __name__ == "__main__":
    COMMANDS["plan"].run()
