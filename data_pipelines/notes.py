"""Tell the user on the standard error what was left out of a text."""

import functools
import sys

from xlnet_jax.printing import printable, without_secrets


@functools.cache
def tell(note: str) -> None:
    """Print a note; the second time that a process has the same one to tell, print nothing."""
    print("note:", printable(without_secrets(" ".join(note.split()))), file=sys.stderr)
