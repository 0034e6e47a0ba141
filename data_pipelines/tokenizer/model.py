"""Encode text to ids and decode ids, with a SentencePiece model and its settings, or with a Hugging Face tokenizer."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import sentencepiece
from etils import epath

from data_pipelines.records import RecordFormat
from data_pipelines.tokenizer.foreign import SETTINGS as FOREIGN_SETTINGS
from data_pipelines.tokenizer.foreign import (
    TOKENIZER_CONFIG,
    TOKENIZER_JSON,
    WORDPIECES,
    ForeignPieces,
    is_foreign,
    model_in,
)
from data_pipelines.tokenizer.normalization import Normalization, guess_normalization
from data_pipelines.tokenizer.pieces import SPACE, SPECIAL_PIECES, UNK, PieceTables
from data_pipelines.tokenizer.settings import (
    SAMPLE_LINES,
    TokenizerSettings,
    TokenLevel,
    read_settings,
    settings_of_hugging_face,
)
from data_pipelines.tokenizer.symbols import SETTINGS as SYMBOL_SETTINGS
from data_pipelines.tokenizer.symbols import SYMBOLS_JSON, SymbolPieces, are_symbols, count_symbols
from data_pipelines.tokenizer.training import SAMPLE_BYTES, adapt_model, sample, train_model
from xlnet_jax.errors import InputError
from xlnet_jax.settings.fields import list_of_texts
from xlnet_jax.storage import hub
from xlnet_jax.storage.outputs import complete_folder
from xlnet_jax.storage.reading import read_document, read_json

MODEL_FILE, SETTINGS_FILE = "spiece.model", "tokenizer_settings.json"
FOLDER_FILES = (MODEL_FILE, SETTINGS_FILE, SYMBOLS_JSON, TOKENIZER_JSON, WORDPIECES, TOKENIZER_CONFIG)
"""All files that `Tokenizer.load` may read in a folder"""
UNITS = {"word": re.compile(f"{SPACE}[^{SPACE}]*"), "character": re.compile(".", re.DOTALL)}
LONG_LINE = 2**16  # characters; longer lines are encoded in parts
PART = re.compile(rf"(.{{1,{LONG_LINE}}}|[^ ]+)(?: |\Z)", re.DOTALL)
"""A part of a long line, between spaces: as much as fits, or one longer word"""


KNOWN_SAMPLE, KNOWN_RECORDS, MOST_UNKNOWN = 200_000, 1_000, 0.5
"""Characters of a text, or records, that `Tokenizer.require_known` looks at, and the largest share of unknown letters
or symbols that it allows"""


class Tokenizer:
    """A vocabulary whose ids 0 to 8 are XLNet's special pieces, and its settings. Threads may share it."""

    def __init__(self, model: bytes, settings: TokenizerSettings, origin: str = "the tokenizer"):
        """Read the content of a .model file, a tokenizer.json or a symbols.json.

        Raises InputError, naming `origin`, if it is damaged or its ids 0 to 8 are not XLNet's special pieces.
        """
        self.model, self.settings, self._origin = model, settings, origin
        kinds = ((are_symbols, SymbolPieces), (is_foreign, ForeignPieces))
        kind = next((kind for fits, kind in kinds if fits(model)), _sentencepiece)
        self._processor: Any = kind(model, origin)
        self.vocab_size: int = self._processor.get_piece_size()
        for i, expected in enumerate(SPECIAL_PIECES):
            found = self.pieces[i] if i < self.vocab_size else "missing"
            if found != expected:
                raise InputError(
                    f"tokenizer {origin}: id {i} is {found}, but XLNet needs its special pieces at the ids 0 to "
                    f"{len(SPECIAL_PIECES) - 1}, here {expected}; add them (python -m data_pipelines.tokenizer adapt "
                    f"{origin} --out FOLDER), or train a tokenizer: python -m data_pipelines.tokenizer train"
                )

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[bytes, TokenizerSettings]]:
        return Tokenizer, (self.model, self.settings)

    @classmethod
    def load(cls, path: epath.PathLike, otherwise: Callable[[], TokenizerSettings] = TokenizerSettings) -> Tokenizer:
        """Read a tokenizer. path can be

        - a tokenizer folder, or a .model file with its settings beside it: our tokenizer_settings.json, or the
          tokenizer_config.json of Hugging Face;
        - a Hugging Face tokenizer without a .model file, such as BERT's: its tokenizer.json or its folder, with a
          tokenizer.json or vocab.txt;
        - the folder of a tokenizer of symbols, with a symbols.json;
        - a str that is not a local path: the name of a model that comes with the package, or of a model on the Hugging
          Face Hub, whose tokenizer is downloaded (storage/hub.py).

        otherwise: makes the settings of a .model file that has none; by default those of the original English models.
        Raises InputError if files are missing or damaged, or if the special pieces are not XLNet's.
        """
        path = epath.Path(_folder_of_model(path)).expanduser()
        if (symbols := path / SYMBOLS_JSON).exists():
            return cls(read_document(symbols), SYMBOL_SETTINGS, str(path))
        if path.is_dir() and not (path / MODEL_FILE).exists() and (foreign := model_in(path)):
            return cls(foreign, FOREIGN_SETTINGS, str(path))
        if path.name == TOKENIZER_JSON and path.exists():
            return cls(read_document(path), FOREIGN_SETTINGS, str(path))
        file = path / MODEL_FILE if path.is_dir() else path
        if not file.exists():
            raise InputError(
                f"tokenizer {path}: no such file; give a SentencePiece model or a folder with {MODEL_FILE}"
            )
        return cls(read_document(file), _settings_beside(file) or otherwise(), str(file))

    @classmethod
    def train(
        cls,
        lines: Iterable[str],
        vocab_size: int,
        normalization: Normalization | Literal["auto"],
        *,
        token_level: TokenLevel = "piece",
        lower: bool = False,
        sample_bytes: int = SAMPLE_BYTES,
        user_symbols: Sequence[str] = (),
    ) -> Tokenizer:
        """Train a tokenizer on the non-empty lines. Equal lines give equal bytes.

        vocab_size: number of pieces; for words and characters, the maximum; ignored for bytes. normalization: auto =
        none for bytes, else guessed from lines across the text. sample_bytes: if the text is larger, train on a uniform
        sample of its lines of this size. user_symbols: pieces that are never split or merged, such as <url>. Raises
        InputError for a symbol that cannot stay whole (`require_symbols`), and, with a size that works, if the
        vocabulary size is too large or too small for the text. Errors of `lines` pass through.
        """
        text = [] if token_level == "byte" else sample(lines, sample_bytes)[0]
        if normalization == "auto":
            step = -(-len(text) // SAMPLE_LINES) or 1
            normalization = "none" if token_level == "byte" else guess_normalization(text[::step])
        settings = TokenizerSettings.usual_for(normalization, lower, token_level)
        require_symbols(user_symbols, settings)
        normalized = (settings.normalize([line])[0] for line in text)
        model = train_model(normalized, vocab_size, settings.normalization, token_level, user_symbols)
        return cls(model, settings)

    @classmethod
    def of_symbols(
        cls, lines: Iterable[str], records: RecordFormat, min_count: int = 1, holds_out_last: bool = False
    ) -> Tokenizer:
        """Return the tokenizer of the symbols in lines of records; see `count_symbols`. Blank lines are skipped.
        holds_out_last: do not count the last symbol of each record."""
        if holds_out_last:
            lines = map(records.without_last, lines)
        lines = filter(None, lines)
        return cls(count_symbols(lines, records, min_count), SYMBOL_SETTINGS)

    @classmethod
    def adapt(cls, path: epath.PathLike) -> Tokenizer:
        """Return the tokenizer of a SentencePiece .model file that has not XLNet's special pieces. It makes the pieces
        of text that SentencePiece makes, with ids from 9 on; nothing else normalizes text before.

        Raises InputError if the file is missing or damaged, or has the special pieces.
        """
        file = epath.Path(path).expanduser()
        if not file.is_file():
            raise InputError(f"tokenizer {file}: no such file; give a SentencePiece .model file")
        model = read_document(file)
        processor = _sentencepiece(model, str(file))
        first = min(processor.get_piece_size(), len(SPECIAL_PIECES))
        if tuple(map(processor.id_to_piece, range(first))) == SPECIAL_PIECES:
            raise InputError(f"tokenizer {file} has XLNet's special pieces: use it as it is")
        settings = TokenizerSettings("none", split_digit_commas=False, remove_space=False)
        return cls(adapt_model(model), settings, str(file))

    def save(self, folder: epath.PathLike) -> None:
        """Write a new folder with the model and the settings. The folder appears only when it is complete."""
        with complete_folder(folder) as partial:
            self.write(partial)

    def write(self, folder: epath.Path) -> None:
        """Write the model and the settings into an empty folder."""
        if self.foreign or self.symbols:
            (folder / (TOKENIZER_JSON if self.foreign else SYMBOLS_JSON)).write_bytes(self.model)
            return
        (folder / MODEL_FILE).write_bytes(self.model)
        (folder / SETTINGS_FILE).write_text(json.dumps(self.settings.to_json(), indent=2) + "\n")

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the model and the settings, in hex. Tokenizers with the same value encode the same way."""
        return hashlib.sha256(self.model + json.dumps(self.settings.identity()).encode()).hexdigest()

    @property
    def foreign(self) -> ForeignPieces | None:
        """Hugging Face vocabulary of this tokenizer; None for a SentencePiece model."""
        return self._processor if isinstance(self._processor, ForeignPieces) else None

    @property
    def symbols(self) -> SymbolPieces | None:
        """Vocabulary of symbols of this tokenizer; None for one of prose."""
        return self._processor if isinstance(self._processor, SymbolPieces) else None

    @property
    def records(self) -> RecordFormat | None:
        """Form of the records that this tokenizer reads; None for one of prose."""
        return self.symbols.records if self.symbols else None

    @cached_property
    def field_of_V(self) -> np.ndarray:
        """Index of the field of each piece, int32 [V]; 0 in prose."""
        return self.symbols.field_of_V if self.symbols else np.zeros(self.vocab_size, np.int32)

    @cached_property
    def unknown_ids(self) -> list[int]:
        """Ids of the unknown piece, of each field."""
        return self.symbols.unknown_ids if self.symbols else [UNK]

    @cached_property
    def pieces(self) -> list[str]:
        """Text of each id, with ▁ for a space."""
        try:
            return [self._processor.id_to_piece(i) for i in range(self.vocab_size)]
        except UnicodeDecodeError as error:
            raise InputError(f"tokenizer {self._origin}: one of its pieces is not UTF-8 ({error})") from None

    @cached_property
    def tables(self) -> PieceTables:
        """Tables of where words and sentences begin, and of the lengths of pieces."""
        if self.symbols:
            return self.symbols.tables
        level, first = self.settings.token_level, len(SPECIAL_PIECES)
        byte_values = [None] * first + list(range(256)) if level == "byte" else None
        return PieceTables.of(
            self.pieces, byte_values, unknown_is_word=level == "word", has_case=not self._is_lowercase
        )

    @property
    def _is_lowercase(self) -> bool:
        """True if the pieces have no capital letters, as in BERT's uncased vocabulary."""
        is_uncased = self.foreign is not None and not any(map(str.isupper, "".join(self.pieces)))
        return self.settings.lower or is_uncased

    @property
    def is_word_start(self) -> np.ndarray:
        """True for pieces that begin a word, bool [V]; see `PieceTables`."""
        return self.tables.is_word_start

    def encode_flat(self, lines: str | Iterable[str], threads: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Normalize and encode lines. Returns the concatenated ids of all lines, int32 [E], and the number of ids in
        each line, int64 [lines].

        threads: SentencePiece threads; None = one per core.
        """
        lines = list_of_texts(lines, "lines")  # a pandas Series is indexed by its labels
        if self.symbols:
            return self.symbols.encode_flat(lines)
        parts, part_counts = self._in_parts(self.settings.normalize(lines))
        encoded = self._processor.encode(parts, num_threads=threads or os.cpu_count() or 1, out_type="numpy")
        if self.settings.token_level in UNITS:
            encoded = [
                self._each_unknown(*pair) if UNK in pair[1] else pair[1] for pair in zip(parts, encoded, strict=True)
            ]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        ids = np.concatenate([np.zeros(0, np.int32), *encoded])
        if len(parts) > len(lines):
            lengths = np.add.reduceat(lengths, np.cumsum(part_counts) - part_counts)
        if self.settings.split_digit_commas and (splits := self.ends_in_digit_comma[ids]).any():
            return self._split_digit_commas(ids, lengths, np.flatnonzero(splits))
        return ids, lengths

    def encode_lines(self, lines: str | Iterable[str], threads: int | None = None) -> list[np.ndarray]:
        """Return the ids of each line, int32 [E] each. Like `encode_flat`, but with one array per line."""
        ids, lengths = self.encode_flat(lines, threads)
        return np.split(ids, np.cumsum(lengths)[:-1]) if len(lengths) else []

    def encode_pieces(self, lines: str | Iterable[str]) -> list[list[str]]:
        """Return the text of each id of `encode_lines`, with ▁ for a space, and the unknown characters instead of
        <unk>."""
        lines = list_of_texts(lines, "lines")
        if self.symbols:
            return list(self.symbols.encode(lines, out_type=str))
        pieces = [[self.pieces[i] for i in ids.tolist()] for ids in self.encode_lines(lines)]
        for line, of_line in zip(lines, pieces, strict=True):
            places = [k for k, piece in enumerate(of_line) if piece == SPECIAL_PIECES[UNK]]
            if places:
                parts, _ = self._in_parts(self.settings.normalize([line]))
                texts = (piece for part in self._processor.encode(parts, out_type=str) for piece in part)
                unknown = (unit for text in texts for unit in self._unknown_units(text))
                for k, text in zip(places, unknown, strict=True):
                    of_line[k] = text
        return pieces

    def require_known(self, texts: Iterable[str], name: str) -> float:
        """Return the share of the letters in texts that are in unknown pieces, 0 to 1; of a long text, in its first
        KNOWN_SAMPLE characters. Raises InputError, which calls the text `name`, where it is above MOST_UNKNOWN.

        Letters, because SentencePiece makes one piece of neighboring unknown characters, and knows the punctuation of
        most scripts.
        """
        if self.symbols:
            return self._require_known_symbols([*itertools.islice(texts, KNOWN_RECORDS)], name)
        lines, room = [], KNOWN_SAMPLE
        for text in texts:
            lines.append(text[:room])
            room -= len(lines[-1])
            if not room:
                break
        rows = self.encode_lines(lines)
        with_unknown = [i for i, ids in enumerate(rows) if UNK in ids]
        if not with_unknown:
            return 0.0
        texts_of = self.encode_pieces([lines[i] for i in with_unknown])
        pairs = (zip(rows[i], pieces, strict=True) for i, pieces in zip(with_unknown, texts_of, strict=True))
        unknown = [c for row in pairs for i, piece in row if i == UNK for c in piece if c.isalpha()]
        share = len(unknown) / max(sum(c.isalpha() for line in self.settings.normalize(lines) for c in line), 1)
        if share > MOST_UNKNOWN:
            example, _ = Counter(unknown).most_common(1)[0]
            raise InputError(
                f"{name}: the tokenizer does not know {share:.0%} of the letters, such as {example!r}, and would read "
                "them as <unk>: train a tokenizer on this text (python -m data_pipelines.tokenizer train) and a "
                "network with it, or take a checkpoint for this script"
            )
        return share

    def _require_known_symbols(self, lines: list[str], name: str) -> float:
        ids, _ = self.encode_flat(lines)
        if (share := float(np.isin(ids, self.unknown_ids).mean()) if len(ids) else 0.0) > MOST_UNKNOWN:
            raise InputError(
                f"{name}: the tokenizer does not know {share:.0%} of the symbols: train a network on records of this "
                "kind, or lower `min_count`"
            )
        return share

    def decode(self, ids: np.ndarray) -> str:
        """Return the text of ids, int [E], without control pieces such as <sep>."""
        text = self._processor.decode(np.asarray(ids).tolist())
        return text.removeprefix(" ") if self.settings.token_level == "byte" else text

    def _each_unknown(self, part: str, ids: np.ndarray) -> np.ndarray:
        """Return the ids with one <unk> per unknown word or character. SentencePiece merges adjacent ones."""
        texts = self._processor.encode(part, out_type=str)
        return np.repeat(ids, [len(self._unknown_units(text)) or 1 for text in texts])

    def _unknown_units(self, text: str) -> list[str]:
        """Return the unknown words or characters in one item of a segmentation, or an empty list if it is known."""
        if self._processor.piece_to_id(text) != UNK:
            return []
        unit = UNITS.get(self.settings.token_level)
        return unit.findall(text) if unit else [text]

    def _in_parts(self, lines: list[str]) -> tuple[list[str], np.ndarray]:
        """Cut long lines at spaces. Returns the parts, and the number of parts of each line.

        SentencePiece needs 20 bytes of memory per character of a line. Cutting changes ids only if two segmentations of
        a word agree in likelihood to three digits: the single-precision sums over a long line do not resolve more.
        """
        if max(map(len, lines), default=0) <= LONG_LINE or not self.words_are_independent:
            return lines, np.ones(len(lines), np.int64)
        parts = [PART.findall(line) if len(line) > LONG_LINE else [line] for line in lines]
        return [part for line in parts for part in line], np.array([len(line) for line in parts])

    @cached_property
    def words_are_independent(self) -> bool:
        """True if each word is encoded independently, because no piece of the vocabulary contains a space."""
        if self.settings.token_level != "piece" or self.symbols:
            return True
        words = [self._processor.encode(text, out_type=str) for text in ("a b", "a", "b")]
        return words[0] == words[1] + words[2] and not any(SPACE in piece[1:] for piece in self.pieces)

    @cached_property
    def ends_in_digit_comma(self) -> np.ndarray:
        """True for pieces such as '1,', which `TokenizerSettings.split_digit_commas` splits again: bool [V]."""
        return np.array([len(p) > 1 and p[-1] == "," and p[-2].isdigit() for p in self.pieces])

    @cached_property
    def _digits(self) -> dict[int, list[int]]:
        """For each piece that ends in a digit and a comma, the ids of the text before the comma."""
        found = {}
        for i in np.flatnonzero(self.ends_in_digit_comma):
            piece = self.pieces[i]
            digits = self._processor.encode(piece[:-1].replace(SPACE, ""), out_type=str)
            if not piece.startswith(SPACE) and digits[0].startswith(SPACE):
                digits = ([digits[0][1:]] if len(digits[0]) > 1 else []) + digits[1:]
            found[int(i)] = [self._processor.piece_to_id(p) for p in digits]
        return found

    def _split_digit_commas(
        self, ids: np.ndarray, lengths: np.ndarray, places: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        digits = [self._digits[i] for i in ids[places].tolist()]
        counts = np.array([len(d) for d in digits])
        line = np.searchsorted(np.cumsum(lengths), places, side="right")
        commas = ids.copy()
        commas[places] = self._processor.piece_to_id(",")
        split = np.insert(commas, np.repeat(places, counts), np.concatenate(digits))
        return split, lengths + np.bincount(line, counts, len(lengths)).astype(np.int64)


def require_symbols(symbols: Sequence[str], settings: TokenizerSettings) -> None:
    """Raise InputError for the first user-defined symbol that would not stay whole in a text."""
    if symbols and settings.token_level not in ("piece", "character"):
        raise InputError("user_symbols", symbols, f": a vocabulary of the level {settings.token_level} has none")
    for number, symbol in enumerate(symbols):
        normalized = settings.normalize([symbol])[0]
        if not symbol or SPACE in symbol or any(map(str.isspace, symbol)):
            why = "is empty or has a space in it; a symbol is one piece"
        elif symbol in symbols[:number]:
            why = "is given twice"
        elif symbol in SPECIAL_PIECES:
            why = "is one of XLNet's special pieces, which every tokenizer has"
        elif normalized != symbol:
            why = f"becomes {normalized!r} by normalization, as in any text: give it in that form"
        elif settings.split_digit_commas and re.search(r"\d,\Z", symbol):
            why = "ends in a digit and a comma, which are split in English"
        else:
            continue
        raise InputError("user_symbols", repr(symbol), why)


def _sentencepiece(model: bytes, origin: str) -> sentencepiece.SentencePieceProcessor:
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
    except RuntimeError:
        raise InputError(f"tokenizer {origin}: it is not a SentencePiece model, or is damaged") from None
    return processor


def _settings_beside(model: epath.Path) -> TokenizerSettings | None:
    ours, theirs = model.with_name(SETTINGS_FILE), model.with_name(TOKENIZER_CONFIG)
    if ours.exists():
        return read_settings(read_json(ours, Any, "delete it for the defaults"), str(ours))
    return settings_of_hugging_face(read_json(theirs), str(theirs)) if theirs.exists() else None


def _folder_of_model(name: epath.PathLike) -> epath.PathLike:
    """Return the folder of a model that comes with the package or is on the Hub, and download its tokenizer. Return any
    other path unchanged."""
    if hub.is_bundled(name):
        return hub.bundled_folder(str(name))
    if not hub.is_remote(name):
        return name
    model = hub.find(str(name), FOLDER_FILES)
    if not {MODEL_FILE, TOKENIZER_JSON, WORDPIECES} & set(model.files):
        raise InputError(
            f"tokenizer {model}: looked for {MODEL_FILE}, {TOKENIZER_JSON} or {WORDPIECES}; {model.contents()}"
        )
    return model.folder
