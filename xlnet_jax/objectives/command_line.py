"""Settings of a pretraining run, from a command line or from keywords of Python: its preset, its objective, and the
settings beside them."""

import functools
from collections.abc import Collection, Sequence
from typing import Any, TypeVar

from xlnet_jax.errors import InputError
from xlnet_jax.objectives.presets import PRESETS, following, with_objective
from xlnet_jax.objectives.registry import OBJECTIVES, unread, validate
from xlnet_jax.settings import parser
from xlnet_jax.settings.config import Config
from xlnet_jax.settings.parser import CommandLine, names_of, with_keywords

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
    config = parser.parse(kind, line, prog, about, start, origin)
    if line.file and line.file.is_of_a_run:
        start, _ = line.file.over(start, origin)
    if "data.seq-len" in line.chosen:
        config = following(config, start, line.chosen)
    validate(config)
    return config


def preset(name: str = "demo", **settings: Any) -> Config:
    """Return the settings of a preset with some of them replaced, for `pretrain` or a training loop of one's own.

    settings: fields of Config by name, sections as dictionaries: corpus="my.txt", steps=200, data={"batch_size": 8}.
    As with the flags of `train`, the objective that is given says where other settings start from, and the parts of a
    window follow data.seq_len where they are not given. Raises InputError on a preset, an objective or a
    setting that does not exist, on a value out of its bounds, and on a setting that changes nothing.
    """
    if name not in PRESETS:
        raise InputError(f"`preset` {name} must be one of {', '.join(PRESETS)}")
    start = PRESETS[name]()
    start = with_objective(start, settings.get("objective", start.objective))
    given = names_of(settings)
    config = with_keywords(start, settings)
    if "data.seq-len" in given:
        config = following(config, start, given)
    refuse_unread(config, given)
    return config


def refuse_unread(config: Config, given: Collection[str]) -> None:
    """Raise InputError on a setting that was given and changes nothing beside the others."""
    for name, why in unread(config).items():
        if name in given:
            raise InputError(f"{name} changes nothing: {why}; leave it out")


def _start(line: CommandLine) -> Config:
    """Return the settings that preset and objective start from."""
    preset = parser.named_default(line, "--preset", PRESETS, "demo")
    objectives = {record.name: functools.partial(with_objective, preset, record.name) for record in OBJECTIVES}
    return parser.named_default(line, "--objective", objectives, preset.objective)
