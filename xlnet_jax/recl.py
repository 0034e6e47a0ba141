"""python -m xlnet_jax.recl: a command of xlnet_jax/__main__.py."""

from xlnet_jax.__main__ import COMMANDS

main = COMMANDS["recl"].main

if __name__ == "__main__":
    COMMANDS["recl"].run()
