"""Settings of a pretraining run from a command line: its --preset, its --objective, and the settings beside them."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from xlnet_jax.errors import InputError
from xlnet_jax.objectives.following import following
from xlnet_jax.objectives.presets import PRESETS, with_objective
from xlnet_jax.objectives.registry import OBJECTIVES
from xlnet_jax.objectives.rules import unread, validate
from xlnet_jax.settings import cli, config_file
from xlnet_jax.settings.config import Config, ModelConfig

C = TypeVar("C", bound=Config)


def parse_config(argv: Sequence[str], prog: str, description: str) -> Config:
    """Return the settings of a run from a command line, starting from its --preset and --objective.

    Raises InputError on words that cannot be read, and on settings that contradict each other or would change nothing;
    prints and exits on --help.
    """
    config = parse_config_as(Config, argv, prog, description)
    named = cli.named(argv)
    for name, why in unread(config):
        if f"--{name}" in named:
            raise InputError(f"{name} changes nothing: {why}; leave it out")
    return config


def parse_config_as(kind: type[C], argv: Sequence[str], prog: str, description: str) -> C:
    """Return the settings of a command that has more of its own. kind: a dataclass that extends Config.

    Raises InputError on words that cannot be read and on contradictions; prints and exits on --help.
    """
    listed = "\n".join(f"  {record.name:7} {record.summary}" for record in OBJECTIVES)
    about = f"{description}\n\nobjectives:\n{listed}"
    start, origin = (kind(**vars(_start(words))) for words in (argv, config_file.alone(argv)))
    config = cli.parse(kind, argv, prog, about, start, origin)
    named = cli.named(argv)
    if "--data.seq-len" in named:
        file = config_file.of(argv)
        config = following(config, file.over(start, origin) if file and file.is_of_a_run else start, named)
    if "--model.network" not in named:
        config = replace(config, model=replace(config.model, network=None))  # resolved by the positions
    if config.init:
        cli.refuse_fixed(argv)
    validate(config)
    return config


def _start(argv: Sequence[str]) -> Config:
    """Return the settings that preset, objective and network start from."""
    preset = cli.named_default(argv, "--preset", PRESETS, "demo")
    objectives = {record.name: functools.partial(with_objective, preset, record.name) for record in OBJECTIVES}
    start = cli.named_default(argv, "--objective", objectives, preset.objective)
    network = cli.named_default(argv, "--model.network", _networks(start.model), str(start.model.network))
    return replace(start, model=network)


def _networks(model: ModelConfig) -> Mapping[str, Callable[[], ModelConfig]]:
    own = "relative" if model.positions == "learned" else model.positions
    return {
        "xlnet": lambda: replace(model, network="xlnet", positions=own),
        "bert": lambda: replace(model, network="bert", positions="learned"),
    }
