"""python -m xlnet_jax.compare: objectives and their ablations under equal conditions, as in the paper's Table 6."""

from collections.abc import Sequence

from xlnet_jax.api import command
from xlnet_jax.comparison import request
from xlnet_jax.errors import InputError
from xlnet_jax.training.run import runtime


@command.naming_flags
def main(argv: Sequence[str]) -> int:
    """Pretrain and finetune every contender; return the exit code."""
    config = request.parse(argv, __doc__ or "")
    if runtime.place_of(config):
        raise InputError("compare runs on one host: give each host contenders of its own, and its own `workdir`")
    # Import jax after --help and mistakes on the command line: they answer at once.
    from xlnet_jax.comparison.run import compare

    if config.tpu:
        runtime.demand_tpu()
    return compare(config)


if __name__ == "__main__":
    runtime.start_with_huge_pages()
    command.run(main, "give a smaller --data.batch-size")
