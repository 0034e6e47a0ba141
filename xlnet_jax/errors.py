"""Mistakes that a user can mend, and the exit codes of every command. Imports nothing of this project.

0 done · 1 a crash · 2 something the user can mend · 130 stopped by Ctrl-C · 143 stopped by SIGTERM, SIGUSR1 or the
platform, or without one of its hosts. 130 and 143 come with the state saved: the same command goes on. Launchers start
a command again after 1 and 143, never after 2.
"""

import errno
import re
import signal


class InputError(ValueError):
    """Something a user can mend: one line that says what was wrong, where, and what to do."""

    exit_code = 2


USER_ERROR = InputError.exit_code
CRASH = 1
INTERRUPTED = 128 + signal.SIGINT
RESTART = 128 + signal.SIGTERM
"""Exit code of a run that goes on with the same command: stopped with its state saved, or without one of its hosts."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
REFUSED = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
_REFUSED_BY_BUCKET = re.compile(r"\b40[134]\b|permission|unauthenticated|not.?found", re.IGNORECASE)


def exit_code(error: BaseException) -> int:
    """Exit code for an exception; launchers retry 1, not 2."""
    if isinstance(error, InputError):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, OSError):
        return USER_ERROR if error.errno in (*FULL, *REFUSED) else CRASH
    return USER_ERROR if "gs://" in str(error) and _REFUSED_BY_BUCKET.search(str(error)) else CRASH
