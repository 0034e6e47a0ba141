"""Training runs: one process or one among several; settings of presets."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from xlnet_jax.printing import without_secrets
from xlnet_jax.settings import cli
from xlnet_jax.settings.config import Config, DistributedConfig, RunConfig
from xlnet_jax.settings.config_file import CommandLine
from xlnet_jax.settings.fields import flatten
from xlnet_jax.training.run import runtime, supervisor

if TYPE_CHECKING:
    from xlnet_jax.tasks.config import FinetuneConfig
    from xlnet_jax.training.run.hosts import Hosts

C = TypeVar("C", bound=RunConfig)


def run_pretraining(config: Config) -> int:
    """Pretrain as the command does; return the exit code."""
    from xlnet_jax.training.folder import folder_of

    return start(config, _load_pretrain, folder_of, ("xlnet_jax.train", *sys.argv[1:]))


def parse_finetuning(argv: Sequence[str], prog: str, description: str) -> "FinetuneConfig":
    """Return the settings of finetuning from a command line, starting from those of its --task. Raises InputError on
    words that cannot be read, and on settings that contradict each other; prints and exits on --help."""
    from xlnet_jax.tasks.config import FinetuneConfig
    from xlnet_jax.tasks.defaults import DEFAULTS
    from xlnet_jax.tasks.rules import validate_finetuning

    line = CommandLine.of(argv)
    default, origin = (
        cli.named_default(each, "--task", DEFAULTS, "classification") for each in (line, line.of_file_alone)
    )
    config = cli.parse(FinetuneConfig, line, prog, description, default, origin)
    cli.refuse_fixed(line)
    validate_finetuning(config)
    return config


def run_finetuning(config: "FinetuneConfig") -> int:
    """Finetune, evaluate and predict as the command does; return the exit code."""
    from xlnet_jax.tasks.config import folder_of

    return start(config, _load_finetune, folder_of, ("xlnet_jax.finetune", *sys.argv[1:]))


def _load_pretrain() -> "Callable[[Config, Hosts], int]":
    from xlnet_jax.training.pretrain import pretrain

    return pretrain


def _load_finetune() -> "Callable[[FinetuneConfig, Hosts], int]":
    from xlnet_jax.tasks.run import run

    return lambda config, hosts: run(config, hosts)[1]


def start(
    config: C,
    load_run: "Callable[[], Callable[[C, Hosts], int]]",
    folder_of: Callable[[C], str],
    command: Sequence[str],
) -> int:
    """Take this process's place among the hosts of the run, then run; return the exit code.

    On several hosts the run is in a child process (training/run/supervisor.py).

    load_run: import and return the run, after the mistakes that are found without jax. folder_of: the
    folder of the run, in which hosts meet. command: module and arguments that begin the same run. Raises InputError
    where the place cannot be found, a host does not arrive or is lost, or there is no TPU and the settings demand one.
    """
    roll, bind = supervisor.given_roll() or (None, None)
    place = None if roll else runtime.place_of(config)
    names = runtime.host_names(config, place) if place else []
    config = replace(config, distributed=DistributedConfig())
    if place:
        settings = {name: without_secrets(value) for name, value, _ in flatten(config)}
        return supervisor.supervise(place, folder_of(config), settings, names, command)
    from xlnet_jax.training.run.hosts import joined

    run = load_run()
    with joined(roll, bind) as hosts:
        if config.tpu:
            runtime.demand_tpu()
        return run(config, hosts)


def preset(name: str = "demo", **settings: Any) -> Config:
    """Return the settings of a preset with some of them replaced, for `pretrain` or a training loop of one's own.

    settings: fields of Config by name, sections as dictionaries: corpus="my.txt", steps=200, data={"batch_size": 8}.
    As with the flags of `train`, the parts of a window follow data.seq_len where they are not given, and `objective`
    says where other settings start from. Raises InputError on a preset or a setting that does not exist, on a value out
    of its bounds, and on a setting that changes nothing.
    """
    from xlnet_jax.objectives.command_line import preset

    return preset(name, settings)
