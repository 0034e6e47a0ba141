"""Escape control characters, and remove secrets from URLs, in all that is printed or stored; write counts with
their nouns. Imports nothing of this project.

File names, texts, labels and error messages may come from others. Every command prints through `Printable` streams, and
rich through `Console`.
"""

import contextlib
import errno
import functools
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO, TypeVar

import rich.console
from rich.segment import Segment

T = TypeVar("T")

_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufff9-\ufffb\ud800-\udfff]"
)
"""Control characters except tab and newline, marks of direction and of lines, and lone surrogates. Not joiners, which
some languages need."""
_COLOR = re.compile(r"(\x1b\[[\d;]*m)")
_SCHEME = re.compile(r"(?i)([a-z0-9+.-]{1,16}://)")
_URLS = re.compile(_SCHEME.pattern + r"\S+")
_END = "\"'<>:;,.)]}"
"""characters that may follow a URL in a sentence"""
_SECRET = re.compile(r"(?i)[?&;][^=&\s]*(sig|token|key|secret|passw|credential|auth)[^=&\s]*=")


def counted(number: int, name: str) -> str:
    """Return a number with the name of what it counts, such as 1 text and 2,000 texts."""
    return f"{number:,} {name}{'s' * (number != 1)}"


def printable(text: str) -> str:
    """Return a text with control characters escaped as in JSON, such as \\u001b."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def without_secrets(value: T) -> T:
    """Return a text, or a list, tuple or dictionary with texts in it, without the secrets of its URLs; other values
    unchanged.

    Of a web address (https://) this removes user, password, query and fragment; of other URLs a password with its user,
    and a query with a name like token or signature.
    """
    if isinstance(value, str):
        return _URLS.sub(_public, value) if "://" in value else value  # type: ignore[return-value]
    if isinstance(value, list | tuple):
        return type(value)(map(without_secrets, value))
    if isinstance(value, dict):
        return {name: without_secrets(each) for name, each in value.items()}  # type: ignore[return-value]
    return value


def _public(found: re.Match[str]) -> str:
    """Return one URL, or several without a space between them, without secrets."""
    _, *parts = _SCHEME.split(found[0])
    public = ""
    for scheme, rest in zip(parts[::2], parts[1::2], strict=True):
        on_web = scheme.lower() in ("http://", "https://")
        account, at, _ = rest.partition("/")[0].rpartition("@")
        if at and (on_web or ":" in account):
            rest = rest[len(account) + 1 :]
        public += scheme + rest
        query = re.search("[?#]", rest)
        if query and (on_web or _SECRET.search(rest)):
            end = found[0][len(found[0].rstrip(_END)) :]
            return public[: len(public) - len(rest) + query.start()] + end
    return public


class Printable:
    """Output stream that escapes control characters, and characters that its encoding does not have."""

    def __init__(self, raw: TextIO, colors: bool = False) -> None:
        """colors: do not escape the codes of colors. Use it only for text that does not come from others."""
        self._raw, self._colors = raw, colors

    @property
    def rich_proxied_file(self) -> TextIO:
        """The stream itself, for `Console`, which escapes text and then adds colors and cursor movements."""
        return self._raw

    def write(self, text: str) -> int:
        parts = _COLOR.split(text) if self._colors else [text]
        self._raw.write("".join(part if i % 2 else printable(part) for i, part in enumerate(parts)))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


class Console(rich.console.Console):
    """Console of rich that escapes text, but not rich's own colors and cursor movements."""

    @property
    def is_terminal(self) -> bool:
        """Whether a progress bar can be drawn: not in a notebook, which may call its output a terminal but keeps every
        line. A kernel of Jupyter has JPY_PARENT_PID in the environment."""
        return super().is_terminal and "JPY_PARENT_PID" not in os.environ

    @property
    def file(self) -> Any:
        """Stream that rich writes to: never `Printable`, which would escape rich's own codes. While a progress bar is
        shown, rich wraps the standard streams once more."""
        found: Any = rich.console.Console.file.fget(self)  # type: ignore[attr-defined]
        return found.rich_proxied_file if isinstance(found, Printable) else found

    @file.setter
    def file(self, new: Any) -> None:
        rich.console.Console.file.fset(self, new)  # type: ignore[attr-defined]

    def render(self, *given: Any, **options: Any) -> Iterator[Segment]:
        for segment in super().render(*given, **options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


class _Standard(io.FileIO):
    """Standard output or error of a command. It becomes /dev/null when its terminal is gone, for example because an ssh
    session was lost; and, while `calling_when_unread`, when its reader is."""

    when_unread: Callable[[], None] | None = None

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._was_terminal = self.isatty()  # False once it is gone

    def write(self, data: Any) -> Any:
        try:
            return super().write(data)
        except OSError as error:
            unread = _Standard.when_unread if error.errno == errno.EPIPE else None
            if not unread and not (error.errno == errno.EIO and self._was_terminal):
                raise
        _discard(self.fileno())
        if unread:
            unread()
        return len(data)


@contextlib.contextmanager
def calling_when_unread(act: Callable[[], None]) -> Iterator[None]:
    """Call `act`, and discard output, where a command would end because the reader of its output has ended."""
    _Standard.when_unread = act
    try:
        yield
    finally:
        _Standard.when_unread = None


def _discard(descriptor: int) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


def print_safely() -> None:
    """Make the standard streams of this process `Printable`, in any encoding; a closed one becomes /dev/null."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # else the next file that is opened would take its number, and get what is printed
            os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name) or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        if isinstance(stream, Printable):
            continue
        if stream is getattr(sys, f"__{name}__"):
            file: Any = _Standard(stream.fileno())
            buffer = file if stream.write_through else io.BufferedWriter(file)
            modes = {mode: getattr(stream, mode) for mode in ("encoding", "line_buffering", "write_through")}
            stream = io.TextIOWrapper(buffer, errors="backslashreplace", **modes)
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
        setattr(sys, name, Printable(stream))


@contextlib.contextmanager
def printing_colors() -> Iterator[None]:
    """Let the color codes of a terminal through to the standard output while the body prints."""
    raw = getattr(sys.stdout, "rich_proxied_file", sys.stdout)
    with contextlib.redirect_stdout(Printable(raw, colors=True)):
        yield


@contextlib.contextmanager
def printing_bars() -> Iterator[None]:
    """Let a library draw its progress bars on the standard error while the body runs."""
    with contextlib.redirect_stderr(getattr(sys.stderr, "rich_proxied_file", sys.stderr)):
        yield


@contextlib.contextmanager
def progress(shown: bool = True) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a line on the terminal while the body runs. Without a terminal it shows nothing.

    Print to the standard output only after the body: rich would redirect it to the terminal.
    """
    if not shown:
        yield lambda line: None
        return
    with Console(stderr=True).status("reading") as status:
        yield status.update


@contextlib.contextmanager
def printing_until_unread() -> Iterator[None]:
    """Print to the standard output. If its reader, such as head, ends, stop without an error."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        if not is_reader_gone():
            raise


def is_reader_gone() -> bool:
    """Return True if the reader of the standard output has ended. Later output is then discarded."""
    try:
        os.write(sys.stdout.fileno(), b"\n")  # a flush may have nothing left to write
    except BrokenPipeError:
        # Python flushes at exit, and would report the closed pipe once more.
        _discard(sys.stdout.fileno())
        return True
    return False


@functools.cache
def tell(note: str) -> None:
    """Print a note, once per process."""
    print("note:", printable(without_secrets(" ".join(note.split()))), file=sys.stderr)
