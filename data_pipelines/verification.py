"""Compare the shards of a corpus with the checksums in its manifest, before their blocks are used."""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Iterable, Sequence

from etils import epath

from xlnet_jax.errors import InputError

AT_ONCE = 512 << 20
"""Largest split whose shards are read whole before their first block is used: bytes. In a larger one a thread reads
the shards while training goes on."""


class Verification:
    """SHA-256 checks of the shards of one split, each once, when its first block is wanted. Threads may share it."""

    def __init__(self, files: Sequence[epath.Path], sha256: Sequence[str], num_bytes: int, at_once: int | None = None):
        """Check nothing yet. files, sha256: shards and their checksums in hex; num_bytes: sum of their sizes.

        at_once: largest split, in bytes, whose shards are checked before they are used; None = AT_ONCE.
        """
        self._files, self._sha256 = files, sha256
        self._at_once = num_bytes <= (AT_ONCE if at_once is None else at_once)
        self._lock = threading.Lock()
        self._begun: set[int] = set()
        self._waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None

    def demand(self, shards: Iterable[int]) -> None:
        """Check the shards with these indices that were not checked before; in a large split, begin to.

        Raises InputError, with both checksums, for a shard that was altered; in a large split, once one was found.
        """
        with self._lock:
            for shard in sorted(set(shards) - self._begun):
                if self._at_once:
                    self._check(shard)
                else:
                    self._waiting.put(shard)
                self._begun.add(shard)
            if not self._at_once and self._thread is None:
                self._thread = threading.Thread(target=self._check_waiting, name="checksums of shards", daemon=True)
                self._thread.start()
        if self._failure:
            raise self._failure

    def demand_all(self) -> None:
        """Check every shard now. Raises InputError, with both checksums, for the first that was altered."""
        for shard in range(len(self._files)):
            self._check(shard)

    def _check_waiting(self) -> None:
        try:
            while True:
                self._check(self._waiting.get())
        except Exception as failure:  # of this thread, raised where blocks are read
            self._failure = failure

    def _check(self, shard: int) -> None:
        with self._files[shard].open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != self._sha256[shard]:
            folder, name = self._files[shard].parent, self._files[shard].name
            raise InputError(
                f"corpus {folder}: the shard {name} was altered, its sha256 is {found} and not {self._sha256[shard]}; "
                "delete the folder and prepare the corpus again"
            )
