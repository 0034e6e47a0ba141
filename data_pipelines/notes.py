"""Tell the user on the standard error what was left out of a text."""

import functools
import sys


@functools.cache
def tell(note: str) -> None:
    """Print a note; the second time that a process has the same one to tell, print nothing."""
    print(f"note: {note}", file=sys.stderr)
