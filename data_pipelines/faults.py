"""One policy for records without a usable text, for every reader (docs/data.md, "Faulty records").

- Strict where a model learns (`Faults.skip`): faulty records are left out, counted and named; too many are an error.
- Row-preserving where a model is used (`Faults.keep`): they keep their place, with a value that the command states.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from xlnet_jax.errors import InputError
from xlnet_jax.printing import tell

MOST_SKIPPED = 0.05
"""Largest share of faulty records with which training continues. Blank texts do not count"""
NAMED, LONG = 3, 20  # records, and the characters of a fault that is not repeated
FIRST = 1000  # records: if all of them are faulty, a setting is wrong, and the rest is not read


class TextRow(NamedTuple):
    """A record of a file, such as a line or a row, with its text."""

    where: str  # for messages
    text: str
    id: Any = None
    fault: str = ""  # why the text is missing, as the end of a sentence that begins with `where`
    remedy: str = ""  # what to do if all records have this fault

    @property
    def is_blank(self) -> bool:
        return not self.text or self.text.isspace()


class Faults:
    """Counts records, and names the first without a usable text."""

    def __init__(self) -> None:
        self.read = self.blank = self.faulty = 0
        self._named: list[tuple[str, str]] = []
        self._remedy = ""

    def add(self, row: TextRow) -> None:
        """Count a record whose text is blank, or missing because of a fault."""
        self.blank += not row.fault
        self.faulty += bool(row.fault)
        self._remedy = row.remedy
        if len(self._named) < NAMED:
            self._named.append((row.where, row.fault or "is blank"))

    def texts(self, rows: Iterable[TextRow]) -> Iterator[str]:
        """Yield the texts to train on."""
        for row in rows:
            self.read += 1
            if not row.is_blank:
                yield row.text
                continue
            self.add(row)
            if self.faulty == self.read == FIRST:
                self.skip()

    def skip(self) -> None:
        """Print how many records were left out. Raises InputError if too many are faulty."""
        if self.faulty > MOST_SKIPPED * self.read:
            remedy = (self.faulty == self.read and self._remedy) or "fix or remove them"
            raise InputError(
                f"{self} ({self.faulty:,} of {self.read:,} records are faulty, and at most {MOST_SKIPPED:.0%} are "
                f"skipped): {remedy}"
            )
        self._tell("and are skipped")

    def watch(self, rows: Sequence[TextRow], have_pieces: Iterable[bool]) -> None:
        """Count rows of a use, and which of them the tokenizer found pieces in."""
        for row, has_pieces in zip(rows, have_pieces, strict=True):
            self.read += 1
            if not has_pieces:
                self.add(row if row.fault or row.is_blank else row._replace(fault="has no pieces"))

    def keep(self, value: str) -> None:
        """Print which rows keep their place with this value, such as "zeros". Raises InputError if none has a text."""
        if self.blank + self.faulty == self.read:
            raise InputError(f"there is no text{': ' * bool(self._named)}{self}{self._remedy and f'; {self._remedy}'}")
        self._tell(f"and keep their place with {value}")

    def _tell(self, what: str) -> None:
        if count := self.blank + self.faulty:
            tell(f"{count:,} of {self.read:,} records have no text {what}: {self}")

    def __str__(self) -> str:
        shown: list[str] = []
        more = self.blank + self.faulty - len(self._named)
        for where, fault in self._named:
            is_known = len(fault) > LONG and shown and fault == self._named[0][1]
            shown.append(where if is_known else f"{where}{' ' * (fault[0] != ':')}{fault}")
        return "; ".join(shown) + (f"; and {more:,} more" if more else "")
