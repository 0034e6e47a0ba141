"""Command lines: settings by their dotted names, mistakes in one line, exit codes.

0 done · 1 a crash · 2 something the user can mend · 130 stopped by Ctrl-C · 143 stopped by SIGTERM, SIGUSR1 or the
platform's word. 130 and 143 come with the state saved, and the same command goes on: what launches a run starts it
again on 143, which is also the code of a run that lost one of its hosts, or waited for it in vain.
"""

import contextlib
import dataclasses
import difflib
import errno
import functools
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

import tyro

from data_pipelines.quiet_tensorflow import keep_tensorflow_quiet
from xlnet_jax.config import FIXED_BY_WEIGHTS, Config, InputError, Objective
from xlnet_jax.objective_rules import unread
from xlnet_jax.presets import PRESETS, with_objective
from xlnet_jax.rules import validate
from xlnet_jax.settings import GONE, flatten

USER_ERROR = InputError.exit_code
CRASH = 1
INTERRUPTED = 128 + signal.SIGINT
RESTART = 128 + signal.SIGTERM
"""Exit code of a run that goes on with the same command: stopped with its state saved, or without one of its hosts."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
REFUSED = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
_REFUSED_BY_BUCKET = re.compile(r"\b40[134]\b|permission|unauthenticated|not.?found", re.IGNORECASE)
T = TypeVar("T")
C = TypeVar("C", bound=Config)


def parse_config(argv: Sequence[str], prog: str, description: str) -> Config:
    """The settings of a run from a command line, starting from its --preset and --objective; checked against each
    other.

    Raises InputError on what cannot be read, or would change nothing; prints and exits on --help.
    """
    config = parse_config_as(Config, argv, prog, description)
    named = _named(argv)
    for name, why in unread(config):
        if f"--{name}" in named:
            raise InputError(f"{name} changes nothing: {why}; leave it out")
    return config


def parse_config_as(kind: type[C], argv: Sequence[str], prog: str, description: str) -> C:
    """The same with settings of a command's own besides: kind is a dataclass that extends Config.

    Raises InputError on what cannot be read; prints and exits on --help.
    """
    preset = named_default(argv, "--preset", PRESETS, "demo")
    objectives = {name: functools.partial(with_objective, preset, name) for name in get_args(Objective)}
    start = named_default(argv, "--objective", objectives, preset.objective)
    config = parse(kind, argv, prog, description, kind(**vars(start)))
    if config.init:
        refuse_fixed(argv)
    validate(config)
    return config


def parse(kind: type[T], argv: Sequence[str], prog: str, description: str, default: T | None = None) -> T:
    """A dataclass from a command line. Raises InputError on what cannot be read; prints and exits on --help."""
    mistakes = io.StringIO()
    argv = _gathered(argv, kind)
    start: dict[str, Any] = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(mistakes):
            parsed, unknown = tyro.cli(
                kind, prog=prog, description=description, args=argv, return_unknown_args=True, **start
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise InputError(_first_sentence(mistakes.getvalue())) from None
    if unknown:
        raise InputError(_unknown_setting(unknown[0], parsed))
    return parsed


def exit_code(error: BaseException) -> int:
    """Of a command that ends in this error. A mistake is not tried again by what launches runs; a crash is, as of a
    network that fails for a while."""
    if isinstance(error, InputError):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, OSError):
        return USER_ERROR if error.errno in (*FULL, *REFUSED) else CRASH
    return USER_ERROR if "gs://" in str(error) and _REFUSED_BY_BUCKET.search(str(error)) else CRASH


def run(main: Callable[[Sequence[str]], int]) -> None:
    """Runs a command and exits: what a user can mend ends in one line and exit code 2, never in a stack trace."""
    keep_tensorflow_quiet()  # paths in the cloud load it, in worker processes too
    try:
        code = main(sys.argv[1:])
    except InputError as mistake:
        code = _fail(str(mistake), exit_code(mistake))
    except KeyboardInterrupt:
        print("stopped at once; the same command goes on from what was saved last", file=sys.stderr)
        code = INTERRUPTED
    except OSError as error:
        if exit_code(error) == CRASH:
            raise
        _fail(f"cannot write {error.filename or 'the workdir'}: {error.strerror}; what was saved before is intact")
        # At once: writers that cannot write would each say so again while the interpreter ends.
        sys.stderr.flush()
        os._exit(USER_ERROR)
    except Exception as error:
        if "gs://" not in str(error):
            raise
        hint = "check the name, the network, and `gcloud auth application-default login`"
        code = _fail(f"{error}: {hint}", exit_code(error))
    sys.exit(code)


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """For what prints to the standard output: a reader that has seen enough, such as head, ends it without a word."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python would complain once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int = USER_ERROR) -> int:
    print("error: " + " ".join(message.split()), file=sys.stderr)
    return code


def named_default(argv: Sequence[str], flag: str, defaults: Mapping[str, Callable[[], T]], otherwise: str) -> T:
    """The settings that this flag names, which the other words then change. InputError where it names none."""
    name = otherwise
    for i, word in enumerate(argv):
        if word == flag and i + 1 < len(argv):
            name = argv[i + 1]
        elif word.startswith(f"{flag}="):
            name = word.partition("=")[2]
    if name not in defaults:
        near = difflib.get_close_matches(name, defaults, 1)
        hint = f": did you mean {near[0]}?" if near else ""
        raise InputError(f"{flag} {name}: there is {', '.join(defaults)}{hint}")
    return defaults[name]()


def refuse_fixed(argv: Sequence[str]) -> None:
    """InputError where a setting of the network stands beside --init, whose weights have settled it."""
    named = _named(argv)
    for name in FIXED_BY_WEIGHTS:
        if (flag := f"--model.{name.replace('_', '-')}") in named:
            raise InputError(f"{flag} comes with the weights of --init: leave it out")


def _named(argv: Sequence[str]) -> set[str]:
    return {word.partition("=")[0].replace("_", "-").replace(".no-", ".") for word in argv}


def _unknown_setting(word: str, parsed: Any) -> str:
    if not word.startswith("-"):
        hint = f": did you mean --corpus {word}?" if type(parsed) is Config else ", and nothing takes it"
        return f"{word} stands alone{hint}"
    name = word.partition("=")[0]
    if instead := GONE.get(name.removeprefix("--").replace("_", "-").replace(".no-", ".")):
        return f"{name} is gone: --{instead} has taken its place"
    known = [f"--{setting}" for setting, _, _ in flatten(parsed)]
    # The dotted name or its last part may be what was misspelt or left out.
    by_last_part = {k.rpartition(".")[2].removeprefix("--"): k for k in known}
    near = difflib.get_close_matches(name, known, 1, 0.6) or [
        by_last_part[m] for m in difflib.get_close_matches(name.removeprefix("--").rpartition(".")[2], by_last_part, 1)
    ]
    hint = f"did you mean {near[0]}?" if near else "--help lists them all"
    return f"unknown setting {name}: {hint}"


def _gathered(argv: Sequence[str], kind: type) -> list[str]:
    """`--corpus a --corpus b` as `--corpus a b`: settings of several values gather them, of others the last counts."""
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
    """tyro's message without its frame and its excerpt of the help."""
    lines = [re.sub(r"[│╭╮╰╯]", "", line).strip() for line in box.splitlines()]
    lines = [line for line in lines if line]
    rules = [i for i, line in enumerate(lines) if set(line) <= set("─-")]
    if 1 in rules and set(lines[1]) == {"-"}:  # where the output is not UTF-8, the title is underlined
        lines, rules = lines[2:], [i - 2 for i in rules[1:]]
    body = [line for line in lines[: min(rules, default=None)] if not line.startswith("─")]
    return " ".join(body) or "the command line cannot be read"
