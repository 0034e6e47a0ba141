"""python -m xlnet_jax.train: from a text file to a pretrained XLNet."""

from collections.abc import Sequence
from dataclasses import replace

from xlnet_jax.api import command
from xlnet_jax.objectives import command_line
from xlnet_jax.settings.config import DistributedConfig
from xlnet_jax.settings.fields import flatten
from xlnet_jax.training.run import runtime


@command.naming_flags
def main(argv: Sequence[str]) -> int:
    """Pretrains as the command line says; returns the exit code."""
    config = command_line.parse_config(argv, "python -m xlnet_jax.train", __doc__ or "")
    place = runtime.place_of(config)
    names = runtime.host_names(config, place) if place else []
    config = replace(config, distributed=DistributedConfig())
    # Imported here, so that --help and mistakes answer at once.
    from xlnet_jax.training.pretrain import pretrain
    from xlnet_jax.training.run.hosts import joined

    with joined(place, {name: value for name, value, _ in flatten(config)}, names) as hosts:
        if config.tpu:
            runtime.demand_tpu()
        return pretrain(config, hosts)


if __name__ == "__main__":
    runtime.start_with_huge_pages()
    command.run(main)
