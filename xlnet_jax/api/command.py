"""Running a command: what a user can mend ends in one line and exit code 2 (errors.py lists the codes)."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence

from xlnet_jax.errors import CRASH, INTERRUPTED, USER_ERROR, InputError, exit_code
from xlnet_jax.storage.quiet_tensorflow import keep_tensorflow_quiet


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
