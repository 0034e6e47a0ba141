"""Settings in a JSON file, such as the config.json of a run: `--config FILE` of every command.

Names are nested ({"data": {"batch_size": 32}}) or dotted ({"data.batch-size": 32}), with dashes or underscores. The
settings of the file replace those of a preset, an objective or a task, which the file may name; flags replace both.
"""

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, get_type_hints

from etils import epath

from xlnet_jax.errors import InputError, shown
from xlnet_jax.settings.config import ModelConfig
from xlnet_jax.settings.fields import T, fields_of, flatten, nearest, with_values
from xlnet_jax.settings.typed import typed
from xlnet_jax.storage.versions import KEY, without_version

REPLACED = {
    "steps": {"epochs"},
    "epochs": {"steps"},
    "batch": {"data.batch-size", "batch-per-device"},
    "batch-per-device": {"data.batch-size", "batch"},
    "tokenizer": {"model.vocab-size"},
}
"""Flags that say in another way what these settings of a file say, and replace them."""
FLAG = "--config"
MOST_BYTES = 1 << 20
"""of a file of settings, whose names and values take some ten thousand"""
HELP = f"{FLAG} FILE: settings from a JSON file, such as config.json of a run; flags replace them"


class _Object(list[tuple[str, Any]]):
    """An object of JSON as it is written, where a name may stand twice."""


class ConfigFile(NamedTuple):
    """Settings that a file gives, by their dotted names in Python's spelling."""

    path: str
    values: dict[str, Any]

    @property
    def is_of_a_run(self) -> bool:
        """True where the file names most settings of the network, as a run writes them, and not a few chosen ones."""
        named = sum(name.startswith("model.") for name in self.values)
        return 2 * named > len(dataclasses.fields(ModelConfig))

    def over(self, start: T, origin: T | None = None) -> tuple[T, frozenset[str]]:
        """Return settings with those of the file in place of their own, and the dotted names of those.

        origin: settings that a run's file itself started from, by its preset, objective or task; where `start` is of
        another name, only what differs from `origin` is taken over. Raises InputError on an unknown name, with the
        nearest, and on a value of another type.
        """
        known = dict(_hints(start))
        for name in self.values:
            if name not in known:
                near = nearest(name, known)
                hint = f"did you mean {near}?" if near else "--help-all lists those of this command"
                raise InputError(f"{self.path}: unknown setting {name}: {hint}")
        values = {name: self._typed(name, value, known[name]) for name, value in self.values.items()}
        if origin is not None and origin != start and self.is_of_a_run:
            usual = {setting.name.replace("-", "_"): setting.value for setting in flatten(origin)}
            values = {name: value for name, value in values.items() if value != usual[name]}
        return with_values(start, values), frozenset(name.replace("_", "-") for name in values)

    def _typed(self, name: str, value: Any, hint: Any) -> Any:
        try:
            return typed(value, hint)
        except TypeError as wanted:
            raise InputError(f"{self.path}: {name} {shown(value)}: give {wanted}") from None


class CommandLine(list[str]):
    """Words of a command line without --config, and the settings of its file, which is read once."""

    def __init__(self, words: Iterable[str], file: ConfigFile | None):
        super().__init__(words)
        self.file = file

    @classmethod
    def of(cls, argv: Sequence[str]) -> "CommandLine":
        """Return a command line with the file that it names last. Raises InputError where the file cannot be read."""
        if isinstance(argv, cls):
            return argv
        path, words = _split(argv)
        line = cls(words, None)
        if path is not None:
            values = _read(path)
            replaced = {name for flag in line.flags for name in REPLACED.get(flag, ())}
            kept = {name: value for name, value in values.items() if name.replace("_", "-") not in replaced}
            line.file = ConfigFile(path, kept)
        return line

    @property
    def flags(self) -> frozenset[str]:
        """Dotted names of the settings that its words give, spelled as --help spells them."""
        words = (word.partition("=")[0] for word in self if word.startswith("--"))
        names = (word.removeprefix("--").replace("_", "-") for word in words)
        return frozenset(name.removeprefix("no-").replace(".no-", ".") for name in names)

    @property
    def chosen(self) -> frozenset[str]:
        """Dotted names of the settings that somebody chose for this command, by a flag or in a file written by hand.
        The file of a run gives every setting, and chooses none."""
        values = self.file.values if self.file and not self.file.is_of_a_run else ()
        return self.flags.union(name.replace("_", "-") for name in values)

    @property
    def of_file_alone(self) -> "CommandLine":
        """The command line that names the file only."""
        return CommandLine((), self.file)


def _split(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    path, others, words = None, [], iter(argv)
    for word in words:
        if word == FLAG:
            path = next(words, "")
        elif word.startswith(f"{FLAG}="):
            path = word.partition("=")[2]
        else:
            others.append(word)
        if path is not None and (not path or path.startswith("--")):
            raise InputError(f"{FLAG} names no file")
    return path, others


def _read(path: str) -> dict[str, Any]:
    file = epath.Path(path).expanduser()
    if os.path.exists(file) and not (os.path.isfile(file) or os.path.isdir(file)):
        raise InputError(f"{FLAG} {path} is a pipe or a device: save the settings in a file")
    if os.path.isfile(file) and os.path.getsize(file) > MOST_BYTES:
        raise InputError(f"{FLAG} {path} has {os.path.getsize(file):,} bytes: settings are a few thousand")
    try:
        content = json.loads(file.read_text(), object_pairs_hook=_Object)
        given = list(_flat(content)) if isinstance(content, _Object) else None
    except FileNotFoundError:
        raise InputError(f"{FLAG} {path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{FLAG} {path} is a folder: name a file, as {file / 'config.json'}") from None
    except OSError as error:
        raise InputError(f"{FLAG} {path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{FLAG} {path} is not JSON: {error}") from None
    if given is None:
        raise InputError(f'{FLAG} {path} holds no settings: they are written as {{"steps": 3000}}')
    values: dict[str, Any] = {}
    for name, value in given:
        if name in values:
            raise InputError(f"{path}: {name} is given twice")
        values[name] = value
    return without_version("run", values, path) if KEY in values else values


def _flat(values: _Object, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values:
        name = prefix + key.replace("-", "_")
        if isinstance(value, _Object):
            yield from _flat(value, f"{name}.")
        else:
            yield name, value


def _hints(settings: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the type of every setting."""
    hints = get_type_hints(type(settings))
    for field in fields_of(settings):
        name, value = prefix + field.name, getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            yield from _hints(value, f"{name}.")
        else:
            yield name, hints[field.name]
