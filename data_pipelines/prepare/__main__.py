"""python -m data_pipelines.prepare: a command of xlnet_jax/__main__.py."""

from xlnet_jax.__main__ import COMMANDS

main = COMMANDS["prepare"].main

if __name__ == "__main__":
    COMMANDS["prepare"].run()
