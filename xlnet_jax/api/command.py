"""Run a command: a mistake that the user can mend ends in one line and exit code 2 (errors.py lists the codes)."""

import contextlib
import functools
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, TypeVar

import tyro

from xlnet_jax.errors import (
    CRASH,
    FAILING,
    INTERRUPTED,
    UNREAD,
    USER_ERROR,
    InputError,
    OutOfMemory,
    exit_code,
    first_line,
    is_out_of_memory,
)
from xlnet_jax.printing import Console, print_safely, without_secrets
from xlnet_jax.settings import cli
from xlnet_jax.storage.import_path import keep_children_out
from xlnet_jax.storage.quiet_tensorflow import keep_tensorflow_quiet

T = TypeVar("T")
Main = Callable[[Sequence[str]], int]
CheckpointArgument = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
LONGEST_LINE = 1200  # characters of a message: a file may hold a name of any length
_JAX_VARIABLE = re.compile(r"for JAX flag (jax_\w+)|for environment '(JAX_\w+)|known backends.*(JAX_PLATFORMS)")
"""Variable that an error of jax's settings is about"""
_ARGUMENT = re.compile(r"`([a-z]\w*(?:\.[a-z]\w*)*)`")


def naming_flags(main: Main) -> Main:
    """Decorate the `main` of a command: its InputErrors name flags (--max-len), not arguments of the library."""

    @functools.wraps(main)
    def with_flags(argv: Sequence[str]) -> int:
        try:
            return main(argv)
        except InputError as mistake:
            mistake.args = (flags_for(str(mistake)),)
            raise

    return with_flags


def flags_for(text: str) -> str:
    """Replace each `argument` in a text of the library by its flag."""
    return _ARGUMENT.sub(lambda name: "--" + name[1].replace("_", "-"), text)


def run(main: Main, to_save_memory: str = "close other programs, or take a machine with more") -> None:
    """Run a command and exit. A mistake of the user ends in one line and exit code 2, never in a stack trace.

    to_save_memory: what to do where a device or the machine runs out of memory, as "give a smaller --batch-size".
    Where the reader of the output is gone, as in `… | head`, the command ends without a word: --help with exit code 0,
    anything else with UNREAD.
    """
    sys.unraisablehook = _report
    print_safely()
    keep_children_out()
    keep_tensorflow_quiet()  # paths in the cloud load it, in worker processes too
    code: int | str | None
    try:
        try:
            with _telling_of_memory(to_save_memory):
                code = main(_words())
        except SystemExit as stop:  # --help
            code = stop.code
        sys.stdout.flush()
    except BrokenPipeError:
        if not _nobody_reads():  # the pipe or socket of something else
            raise
        code = 0 if {"-h", "--help"}.intersection(sys.argv) else UNREAD
    except InputError as mistake:
        code = _fail(str(mistake), exit_code(mistake))
    except KeyboardInterrupt:
        print("stopped at once; the same command goes on from what was saved last", file=sys.stderr)
        code = INTERRUPTED
    except OSError as error:
        code = exit_code(error)
        where = error.filename or "the workdir"
        if error.errno in FAILING:
            _fail(
                f"the disk of {where} fails: {error.strerror}; what was saved before is intact, and the same command "
                "goes on from there once the disk works"
            )
        elif code == CRASH and _is_folder_gone():
            code = _fail("the current folder was deleted or moved: change into one that is there, as by `cd`")
        elif code == CRASH:
            raise
        else:
            _fail(f"cannot write {where}: {error.strerror}; what was saved before is intact")
        # Exit at once: open writers would report the same error again while the interpreter shuts down.
        sys.stderr.flush()
        os._exit(code)
    except Exception as error:
        if found := _JAX_VARIABLE.search(str(error)):
            name = next(filter(None, found.groups())).upper()
            sys.exit(_fail(f"{name} in the environment: {first_line(error)}; give a right value, or unset it"))
        if "gs://" not in str(error):
            raise
        hint = "check the name, the network, and `gcloud auth application-default login`"
        code = _fail(f"{error}: {hint}", exit_code(error))
    sys.exit(code)


def _words() -> list[str]:
    """Return the command line. Raises InputError where a word is no text: files and terminals could not hold it."""
    for number, word in enumerate(sys.argv[1:], 1):
        if not word.isprintable() and any("\ud800" <= character <= "\udfff" for character in word):
            raise InputError(f"word {number} of the command line, {word[:100]!a}, is not UTF-8: rename what it names")
    return sys.argv[1:]


def _report(unraisable: "sys.UnraisableHookArgs") -> None:
    """Print an error that no caller can catch. The threads of TensorStore that answer after a failed save are left out:
    the asyncio loop that asked is closed, and the save itself has raised its reason."""
    if str(unraisable.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(unraisable)


@contextlib.contextmanager
def _telling_of_memory(advice: str) -> Iterator[None]:
    """Raise OutOfMemory, with the backend's own words and the advice, where the body runs out of memory."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(f"out of memory ({first_line(error)}): {advice}") from None


def parse(kind: type[T], argv: Sequence[str], doc: str | None, default: T | None = None, origin: T | None = None) -> T:
    """Read the settings of a command from its command line. doc: of its module, "python -m NAME: what it does".
    default, origin: as of `cli.parse`.

    Raises InputError on words that cannot be read; prints and exits on --help.
    """
    description = doc or ""
    return cli.parse(kind, argv, description.partition(":")[0], description, default, origin)


@contextlib.contextmanager
def progress(shown: bool = True) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a line on the terminal while the body works, and nothing where there is no terminal.

    Print to the standard output only after the body, or without progress: rich would print it to the terminal.
    """
    if not shown:
        yield lambda line: None
        return
    with Console(stderr=True).status("reading") as status:
        yield status.update


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """Print to the standard output until its reader, such as head, has seen enough: no error then."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        if not _nobody_reads():
            raise


def _nobody_reads() -> bool:
    """Say whether the reader of the standard output is gone; what is printed from now on is then thrown away."""
    try:
        os.write(sys.stdout.fileno(), b"\n")  # a flush may have nothing left to write
    except BrokenPipeError:
        # Python flushes at exit, and would report the closed pipe once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _is_folder_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _fail(message: str, code: int = USER_ERROR) -> int:
    line = " ".join(without_secrets(message).split())
    cut = line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE // 2]} … {line[-LONGEST_LINE // 2 :]}"
    print("error: " + cut, file=sys.stderr)
    return code
