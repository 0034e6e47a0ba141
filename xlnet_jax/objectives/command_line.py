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
from xlnet_jax.settings import cli
from xlnet_jax.settings.config import Config, ModelConfig
from xlnet_jax.settings.config_file import CommandLine

C = TypeVar("C", bound=Config)


def parse_config(argv: Sequence[str], prog: str, description: str) -> Config:
    """Return the settings of a run from a command line, starting from its --preset and --objective.

    Raises InputError on words that cannot be read, and on settings that contradict each other or would change nothing;
    prints and exits on --help.
    """
    line = CommandLine.of(argv)
    config = parse_config_as(Config, line, prog, description)
    named = cli.named(line)
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
    line = CommandLine.of(argv)
    start, origin = (kind(**vars(_start(each))) for each in (line, line.of_file_alone))
    config = cli.parse(kind, line, prog, about, start, origin)
    named = cli.named(line)
    if "--data.seq-len" in named:
        file = line.file
        config = following(config, file.over(start, origin) if file and file.is_of_a_run else start, named)
    if "--model.network" not in named:
        config = replace(config, model=replace(config.model, network=None))  # resolved by the positions
    if config.init:
        cli.refuse_fixed(line)
    validate(config)
    return config


def _start(line: CommandLine) -> Config:
    """Return the settings that preset, objective and network start from."""
    preset = cli.named_default(line, "--preset", PRESETS, "demo")
    objectives = {record.name: functools.partial(with_objective, preset, record.name) for record in OBJECTIVES}
    start = cli.named_default(line, "--objective", objectives, preset.objective)
    network = cli.named_default(line, "--model.network", _networks(start.model), str(start.model.network))
    return replace(start, model=network)


def _networks(model: ModelConfig) -> Mapping[str, Callable[[], ModelConfig]]:
    own = "relative" if model.positions == "learned" else model.positions
    return {
        "xlnet": lambda: replace(model, network="xlnet", positions=own),
        "bert": lambda: replace(model, network="bert", positions="learned"),
    }
