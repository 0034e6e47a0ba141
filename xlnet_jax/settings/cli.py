"""Read settings from a command line by their dotted names; a mistake ends in one line."""

import contextlib
import dataclasses
import difflib
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, cast, get_args, get_origin, get_type_hints

import tyro

from xlnet_jax.errors import InputError
from xlnet_jax.printing import printing_colours
from xlnet_jax.settings import config_file
from xlnet_jax.settings.config_file import CommandLine
from xlnet_jax.settings.fields import T, docstrings_of, fields_of, flatten, is_marked, marked, nearest

HELP_ALL = "--help-all"


def parse(
    kind: type[T],
    argv: Sequence[str],
    prog: str,
    description: str,
    default: T | None = None,
    origin: T | None = None,
) -> T:
    """Return a dataclass read from a command line; its `given`, if it has one, has the names of the settings that the
    words and the file of --config give. Raises InputError on a mistake; prints and exits on --help.

    default: settings to start from; None = the defaults of `kind`. origin: settings that a run's file of --config
    started from (`ConfigFile.over`).
    """
    mistakes = io.StringIO()
    line = CommandLine.of(argv)
    if not {"-h", "--help", HELP_ALL}.isdisjoint(line) and dataclasses.is_dataclass(kind) and marked(kind, "common"):
        _show_help(kind() if default is None else default, prog, description, shows_all=HELP_ALL in line)
    if HELP_ALL in line:
        line = CommandLine(["--help"], line.file)
    given = line.flags
    if line.file:
        default, of_file = line.file.over(_undecided(kind, line) if default is None else default, origin)
        given |= of_file
    words = _gathered(line, kind)
    description = f"{description}\n\n{config_file.HELP}"
    start: dict[str, Any] = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(mistakes), printing_colours():
            parsed, unknown = tyro.cli(
                kind, prog=prog, description=description, args=words, return_unknown_args=True, **start
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise InputError(_first_sentence(mistakes.getvalue())) from None
    if unknown:
        raise InputError(_unknown_setting(unknown[0], parsed))
    return cast(T, dataclasses.replace(cast(Any, parsed), given=given)) if hasattr(parsed, "given") else parsed


def _show_help(settings: Any, prog: str, description: str, shows_all: bool) -> None:
    """Print the help of a command and exit: its common settings, or all but those that presets decide."""

    def shows(field: dataclasses.Field[Any]) -> bool:
        if shows_all:
            return not is_marked(field, "preset")
        # A command that cannot do without weights takes the sizes of its network from them.
        return is_marked(field, "common") and not (
            getattr(settings, "init", None) == "" and is_marked(field, "weights")
        )

    shown = _shown_of(settings, shows)
    rest = "docs/settings.md lists what presets decide, too." if shows_all else f"{HELP_ALL} lists the others."
    description += f"\n\n{rest} {config_file.HELP}"
    with printing_colours():
        tyro.cli(type(shown), prog=prog, description=description, args=["--help"], default=shown)


def _shown_of(settings: Any, shows: Callable[[dataclasses.Field[Any]], bool]) -> Any:
    """Return the settings that are shown, in a dataclass made for them, its own before inherited ones; None = none."""
    kind = type(settings)
    shown: dict[str, tuple[Any, Any]] = {}
    hints, about = get_type_hints(kind, include_extras=True), docstrings_of(kind)
    for field in sorted(fields_of(settings), key=lambda field: field.name not in vars(kind)["__annotations__"]):
        value, hint = getattr(settings, field.name), hints[field.name]
        if dataclasses.is_dataclass(value):
            if (value := _shown_of(value, shows)) is not None:
                shown[field.name] = type(value), value
        elif shows(field):
            shown[field.name] = Annotated[hint, tyro.conf.arg(help=about.get(field.name, ""))], value
    if not shown:
        return None
    made = dataclasses.make_dataclass(kind.__name__, [(name, hint) for name, (hint, _) in shown.items()])
    made.__doc__ = kind.__doc__
    return made(**{name: value for name, (_, value) in shown.items()})


def named_default(argv: Sequence[str], flag: str, defaults: Mapping[str, Callable[[], T]], otherwise: str) -> T:
    """Return the settings that this flag, or the file of --config, names, from which the other words start. Raises
    InputError on an unknown name.

    otherwise: the name where none is given.
    """
    line, setting = CommandLine.of(argv), flag.removeprefix("--").replace("-", "_")
    name, given = otherwise, flag
    if line.file and setting in line.file.values:
        name, given = str(line.file.values[setting]), f"{line.file.path}: {setting}"
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
        takes_it = next((name for name in ("corpus", "train") if hasattr(parsed, name)), None)
        hint = f": did you mean --{takes_it} {word}?" if takes_it else ", and nothing takes it"
        return f"{word} stands alone{hint}"
    name = word.partition("=")[0]
    near = nearest(name.removeprefix("--"), (setting for setting, _, _ in flatten(parsed)))
    hint = f"did you mean --{near}?" if near else f"{HELP_ALL} lists them all"
    return f"unknown setting {name}: {hint}"


def _undecided(kind: type[T], argv: Sequence[str]) -> T:
    """Return the defaults of a dataclass, with gaps for what a command line must give; of several, the one it names."""
    for option in get_args(kind):
        if argv and argv[0] == option.__name__.lower():
            kind = option
    if get_args(kind):
        raise InputError(
            f"{config_file.FLAG}: name one of {', '.join(o.__name__.lower() for o in get_args(kind))} first"
        )
    required = (
        field.name
        for field in dataclasses.fields(cast(Any, kind))
        if field.default is field.default_factory is dataclasses.MISSING
    )
    return kind(**dict.fromkeys(required, tyro.MISSING))


def _gathered(argv: Sequence[str], kind: type) -> list[str]:
    """Return `--corpus a b` for `--corpus a --corpus b`; of a setting with one value, the last word counts."""
    several = set(_of_several_values(kind))
    words: list[str] = []
    groups = [words]
    of_flag: dict[str, list[str]] = {}
    for word in argv:
        flag, equals, value = word.partition("=")
        if flag in of_flag:
            words = of_flag[flag]
            words += [value] if equals else []
        elif flag in several:
            words = of_flag[flag] = [flag, value] if equals else [flag]
            groups.append(words)
        elif word.startswith("--"):
            words = [word]
            groups.append(words)
        else:
            words.append(word)
    return [word for group in groups for word in group]


def _of_several_values(kind: type, prefix: str = "--") -> Iterator[str]:
    for name, hint in (pair for option in get_args(kind) or (kind,) for pair in get_type_hints(option).items()):
        if dataclasses.is_dataclass(hint):
            yield from _of_several_values(cast(type, hint), f"{prefix}{name}.")
        elif get_origin(hint) is tuple:
            yield prefix + name.replace("_", "-")


def _first_sentence(box: str) -> str:
    """Return tyro's message without its frame and its excerpt of the help."""
    lines = [re.sub(r"[│╭╮╰╯]", "", line).strip() for line in box.splitlines()]
    lines = [line for line in lines if line]
    rules = [i for i, line in enumerate(lines) if set(line) <= set("─-")]
    if 1 in rules and set(lines[1]) == {"-"}:  # where the output is not UTF-8, the title is underlined
        lines, rules = lines[2:], [i - 2 for i in rules[1:]]
    body = [line for line in lines[: min(rules, default=None)] if not line.startswith("─")]
    return " ".join(body) or "the command line cannot be read"
