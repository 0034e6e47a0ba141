"""python -m xlnet_jax.generate: a command of xlnet_jax/__main__.py."""

from xlnet_jax.__main__ import COMMANDS

main = COMMANDS["generate"].main

if __name__ == "__main__":
    COMMANDS["generate"].run()
