"""Training runs: one process or one among several, and predictions of a finetuned checkpoint."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from xlnet_jax.errors import InputError
from xlnet_jax.settings.config import DistributedConfig, RunConfig
from xlnet_jax.settings.fields import flatten
from xlnet_jax.training.run import runtime

if TYPE_CHECKING:
    from xlnet_jax.training.run.hosts import Hosts

C = TypeVar("C", bound=RunConfig)


def start(config: C, load_run: "Callable[[], Callable[[C, Hosts], int]]") -> int:
    """Take this process's place among the hosts of the run, then run; return the exit code.

    load_run: import and return `pretrain` or `finetune`, after the mistakes that are found without jax. Raises
    InputError where the place cannot be found, a host does not arrive, or there is no TPU and the settings demand one.
    """
    place = runtime.place_of(config)
    names = runtime.host_names(config, place) if place else []
    config = replace(config, distributed=DistributedConfig())
    from xlnet_jax.training.run.hosts import joined

    run = load_run()
    with joined(place, {name: value for name, value, _ in flatten(config)}, names) as hosts:
        if config.tpu:
            runtime.demand_tpu()
        return run(config, hosts)


def predict(checkpoint: str, examples: Sequence[str], task: str = "classification", workdir: str | None = None) -> int:
    """Write what a finetuned checkpoint predicts for examples without labels; return the exit code.

    examples: files, globs or tfds:NAME, in the form that the task reads. workdir: folder to write to; None =
    runs/TASK-predictions. Raises InputError for a checkpoint of another task, and for files that cannot be read.
    """
    from xlnet_jax.tasks.defaults import DEFAULTS

    if task not in DEFAULTS:
        raise InputError(f"`task` {task} must be one of {', '.join(DEFAULTS)}")
    from xlnet_jax.tasks.run import finetune

    return finetune(replace(DEFAULTS[task](), init=checkpoint, predict=tuple(examples), workdir=workdir))
