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
from typing import Any

from xlnet_jax.printing import without_secrets


class InputError(ValueError):
    """A mistake that a user can fix: a setting or an argument, its value, and why that cannot work, with what to do:
    `InputError("max_len", 0, "must be at least 1")`. If no setting is to blame, only a text.

    The line is "`max_len` 0 must be at least 1". `why` may begin with a colon, and a value of "" is left out. All names
    are attribute paths, in backticks within a text; a command prints them as flags, --max-len (`with_flags`). A text
    has flags only inside a whole command to run. Secrets are removed from URLs (`printing.without_secrets`).
    """

    exit_code = 2

    def __init__(self, name: str, value: Any = "", why: str = "") -> None:
        self.name, self.value, self.why = map(without_secrets, (name, value, why))
        super().__init__(*(self.name, self.value, self.why) if why else (self.name,))

    def __str__(self) -> str:
        if not self.why:
            return self.name
        value = " ".join(map(str, self.value)) if isinstance(self.value, list | tuple) else str(self.value)
        return f"`{self.name}`{' ' * bool(value)}{value}{'' if self.why.startswith(':') else ' '}{self.why}"


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
_NAME = re.compile(r"`((?:[a-z]\w*\.)*)([a-z]\w*)`(?: (True|False)\b)?")
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


def with_flags(text: str) -> str:
    """Return a text with each `name` of a setting spelled as its flag: `data.pack` False becomes --data.no-pack."""
    return _NAME.sub(lambda n: f"--{n[1]}{'no-' if n[3] == 'False' else ''}{n[2]}".replace("_", "-"), text)


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
