"""python -m xlnet_jax.train: from a text file to a pretrained XLNet."""

from collections.abc import Sequence

from xlnet_jax import api
from xlnet_jax.api import command, runs
from xlnet_jax.objectives import command_line
from xlnet_jax.training.folder import folder_of
from xlnet_jax.training.run import runtime


@command.naming_flags
def main(argv: Sequence[str]) -> int:
    """Pretrain; return the exit code."""
    config = command_line.parse_config(argv, "python -m xlnet_jax.train", __doc__ or "")
    return runs.start(config, lambda: api.pretrain, folder_of, ("xlnet_jax.train", *argv))


if __name__ == "__main__":
    runtime.start_with_huge_pages()
    command.run(main, "give a smaller --data.batch-size, or --model.remat full")
