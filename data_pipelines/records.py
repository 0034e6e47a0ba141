"""Records: sequences of symbols in one or several fields, and their form as a line of text.

A line holds the fields of a record in order, with a tab between them. Symbols of the levels word and item have a space
between them, and a space inside a symbol is written as ▁. Symbols of the other levels stand side by side. After the
mark KEY a line may hold the value by which the record is held out, which no model reads.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

from xlnet_jax.errors import InputError

FIELD, SYMBOL, KEY = "\t", " ", "\x1e"
MISSING = "\ufffd"  # in place of a value that is missing; never in a vocabulary
SPACE = "\u2581"
ALPHABETS = {"protein": "ACDEFGHIKLMNPQRSTVWYBZXUO", "dna": "ACGTUNRYSWKMBDHV"}
PATTERNS = {"smiles": r"\[[^\]\s]+\]|Br|Cl|%\d\d|[BCNOPSFIbcnops]|[-=#$:/\\.()~*+@\d]"}
SPACED = ("word", "item")
LEVELS = "character, word, item, protein, dna, smiles or /REGULAR EXPRESSION/"

Unknown = Literal["refuse", "count"]
"""What to do with a symbol outside a named alphabet and with a missing value: raise InputError, or read `<unk>`"""


class RecordField(NamedTuple):
    """A field of a record: the name of a column, and what its symbols are."""

    name: str
    level: str

    @classmethod
    def of(cls, text: str) -> RecordField:
        """Read NAME:LEVEL; without a level it is character. Raises InputError for other levels."""
        name, _, level = text.partition(":")
        field = cls(name, level or "character")
        is_pattern = len(level) > 2 and level[0] == level[-1] == "/"
        if not name or not (is_pattern or field.level in ("character", *SPACED, *ALPHABETS, *PATTERNS)):
            raise InputError("fields", text, f": give NAME:LEVEL, where LEVEL is {LEVELS}")
        if is_pattern:
            try:
                re.compile(level[1:-1])
            except re.error as error:
                raise InputError("fields", text, f"has no regular expression ({error})") from None
        return field

    @property
    def alphabet(self) -> str | None:
        """All symbols of a named alphabet; None = the text decides."""
        return ALPHABETS.get(self.level)

    @property
    def pattern(self) -> re.Pattern[str] | None:
        """Regular expression of one symbol; None = a character, or what stands between spaces."""
        if self.level in PATTERNS or self.level.startswith("/"):
            return re.compile(PATTERNS.get(self.level) or self.level[1:-1])
        return None

    def text_of(self, value: Any) -> tuple[str, str]:
        """Return (the form of a value in a line, what is wrong with the value). value: a string, a whole number, or a
        list of them; what is wrong completes "record 3 of x.csv …", and is "" if nothing is."""
        values = value if isinstance(value, list | tuple) else [value]
        words: list[str] = []
        for one in values:
            if isinstance(one, float) or (self.level == "item" and re.fullmatch(r"-?\d+\.\d*", str(one).strip())):
                what = "a symbol is text or a whole number"
                return "", f"has {one} in {self.name!r}: {what}"
            if one is None or isinstance(one, bool) or not isinstance(one, str | int):
                if one is None and value is None:
                    break
                return "", f"has {one!r} in {self.name!r}, which is neither text nor a whole number"
            text = " ".join(str(one).split())
            if text:
                words.append(text.replace(" ", SPACE) if isinstance(value, list | tuple) else text)
        text = (SYMBOL if self.level in SPACED else "").join(words)
        if not text:
            return MISSING, f"has nothing in {self.name!r}"
        if self.alphabet:
            text = text.upper()
        return text, self._fault(text)

    def _fault(self, text: str) -> str:
        where = f"in {self.name!r}, outside the alphabet {self.level}"
        if self.alphabet:
            rest = text.strip(self.alphabet)  # from both ends: empty if all symbols are known
            return f"has the symbol {rest[0]!r} {where}" if rest else ""
        if (pattern := self.pattern) and "".join(found := pattern.findall(text)) != text:
            known = 0
            for symbol in found:
                if not text.startswith(symbol, known):
                    break
                known += len(symbol)
            return f"has {text[known : known + 10]!r} {where}"
        return ""

    def symbols(self, text: str) -> list[str]:
        """Return the symbols of a field in a line."""
        if text == MISSING:
            return [MISSING]
        if self.level in SPACED:
            return text.split(SYMBOL)
        if (pattern := self.pattern) is None:
            return list(text)
        found = pattern.findall(text)
        return found if "".join(found) == text else _with_the_rest(pattern, text)


def _with_the_rest(pattern: re.Pattern[str], text: str) -> list[str]:
    """Return the symbols of a text, and each other character by itself."""
    found, at = list[str](), 0
    for match in pattern.finditer(text):
        found += [*text[at : match.start()], match[0]]
        at = match.end()
    return [*found, *text[at:]]


@dataclass(frozen=True)
class RecordFormat:
    """How records are read."""

    fields: tuple[str, ...]
    """NAME:LEVEL of each field, in their order in a record"""
    group_by: str | None = None
    """column whose equal values make one record of the rows that follow each other"""
    unknown: Unknown = "refuse"
    key: str | None = None
    """column by whose value records are held out; None = by the whole record"""

    @cached_property
    def parsed(self) -> tuple[RecordField, ...]:
        """The fields. Raises InputError as `RecordField.of`, and if two have one name."""
        parsed = tuple(map(RecordField.of, self.fields))
        if len({field.name for field in parsed}) < len(parsed):
            raise InputError("fields", " ".join(self.fields), "names a field twice")
        return parsed

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns that are read."""
        extra = [name for name in (self.group_by, self.key) if name]
        return tuple(dict.fromkeys([*(field.name for field in self.parsed), *extra]))

    def line_of(self, values: Sequence[Any], key: Any = None) -> tuple[str, str]:
        """Return (the line of a record, what is wrong with it). values: of each field, as in `RecordField.text_of`.

        What is wrong completes "record 3 of x.csv …"; a fault that `unknown` allows is none.
        """
        texts, faults = zip(*(f.text_of(value) for f, value in zip(self.parsed, values, strict=True)), strict=True)
        fault = next(filter(None, faults), "")
        if self.unknown == "count" and "" not in texts and any(text != MISSING for text in texts):
            fault = ""
        line = FIELD.join(texts)
        return (f"{line}{KEY}{' '.join(str(key).split())}" if self.key else line), fault
