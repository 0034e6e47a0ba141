"""python -m xlnet_jax.score: a command of xlnet_jax/__main__.py."""

from xlnet_jax.__main__ import COMMANDS

main = COMMANDS["score"].main

if __name__ == "__main__":
    COMMANDS["score"].run()
