"""Mistakes that a user can fix, and the exit codes of every command.

0 done · 1 a crash · 2 a mistake that the user can fix · 130 stopped by Ctrl-C · 141 stopped because the reader of the
output, such as head, has ended · 143 stopped by SIGTERM, SIGUSR1, SIGHUP or the platform, or because a connection was
lost · 134 with several hosts, aborted by jax because a host was lost. After 130, 141 and 143 a run has saved its state,
and the same command continues. Launchers restart a command after 1, 134 and 143, never after 2.
"""

import errno
import json
import re
import signal
from collections.abc import Collection
from typing import Any

from xlnet_jax.printing import without_secrets


class InputError(ValueError):
    """A mistake that a user can fix: one line that says what was wrong, where, and what to do.

    Library code writes an argument or a setting in backticks, as Python spells it: "`max_len` 0 must be at least 1". A
    command prints it as a flag, --max-len (`flags_for`). Library code writes a flag only inside a whole command to run.
    Secrets are removed from URLs (`printing.without_secrets`).
    """

    exit_code = 2

    def __init__(self, *message: object) -> None:
        super().__init__(*map(without_secrets, message))


class OtherRun(InputError):
    """A folder holds the work of another run: its settings or its text differ."""


USER_ERROR = InputError.exit_code
CRASH = 1
INTERRUPTED = 128 + signal.SIGINT
RESTART = 128 + signal.SIGTERM
"""Exit code of a run that the same command continues: stopped with its state saved, or after losing a host."""
UNREAD = 141
"""Exit code of a command whose output is no longer read: 128 + SIGPIPE, as for any program before head."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FAILING = (errno.EIO, errno.ESTALE, errno.EREMOTEIO)
"""Errors of a disk or a file server, which may go away: launchers restart the command"""
REFUSED = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
_ARGUMENT = re.compile(r"`([a-z]\w*(?:\.[a-z]\w*)*)`")
_DOTTED = re.compile(r"(?<![\w./-])(?<!\.json: )[a-z]+\.[a-z][\w-]*")
_MEMORY = re.compile(r"RESOURCE_EXHAUSTED|out of memory|OUT_OF_MEMORY", re.IGNORECASE)
_REFUSED_BY_BUCKET = re.compile(r"\b40[134]\b|permission|unauthenticated|not.?found", re.IGNORECASE)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an exception means that a device, the compiler or this machine has run out of memory.

    Errors of XLA are recognized by the names of their types, because importing jax takes seconds, and by the status in
    their text. RESOURCE_EXHAUSTED in other types is a full disk or a quota.
    """
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    types = {kind.__name__ for kind in type(error).__mro__}
    return bool(types & {"JaxRuntimeError", "XlaRuntimeError"} and _MEMORY.search(str(error)))


def flags_for(text: str, flags: Collection[str] = ()) -> str:
    """Replace each `argument` in a text of the library by its flag, and each setting that is among `flags` (dotted
    names, as data.seq-len). Names in a message about a JSON file stay as they are in the file."""
    text = _ARGUMENT.sub(lambda name: "--" + name[1].replace("_", "-"), text)
    return _DOTTED.sub(lambda name: f"--{flag}" if (flag := name[0].replace("_", "-")) in flags else name[0], text)


def first_line(error: BaseException) -> str:
    """Return the beginning of an exception's text, for a message of one line."""
    first, *_ = (str(error).strip() or type(error).__name__).splitlines()
    return first[:200].rstrip(".: ")


def shown(value: Any, length: int = 80) -> str:
    """Return the beginning of a value as JSON, for a message. The value may be anything that was in a file."""
    try:
        return json.dumps(value, default=str)[:length]
    except RecursionError:
        return "a value of hundreds of levels"


def exit_code(error: BaseException) -> int:
    """Exit code for an exception; launchers retry 1, not 2."""
    if isinstance(error, InputError):
        return error.exit_code
    if is_out_of_memory(error):
        return USER_ERROR
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, OSError):
        return USER_ERROR if error.errno in (*FULL, *REFUSED) else CRASH
    return USER_ERROR if "gs://" in str(error) and _REFUSED_BY_BUCKET.search(str(error)) else CRASH
