"""Records: sequences of symbols in one or several fields, and their form as a line of text.

A line holds the fields of a record in order, with a tab between them. Symbols of the levels word and item have a space
between them, and a space inside a symbol is written as ▁. Symbols of the other levels have nothing between them. After
the mark KEY a line may hold the value by which the record is held out, which no model reads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal, NamedTuple

from xlnet_jax.errors import InputError
from xlnet_jax.settings.common import RecordSettings

FIELD, SYMBOL, KEY = "\t", " ", "\x1e"
MISSING = "\ufffd"  # in place of a value that is missing; never in a vocabulary
SPACE = "\u2581"
ALPHABETS = {"protein": "ACDEFGHIKLMNPQRSTVWYBZXUO", "dna": "ACGTUNRYSWKMBDHV"}
PATTERNS = {"smiles": r"\[[^\]\s]+\]|Br|Cl|%\d\d|[BCNOPSFIbcnops]|[-=#$:/\\.()~*+@\d]"}
SPACED = ("word", "item")
_FLOAT = re.compile(rf"(?<![^{SYMBOL}])-?\d+\.\d*(?![^{SYMBOL}])")
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
                pattern = re.compile(level[1:-1])
            except re.error as error:
                raise InputError("fields", text, f"has no regular expression ({error})") from None
            if pattern.groups or pattern.match(""):
                raise InputError("fields", text, "must match a symbol, not an empty text; write groups as (?:…)")
        return field

    @property
    def alphabet(self) -> str | None:
        """All symbols of a named alphabet; None = the text decides."""
        return ALPHABETS.get(self.level)

    @property
    def pattern(self) -> re.Pattern[str] | None:
        """Regular expression of one symbol; None = a character, or the text between two spaces."""
        return _pattern_of(self.level)

    def text_of(self, value: Any) -> tuple[str, str]:
        """Return (the form of a value in a line, what is wrong with the value).

        value: a string, a whole number, or a list of them. An element of a list is one symbol at the levels word and
        item. What is wrong completes "record 3 of x.csv …" and is "" if nothing is. A value that cannot be read has the
        form "".
        """
        is_list, is_spaced = type(value) in (list, tuple), self.level in SPACED
        values = value if is_list else [value]
        if (kinds := {*map(type, values)}) != {str}:
            if kinds - {str, int, type(None)}:
                return "", self._fault_of_types(values)
            values = ["" if one is None else str(one) for one in values]
        words = SYMBOL.join(values).split()
        if is_list and words != values:  # a value has a space or nothing in it
            alone = MISSING if is_spaced else SPACE
            words = [SPACE.join(one.split()) or (alone if one else MISSING) for one in values]
        text = (SYMBOL if is_spaced else "" if is_list else SPACE).join(words)
        if not text or MISSING in words:
            place = f" at {words.index(MISSING) + 1}" if len(words) > 1 else ""
            return text or MISSING, f"has nothing{place} in {self.name!r}"
        if is_spaced:
            if self.level == "item" and "." in text and (number := _FLOAT.search(text)):
                return "", f"has {number[0]} in {self.name!r}, a float; round it, or read it with the level word"
            return text, ""
        text = text.upper() if self.alphabet else text
        return text, self._fault_of(text)

    def _fault_of_types(self, values: Sequence[Any]) -> str:
        value = next(one for one in values if type(one) not in (str, int, type(None)))
        what = "a float; write it as text or as a whole number" if isinstance(value, float) else "not text"
        return f"has {value!r} in {self.name!r}, {what}"

    def _fault_of(self, text: str) -> str:
        where = f"in {self.name!r}, outside the alphabet {self.level}"
        if self.alphabet:
            rest = text.strip(self.alphabet)  # from both ends: empty if all symbols are known
            return f"has the symbol {rest[0].replace(SPACE, ' ')!r} {where}" if rest else ""
        if (pattern := self.pattern) and "".join(found := pattern.findall(text)) != text:
            known = 0
            for symbol in found:
                if not text.startswith(symbol, known):
                    break
                known += len(symbol)
            return f"has {text[known : known + 10].replace(SPACE, ' ')!r} {where}"
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


@cache
def _pattern_of(level: str) -> re.Pattern[str] | None:
    is_pattern = level in PATTERNS or level.startswith("/")
    return re.compile(PATTERNS.get(level) or level[1:-1]) if is_pattern else None


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
    """column: consecutive rows with the same value in it form one record"""
    unknown: Unknown = "refuse"
    key: str | None = None
    """column by whose value records are held out; None = by the whole record"""

    @classmethod
    def of(cls, settings: RecordSettings) -> RecordFormat | None:
        """Return how these settings read records; None = they read prose."""
        key = None if settings.hold_out in ("record", "last") else settings.hold_out
        return cls(settings.fields, settings.group_by, settings.unknown, key) if settings.fields else None

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

    def count_symbols(self, line: str) -> int:
        """Return the number of symbols in a line."""
        texts = line.partition(KEY)[0].split(FIELD)
        return sum(len(field.symbols(text)) for field, text in zip(self.parsed, texts, strict=False))

    def without_last(self, line: str) -> str:
        """Return a line without its last symbol, of which its field must have others; "" if it is the only one."""
        *before, text = line.partition(KEY)[0].split(FIELD)
        rest = (SYMBOL if self.parsed[-1].level in SPACED else "").join(self.parsed[-1].symbols(text)[:-1])
        return FIELD.join([*before, rest or text]) if before or rest else ""

    def line_of(self, values: Sequence[Any], key: Any = None) -> tuple[str, str]:
        """Return (the line of a record, what is wrong with it). values: of each field, as in `RecordField.text_of`.

        What is wrong completes "record 3 of x.csv …"; a fault that `unknown` allows is none.
        """
        texts, fault = [], ""
        for field, value in zip(self.parsed, values, strict=True):
            text, wrong = field.text_of(value)
            texts.append(text)
            fault = fault or wrong
        if fault and self.unknown == "count" and "" not in texts and set(texts) != {MISSING}:
            fault = ""
        line = FIELD.join(texts)
        if self.key:
            words = [] if key is None else str(key).split()
            line, fault = f"{line}{KEY}{' '.join(words)}", fault or ("" if words else f"has nothing in {self.key!r}")
        return line, fault
