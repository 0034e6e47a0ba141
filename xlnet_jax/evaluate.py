"""python -m xlnet_jax.evaluate: a command of xlnet_jax/__main__.py."""

from xlnet_jax.__main__ import COMMANDS

main = COMMANDS["evaluate"].main

if __name__ == "__main__":
    COMMANDS["evaluate"].run()
