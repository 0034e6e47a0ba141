"""Settings of a pretraining run, from a command line or from keywords of Python: its preset, its objective, and the
settings beside them."""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from xlnet_jax.errors import InputError
from xlnet_jax.objectives.following import following
from xlnet_jax.objectives.presets import PRESETS, with_objective
from xlnet_jax.objectives.registry import OBJECTIVES
from xlnet_jax.objectives.rules import unread, validate
from xlnet_jax.settings import cli
from xlnet_jax.settings.config import Config, ModelConfig
from xlnet_jax.settings.config_file import CommandLine
from xlnet_jax.settings.keywords import names_of, with_keywords

C = TypeVar("C", bound=Config)
T = TypeVar("T")
EXAMPLE = "  python -m xlnet_jax.train --corpus my.txt --preset small --workdir runs/mine"


def parse_config(argv: Sequence[str], prog: str, description: str) -> Config:
    """Return the settings of a run from a command line, starting from its --preset and --objective.

    Raises InputError on words that cannot be read, and on settings that contradict each other or would change nothing;
    prints and exits on --help.
    """
    line = CommandLine.of(argv)
    config = parse_config_as(Config, line, prog, f"{description}\n\n{EXAMPLE}")
    refuse_unread(config, line.chosen)
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
    if line.file and line.file.is_of_a_run:
        start, _ = line.file.over(start, origin)
    config = completed(config, start, line.chosen)
    validate(config)
    return config


def preset(name: str = "demo", **settings: Any) -> Config:
    """Return the settings of a preset with some of them replaced, for `pretrain` or a training loop of one's own.

    settings: fields of Config by name, sections as dictionaries: corpus="my.txt", steps=200, data={"batch_size": 8}.
    As with the flags of `train`, the objective and the network that are given say where other settings start from, and
    the parts of a window follow data.seq_len where they are not given. Raises InputError on a preset, an objective or a
    setting that does not exist, on a value out of its bounds, and on a setting that changes nothing.
    """
    start, model = _named(PRESETS, "preset", name)(), settings.get("model")
    start = with_objective(start, settings.get("objective", start.objective))
    network = model.get("network") if isinstance(model, Mapping) else None
    if network is not None:
        start = replace(start, model=_named(_networks(start.model), "model.network", network)())
    given = names_of(settings)
    config = completed(with_keywords(start, settings), start, given)
    refuse_unread(config, given)
    return config


def completed(config: C, start: Config, given: Collection[str]) -> C:
    """Return settings with those that follow from the ones that were given. start: where they started from."""
    if "data.seq-len" in given:
        config = following(config, start, given)
    if "model.network" not in given:
        config = replace(config, model=replace(config.model, network="xlnet"))  # learned positions imply bert
    return config


def refuse_unread(config: Config, given: Collection[str]) -> None:
    """Raise InputError on a setting that was given and changes nothing beside the others."""
    for name, why in unread(config):
        if name in given:
            raise InputError(f"{name} changes nothing: {why}; leave it out")


def _named(known: Mapping[str, T], setting: str, name: str) -> T:
    if name not in known:
        raise InputError(f"`{setting}` {name} must be one of {', '.join(known)}")
    return known[name]


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
