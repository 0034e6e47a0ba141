"""python -m xlnet_jax.finetune: from a pretrained checkpoint to a task: classification, question answering, tagging,
multiple choice, ranking."""

from collections.abc import Sequence
from dataclasses import replace

from xlnet_jax.api import command
from xlnet_jax.settings import cli
from xlnet_jax.settings.config import DistributedConfig
from xlnet_jax.settings.fields import flatten
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.defaults import DEFAULTS
from xlnet_jax.tasks.rules import validate_finetuning
from xlnet_jax.training.run import runtime


@command.naming_flags
def main(argv: Sequence[str]) -> int:
    """Finetunes as the command line says; returns the exit code."""
    start = cli.named_default(argv, "--task", DEFAULTS, "classification")
    config = cli.parse(FinetuneConfig, argv, "python -m xlnet_jax.finetune", __doc__ or "", start)
    cli.refuse_fixed(argv)
    validate_finetuning(config)
    place = runtime.place_of(config)
    names = runtime.host_names(config, place) if place else []
    config = replace(config, distributed=DistributedConfig())
    # Imported here, so that --help and mistakes answer at once.
    from xlnet_jax.tasks.run import finetune
    from xlnet_jax.training.run.hosts import joined

    with joined(place, {name: value for name, value, _ in flatten(config)}, names) as hosts:
        if config.tpu:
            runtime.demand_tpu()
        return finetune(config, hosts)


if __name__ == "__main__":
    runtime.start_with_huge_pages()
    command.run(main)
