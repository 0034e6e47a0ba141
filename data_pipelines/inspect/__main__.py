"""python -m data_pipelines.inspect: a command of xlnet_jax/__main__.py."""

from xlnet_jax.__main__ import COMMANDS

main = COMMANDS["inspect"].main

if __name__ == "__main__":
    COMMANDS["inspect"].run()
