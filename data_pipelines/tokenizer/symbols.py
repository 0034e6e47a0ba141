"""A vocabulary of symbols, for sequences that are not prose: count the symbols of each field, encode and decode lines
of records (`data_pipelines.records`).

The file symbols.json has, for each field, its symbols in the order of their ids, after XLNet's special pieces, and how
many records of the training text have each length. With several fields, the piece of the symbol A of cdr3 is cdr3:A,
and each field after the first has an unknown symbol of its own, so that the id of a symbol tells its field.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from data_pipelines.records import FIELD, KEY, MISSING, SPACE, SPACED, SYMBOL, RecordFormat
from data_pipelines.tokenizer.pieces import SPECIAL_PIECES, UNK, Ending, First, PieceTables
from data_pipelines.tokenizer.settings import TokenizerSettings
from xlnet_jax.errors import InputError
from xlnet_jax.storage.reading import Count, naming_damage, parse_json

SYMBOLS_JSON = "symbols.json"
SETTINGS = TokenizerSettings("none", split_digit_commas=False, remove_space=False)
LINES_AT_ONCE = 4096
_BEGIN = re.compile(rb'\{\s*"symbols"')


def are_symbols(model: bytes) -> bool:
    """Return True for the bytes of a symbols.json."""
    return bool(_BEGIN.match(model))


def count_symbols(lines: Iterable[str], records: RecordFormat, min_count: int = 1) -> bytes:
    """Return the content of symbols.json for lines of records: the symbols of a named alphabet, or those that occur at
    least `min_count` times, the most frequent first; others are unknown.

    Raises InputError if a field has no symbol that often. Errors of `lines` pass through.
    """
    counts = [Counter[str]() for _ in records.parsed]
    lengths = [Counter[int]() for _ in records.parsed]
    lines = iter(lines)
    while chunk := [*itertools.islice(lines, LINES_AT_ONCE)]:
        for field, column, count, of_length in zip(
            records.parsed, _columns(chunk, records), counts, lengths, strict=True
        ):
            if field.level in SPACED or field.pattern:
                symbols = [field.symbols(text) for text in column]
                count.update(itertools.chain.from_iterable(symbols))
                of_length.update(map(len, symbols))
            else:
                count.update("".join(column))
                of_length.update(map(len, column))
    found = []
    for field, count in zip(records.parsed, counts, strict=True):
        del count[MISSING]
        kept = [symbol for symbol, times in count.items() if times >= min_count]
        if not kept:
            why = f": no symbol of {field.name!r} occurs so often; lower it"
            raise InputError("min_count", min_count, why)
        found.append([*field.alphabet] if field.alphabet else sorted(kept, key=lambda x: (-count[x], x)))
    content = {
        "symbols": dict(zip(records.fields, found, strict=True)),
        "lengths": [sorted(of_length.items()) for of_length in lengths],
        "group_by": records.group_by,
        "unknown": records.unknown,
    }
    return json.dumps(content, ensure_ascii=False, indent=1).encode()


class SymbolPieces:
    """The methods of SentencePieceProcessor that `Tokenizer` calls, for lines of records."""

    def __init__(self, model: bytes, origin: str) -> None:
        """Read a symbols.json. Raises InputError, naming `origin`, if it is damaged."""
        where = f"tokenizer {origin}"
        content = parse_json(model, where)
        with naming_damage(where):
            symbols = msgspec.convert(content["symbols"], dict[str, list[str]])
            self._lengths = msgspec.convert(content["lengths"], list[list[tuple[Count, Count]]])
            self.records = RecordFormat(tuple(symbols), content.get("group_by"), content.get("unknown", "refuse"))
        fields, several = self.records.parsed, len(symbols) > 1
        self._pieces, of_field = [*SPECIAL_PIECES], [0] * len(SPECIAL_PIECES)
        self._unknown, self._ids = list[int](), list[dict[str, int]]()
        for number, (field, of_one) in enumerate(zip(fields, symbols.values(), strict=True)):
            self._unknown.append(len(self._pieces) if number else UNK)
            names = [SPECIAL_PIECES[UNK], *of_one] if number else of_one
            first = len(self._pieces) + bool(number)
            self._pieces += [(f"{field.name}:{name}" if several else name).replace(" ", SPACE) for name in names]
            of_field += [number] * len(names)
            self._ids.append({symbol: first + i for i, symbol in enumerate(of_one)})
        self.field_of_V = np.array(of_field, np.int32)
        """Index of the field of each id, int32 [V]; 0 for special pieces."""

    @cached_property
    def tables(self) -> PieceTables:
        """Tables of the pieces: every symbol is a word, and nothing begins a sentence."""
        size, special = len(self._pieces), np.arange(len(self._pieces)) < len(SPECIAL_PIECES)
        counts = np.where(special & (np.arange(size) != UNK), 0, 1)
        return PieceTables(
            is_word_start=np.ones(size, bool),
            has_space=counts > 0,
            characters=counts,
            bytes=counts,
            is_closer=np.zeros(size, bool),
            ending=np.full(size, Ending.OPEN, np.int8),
            first=np.full(size, First.NOTHING, np.int8),
        )

    @property
    def unknown_ids(self) -> list[int]:
        """Ids of the unknown symbol of each field."""
        return self._unknown

    def ids_of(self, field: int) -> np.ndarray:
        """Return the ids of the known symbols of a field: int32 [symbols]."""
        return np.fromiter(self._ids[field].values(), np.int32)

    @property
    def longest(self) -> int:
        """Number of symbols of the longest record in the training text, as far as the fields tell."""
        return sum(max(n for n, _ in of) for of in self._lengths)

    def draw_length(self, field: int, least: int, most: int, uniform: float) -> int | None:
        """Return a length of a field, from `least` to `most`, as often as in the training text; None = no record has
        one. uniform: drawn from [0, 1)."""
        kept = [(n, count) for n, count in self._lengths[field] if least <= n <= most]
        if not kept:
            return None
        ends = np.cumsum([count for _, count in kept])
        return kept[int(np.searchsorted(ends, uniform * ends[-1], side="right"))][0]

    def log_prob_of_lengths(self, lengths: Sequence[int]) -> float:
        """Return the log-probability of the lengths of a record's fields, in nats: their shares of the training
        records, with one record added to each length up to the longest."""
        total = 0.0
        for length, counts in zip(lengths, self._lengths, strict=True):
            seen = dict(counts)
            records, longest = sum(seen.values()), max(seen)
            if len(seen) > 1 or length not in seen:
                total += float(np.log((seen.get(length, 0) + 1) / (records + longest)))
        return total

    def describe_lengths(self) -> str:
        """Return the mean length of each field in the training text, and the length of the longest record, as far as
        the fields tell."""
        means = [sum(n * count for n, count in of) / sum(count for _, count in of) for of in self._lengths]
        each = ", ".join(f"{f.name} {mean:.3g}" for f, mean in zip(self.records.parsed, means, strict=True))
        return f"of {sum(means):.1f} symbols{f' ({each})' if len(means) > 1 else ''}, at most {self.longest:,}"

    def get_piece_size(self) -> int:
        return len(self._pieces)

    def id_to_piece(self, i: int) -> str:
        return self._pieces[i]

    def piece_to_id(self, piece: str) -> int:
        return self._by_piece.get(piece, UNK)

    @cached_property
    def _by_piece(self) -> dict[str, int]:
        return {piece: i for i, piece in enumerate(self._pieces)}

    def encode_flat(self, lines: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of all lines, int32 [E], and the number of ids of each line, int64 [lines]."""
        of_line = np.zeros(len(lines), np.int64)
        if not (full := [line for line in lines if line]):
            return np.zeros(0, np.int32), of_line
        encoded = [self.encode_field(number, column) for number, column in enumerate(_columns(full, self.records))]
        lengths_FN = np.stack([lengths for _, lengths in encoded])
        of_line[[bool(line) for line in lines]] = lengths = lengths_FN.sum(0)
        if len(encoded) == 1:
            return encoded[0][0], of_line
        begins_FN = np.cumsum(lengths) - lengths + np.cumsum(lengths_FN, axis=0) - lengths_FN
        flat = np.empty(lengths.sum(), np.int32)
        for (ids, of_field), begins in zip(encoded, begins_FN, strict=True):
            flat[np.repeat(begins - (np.cumsum(of_field) - of_field), of_field) + np.arange(len(ids))] = ids
        return flat, of_line

    def encode_field(self, number: int, column: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of one field of all lines, int32 [E], and the number of ids of each line, int64 [lines]."""
        field, ids, unknown = self.records.parsed[number], self._ids[number], self._unknown[number]
        if field.level in SPACED or field.pattern:
            symbols = [field.symbols(text) for text in column]
            found = (ids.get(symbol, unknown) for of_record in symbols for symbol in of_record)
            lengths = np.fromiter(map(len, symbols), np.int64, len(symbols))
            return np.fromiter(found, np.int32, int(lengths.sum())), lengths
        table = self._of_characters[number]
        codes = np.frombuffer("".join(column).encode("utf-32-le"), np.uint32)
        return table[np.minimum(codes, len(table) - 1)], np.fromiter(map(len, column), np.int64, len(column))

    @cached_property
    def _of_characters(self) -> list[np.ndarray]:
        """The id of each character in each field; the last stands for all above."""
        tables = []
        for ids, unknown in zip(self._ids, self._unknown, strict=True):
            known = {ord(symbol): i for symbol, i in ids.items() if len(symbol) == 1}
            table = np.full(max(known, default=0) + 2, unknown, np.int32)
            table[[*known]] = [*known.values()]
            tables.append(table)
        return tables

    def encode(self, text: str | Sequence[str], num_threads: int = 1, out_type: Any = int) -> Any:
        """Encode lines with the arguments of SentencePiece's `encode`.

        out_type: int = lists of ids, "numpy" = arrays of ids, str = pieces, with the text of unknown symbols.
        """
        if isinstance(text, str):
            return self.encode([text], num_threads, out_type)[0]
        encoded = [self.encode_flat([line])[0] for line in text]
        if out_type is not str:
            return encoded if out_type == "numpy" else [ids.tolist() for ids in encoded]
        return [self._pieces_of(line, ids.tolist()) for line, ids in zip(text, encoded, strict=True)]

    def _pieces_of(self, line: str, ids: list[int]) -> list[str]:
        columns = _columns([line], self.records) if line else []
        symbols = [s for field, (text,) in zip(self.records.parsed, columns, strict=False) for s in field.symbols(text)]
        return [s if i in self._unknown else self._pieces[i] for i, s in zip(ids, symbols, strict=True)]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the line of these ids, without special pieces. Fields without symbols are left out at the end."""
        symbols: list[list[str]] = [[] for _ in self.records.parsed]
        for i in ids:
            if i in self._unknown or i >= len(SPECIAL_PIECES):
                number = int(self.field_of_V[i])
                symbols[number].append(MISSING if i in self._unknown else self._symbol_of[i])
        separators = [SYMBOL if field.level in SPACED else "" for field in self.records.parsed]
        return FIELD.join(s.join(of_one) for s, of_one in zip(separators, symbols, strict=True)).rstrip(FIELD)

    @cached_property
    def _symbol_of(self) -> dict[int, str]:
        return {i: symbol for ids in self._ids for symbol, i in ids.items()}


def _columns(lines: Sequence[str], records: RecordFormat) -> list[Sequence[str]]:
    """Return the column of each field of lines. Raises InputError for a line with another number of fields."""
    lines = [line.partition(KEY)[0] if KEY in line else line for line in lines]
    if len(records.parsed) == 1 and not any(FIELD in line for line in lines):
        return [lines]
    rows = [line.split(FIELD) for line in lines]
    if other := next((row for row in rows if len(row) != len(records.parsed)), None):
        names = ", ".join(field.name for field in records.parsed)
        raise InputError(
            f"the record {FIELD.join(other)[:40]!r} has {len(other)} fields, not the {len(records.parsed)} of the "
            f"tokenizer: {names}, with a tab between them"
        )
    return list(zip(*rows, strict=True))
