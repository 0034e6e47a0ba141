"""Read settings from a command line, from keywords in Python, and from a JSON file such as the config.json of a run
(`--config FILE` of every command).

Names in a file are nested ({"data": {"batch_size": 32}}) or dotted ({"data.batch-size": 32}), with dashes or
underscores. Settings in a file override the defaults of its preset, objective or task, and flags override both. A
mistake ends in one line.
"""

import contextlib
import dataclasses
import difflib
import io
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, cast, get_args, get_origin, get_type_hints

import tyro
from etils import epath

from xlnet_jax.errors import InputError
from xlnet_jax.printing import printing_colors
from xlnet_jax.settings.common import RecordingSettings
from xlnet_jax.settings.config import Config, ModelConfig
from xlnet_jax.settings.fields import (
    T,
    check_bounds,
    docstrings_of,
    dotted,
    fields_of,
    flatten,
    is_marked,
    marked,
    nearest,
    read_values,
    unflagged_of,
    with_plain_paths,
    with_values,
)
from xlnet_jax.settings.hints import describe_type
from xlnet_jax.settings.resolution import record_given
from xlnet_jax.settings.transformers_names import hint_from_transformers
from xlnet_jax.storage.reading import FORMAT_VERSION, read_json, without_version

REPLACED = {
    "steps": {"epochs"},
    "epochs": {"steps"},
    "batch_per_device": {"data.batch_size"},
    "tokenizer": {"model.vocab_size"},
}
"""Settings of the command line, and those of a file that they replace because they set the same thing."""
PROMPT = "--prompt"
"""Flag whose values may also follow the checkpoint without it."""
FLAG = "--config"
HELP = f"{FLAG} FILE reads settings from a JSON file, such as the config.json of a run; flags override them."


class CommandLine(list[str]):
    """The words of a command line without --config, and the settings of that file, which is read once.

    path: of the file; "" = none. values: its settings by dotted name, in Python's spelling.
    """

    def __init__(self, words: Iterable[str], path: str = "", values: Mapping[str, Any] | None = None):
        super().__init__(words)
        self.path, self.values = path, values or {}

    @classmethod
    def of(cls, argv: Sequence[str]) -> "CommandLine":
        """Return a command line with the last file that it names. Raises InputError if the file cannot be read."""
        if isinstance(argv, cls):
            return argv
        path, words = "", []
        rest = iter(argv)
        for word in rest:
            flag, equals, value = word.partition("=")
            if flag != FLAG:
                words.append(word)
                continue
            path = value if equals else next(rest, "")
            if not path or path.startswith("--"):
                raise InputError(f"{FLAG} needs the name of a JSON file")
        line = cls(words, path)
        if path:
            values = dict(dotted(read_json(epath.Path(path).expanduser())))
            values = without_version("run", values, path) if FORMAT_VERSION in values else values
            replaced = {other for name in line.names for other in REPLACED.get(name, ())}
            line.values = {name: value for name, value in values.items() if name not in replaced}
        return line

    @property
    def names(self) -> frozenset[str]:
        """Dotted names of the settings that the words give."""
        words = (word.partition("=")[0] for word in self if word.startswith("--"))
        names = (word.removeprefix("--").replace("-", "_") for word in words)
        return frozenset(name.removeprefix("no_").replace(".no_", ".") for name in names)

    @property
    def is_of_a_run(self) -> bool:
        """True if the file has most settings of the network, like the config.json of a run."""
        named = sum(name.startswith("model.") for name in self.values)
        return 2 * named > len(dataclasses.fields(ModelConfig))

    @property
    def chosen(self) -> frozenset[str]:
        """Dotted names of the settings that the user chose, by a flag or in a file written by hand. The settings in the
        config.json of a run do not count: it has all of them."""
        return self.names if self.is_of_a_run else self.names | self.values.keys()

    @property
    def of_file_alone(self) -> "CommandLine":
        """The command line with only the file."""
        return CommandLine((), self.path, self.values)

    def file_values(self, start: Any, origin: Any = None) -> dict[str, Any]:
        """Return the settings of the file, by dotted name, with the types that they have in `start`.

        origin: the defaults (of a preset, objective or task) from which the run of the file started. If `start` has
        other defaults, only the settings that differ from `origin` are returned. Raises InputError for an unknown name,
        with the most similar one, and for a value of another type.
        """
        values = read_values(start, self.values, f"{self.path}: ")
        if origin is not None and origin != start and self.is_of_a_run:
            usual = {setting.python_name: setting.value for setting in flatten(origin)}
            values = {name: value for name, value in values.items() if value != usual[name]}
        return values


def with_keywords(start: T, given: Mapping[str, Any]) -> T:
    """Return the settings with some of them replaced. Give a section as a dataclass or as a dictionary of its settings,
    and a setting with several values as a list or as one value.

    Raises InputError for an unknown setting, with the most similar name, and for a value of another type or out of
    bounds.
    """
    start = with_plain_paths(start)
    changed = with_values(start, read_values(start, dict(dotted(given)), "", quote="`"))
    check_bounds(changed)
    return record_given(changed, names_of(given)) if isinstance(changed, RecordingSettings) else changed


def names_of(given: Mapping[str, Any]) -> frozenset[str]:
    """Return the dotted names of the settings that keywords give. A whole section gives all of its settings."""
    return frozenset(name for name, _ in dotted(given))


HELP_ALL = "--help-all"


def parse(
    kind: type[T],
    argv: Sequence[str],
    prog: str,
    description: str,
    default: T | None = None,
    origin: T | None = None,
) -> T:
    """Return a dataclass read from a command line. Its field `given`, if it has one, gets the names of the settings in
    the words and in the file of --config. Raises InputError on a mistake; prints and exits on --help.

    default: settings to start from; None = the defaults of `kind`. origin: see `CommandLine.file_values`.
    """
    mistakes = io.StringIO()
    line = CommandLine.of(argv)
    asks_help = not {"-h", "--help", HELP_ALL}.isdisjoint(line) and dataclasses.is_dataclass(kind)
    if asks_help and marked(kind, "common") and (default is not None or not _required(kind)):
        _show_help(kind() if default is None else default, prog, description, shows_all=HELP_ALL in line)
    if HELP_ALL in line:
        line = CommandLine(["--help"], line.path, line.values)
    given = line.names
    if line.path:
        default = _undecided(kind, line) if default is None else default
        values = line.file_values(default, origin)
        default, given = with_values(default, values), given | values.keys()
    hints = dict(flags_of(_option(kind, line)))
    words = _gather(line, hints)
    _check_words(words, hints)
    description = f"{description}\n\n{HELP}"
    start: dict[str, Any] = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(mistakes), printing_colors():
            parsed, unknown = tyro.cli(
                kind, prog=prog, description=description, args=words, return_unknown_args=True, **start
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise InputError(_first_sentence(mistakes.getvalue())) from None
    if unknown:
        raise InputError(_unknown_setting(unknown[0], parsed))
    return (
        cast(T, dataclasses.replace(cast(Any, parsed), given=given))
        if isinstance(parsed, RecordingSettings)
        else parsed
    )


def _show_help(settings: Any, prog: str, description: str, shows_all: bool) -> None:
    """Print the help of a command and exit: its common settings, or all."""

    def shows(field: dataclasses.Field[Any]) -> bool:
        # A command that needs a checkpoint takes the sizes of the network from it.
        of_weights = not isinstance(settings, Config) and is_marked(field, "weights")
        return shows_all or (is_marked(field, "common") and not of_weights)

    shown = _shown_of(settings, shows)
    rest = "docs/settings.md also lists settings without a flag." if shows_all else f"{HELP_ALL} lists the others."
    description += f"\n\n{rest} {HELP}"
    with printing_colors():
        tyro.cli(type(shown), prog=prog, description=description, args=["--help"], default=shown)


def _shown_of(settings: Any, shows: Callable[[dataclasses.Field[Any]], bool]) -> Any:
    """Return the settings to show as a new dataclass, own fields before inherited ones; None if there are none."""
    kind = type(settings)
    shown: dict[str, tuple[Any, Any]] = {}
    hints, about = get_type_hints(kind, include_extras=True), docstrings_of(kind)
    for field in sorted(fields_of(settings), key=lambda field: field.name not in vars(kind)["__annotations__"]):
        value, hint = getattr(settings, field.name), hints[field.name]
        if dataclasses.is_dataclass(value):
            if (value := _shown_of(value, shows)) is not None:
                shown[field.name] = type(value), value
        elif shows(field) and field.name not in unflagged_of(cast(type, kind)):
            shown[field.name] = Annotated[hint, tyro.conf.arg(help=about.get(field.name, ""))], value
    if not shown:
        return None
    made = dataclasses.make_dataclass(kind.__name__, [(name, hint) for name, (hint, _) in shown.items()])
    made.__doc__ = kind.__doc__
    return made(**{name: value for name, (_, value) in shown.items()})


def flags_of(kind: type, prefix: str = "--") -> Iterator[tuple[str, Any]]:
    """Yield the flag and the type of each setting of a dataclass; nothing for a union."""
    if get_args(kind):
        return
    for name, hint in get_type_hints(kind).items():
        if dataclasses.is_dataclass(hint):
            yield from flags_of(cast(type, hint), f"{prefix}{name}.")
        elif name not in unflagged_of(kind):
            yield prefix + name.replace("_", "-"), hint


def named_default(argv: Sequence[str], flag: str, defaults: Mapping[str, Callable[[], T]], otherwise: str) -> T:
    """Return the defaults that this flag or the file of --config names. Raises InputError for an unknown name.

    otherwise: the name if none is given.
    """
    line, setting = CommandLine.of(argv), flag.removeprefix("--").replace("-", "_")
    name, given = otherwise, flag
    if setting in line.values:
        name, given = str(line.values[setting]), f"{line.path}: {setting}"
    for i, word in enumerate(line):
        if word == flag and i + 1 < len(line):
            name, given = line[i + 1], flag
        elif word.startswith(f"{flag}="):
            name, given = word.partition("=")[2], flag
    if name not in defaults:
        near = difflib.get_close_matches(name, defaults, 1)
        hint = f": did you mean {near[0]}?" if near else ""
        raise InputError(f"{given} {name}: there is {', '.join(defaults)}{hint}")
    return defaults[name]()


def _unknown_setting(word: str, parsed: Any) -> str:
    if not word.startswith("-"):
        takes_it = next((name for name in ("corpus", "train", "prompt") if hasattr(parsed, name)), None)
        hint = f": did you mean --{takes_it} {word}?" if takes_it else ": this command takes no such word"
        return f"{word} has no flag in front{hint}"
    name, settings = word.partition("=")[0], flatten(parsed)
    known = {setting.name for setting in settings if setting.is_flag}
    unflagged = {s.name: f"{s.python_name} in the file of {FLAG}" for s in settings if not s.is_flag}
    plain = name.lstrip("-").replace("_", "-").replace(".no-", ".")
    if plain in unflagged:
        return f"{name} is no flag: a preset, a task or a checkpoint decides it; set {unflagged[plain]}"
    if there := hint_from_transformers(plain, known, unflagged):
        return f"{name} {there}"
    near = nearest(name.removeprefix("--"), known)
    hint = f"did you mean --{near}?" if near else f"{HELP_ALL} lists them all"
    return f"unknown setting {name}: {hint}"


def _option(kind: type[T], argv: Sequence[str]) -> type[T]:
    """Return the dataclass that the first word names, where `kind` is a union of several."""
    named = (option for option in get_args(kind) if argv and argv[0] == option.__name__.lower())
    return next(named, kind)


def _undecided(kind: type[T], argv: Sequence[str]) -> T:
    """Return the defaults of a dataclass, with gaps for what a command line must give. Of a union, take the dataclass
    that the first word names."""
    kind = _option(kind, argv)
    if get_args(kind):
        raise InputError(f"{FLAG}: name one of {', '.join(o.__name__.lower() for o in get_args(kind))} first")
    return kind(**dict.fromkeys(_required(kind), tyro.MISSING))


def _required(kind: type[Any]) -> list[str]:
    """Return the names of the fields of a dataclass that have no default."""
    fields = dataclasses.fields(kind)
    return [field.name for field in fields if field.default is field.default_factory is dataclasses.MISSING]


def _gather(argv: Sequence[str], hints: Mapping[str, Any]) -> list[str]:
    """Return `--corpus a b` for `--corpus a --corpus b`, and `CHECKPOINT --prompt a` for `CHECKPOINT a`. If a setting
    with one value is given twice, the last one counts."""
    line = list(argv)
    if PROMPT in hints and (alone := list(itertools.takewhile(lambda word: not word.startswith("--"), line))[1:]):
        line[1 : 1 + len(alone)] = [PROMPT, *alone]
    words: list[str] = []
    others, of_flag = words, dict[str, list[str]]()
    for word in line:
        flag, equals, value = word.partition("=")
        if flag in hints and _is_list(hints[flag]):
            words = of_flag.setdefault(flag, [flag])
            words += [value] if equals else []
            continue
        if word.startswith("--"):
            words = others
        words.append(word)
    return [*others, *itertools.chain(*of_flag.values())]


def _check_words(words: Sequence[str], hints: Mapping[str, Any]) -> None:
    """Raise InputError on the first word that is not a value of its flag."""
    words = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    for flag, values in _values_of(words):
        if (name := flag.replace("_", "-")) not in hints:
            continue
        hint = hints[name]
        if hint is bool:
            if values and values[0].lower() in ("true", "false", "yes", "no", "on", "off", "0", "1"):
                raise InputError(f"{name} takes no value, such as {values[0]}: give {name} alone, or {_negated(name)}")
            continue
        if not values and not _is_list(hint):
            raise InputError(f"{name} needs {describe_type(hint)}{_example(hint)}; it has no value")
        for value in values if _is_list(hint) else values[:1]:
            if not _can_be(value, hint):
                raise InputError(f'{name} needs {describe_type(hint)}{_example(hint)}; it is "{value}"')


def _is_list(hint: Any) -> bool:
    return tuple in (get_origin(each) for each in (hint, *get_args(hint)))


def _values_of(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each flag with the words up to the next one."""
    at = [i for i, word in enumerate(words) if word.startswith("--")]
    for begin, end in itertools.pairwise([*at, len(words)]):
        yield words[begin], list(words[begin + 1 : end])


def _negated(flag: str) -> str:
    section, dot, name = flag.removeprefix("--").rpartition(".")
    return f"--{section}{dot}no-{name}"


def _can_be(word: str, hint: Any) -> bool:
    """Return True if a word is a value of this type."""
    if get_origin(hint) is Literal:
        return word in get_args(hint)
    if get_args(hint):  # of a union, or of a tuple
        return any(_can_be(word, option) for option in get_args(hint) if option is not Ellipsis)
    if hint is type(None):
        return word == "None"
    try:
        hint(word)
    except ValueError:
        return False
    return True


def _example(hint: Any) -> str:
    """Return ', such as 1000' for a number, and nothing for other types."""
    kinds = {*get_args(hint), hint}
    return ", such as 1000" if int in kinds else ", such as 0.001" if float in kinds else ""


def _first_sentence(box: str) -> str:
    """Return tyro's message without its frame and its excerpt of the help."""
    lines = [re.sub(r"[│╭╮╰╯]", "", line).strip() for line in box.splitlines()]
    lines = [line for line in lines if line]
    rules = [i for i, line in enumerate(lines) if set(line) <= set("─-")]
    if 1 in rules and set(lines[1]) == {"-"}:  # where the output is not UTF-8, the title is underlined
        lines, rules = lines[2:], [i - 2 for i in rules[1:]]
    body = [line for line in lines[: min(rules, default=None)] if not line.startswith("─")]
    return " ".join(body) or "the command line cannot be read"
