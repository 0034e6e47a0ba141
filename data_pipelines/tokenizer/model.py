"""A SentencePiece model, or a tokenizer of Hugging Face, and its settings at work: text to ids, and back."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import sentencepiece
from etils import epath

from data_pipelines.tokenizer.foreign import SETTINGS as FOREIGN_SETTINGS
from data_pipelines.tokenizer.foreign import TOKENIZER_JSON, ForeignPieces, is_foreign, model_in
from data_pipelines.tokenizer.normalization import Normalization
from data_pipelines.tokenizer.pieces import PieceTables
from data_pipelines.tokenizer.sampling import SAMPLE_BYTES, sample
from data_pipelines.tokenizer.settings import Settings, TokenLevel, read_settings
from data_pipelines.tokenizer.symbols import SPACE, SPECIAL_PIECES, UNK
from data_pipelines.tokenizer.training import train_model
from xlnet_jax.errors import InputError
from xlnet_jax.storage.folders import complete_folder

MODEL_FILE, SETTINGS_FILE = "spiece.model", "tokenizer_settings.json"
UNITS = {"word": re.compile(f"{SPACE}[^{SPACE}]*"), "character": re.compile(".", re.DOTALL)}
LONG_LINE = 2**16  # characters; SentencePiece gets longer lines in parts


class Tokenizer:
    """A vocabulary with XLNet's special pieces as ids 0 to 8, and its settings. Safe to share by threads."""

    def __init__(self, model: bytes, settings: Settings, origin: str = "the tokenizer"):
        """`model`: what a .model file holds. Raises InputError, naming `origin`, where it is not XLNet's kind."""
        self.model, self.settings = model, settings
        self._processor: Any = ForeignPieces(model, origin) if is_foreign(model) else _sentencepiece(model, origin)
        self.vocab_size: int = self._processor.get_piece_size()
        for i, expected in enumerate(SPECIAL_PIECES):
            found = self.pieces[i] if i < self.vocab_size else "missing"
            if found != expected:
                raise InputError(
                    f"tokenizer {origin}: id {i} is {found}, and XLNet needs {expected} there; leave --tokenizer out "
                    "of a training run, or make one that fits: python -m data_pipelines.tokenizer train"
                )

        if settings.token_level == "byte" and self.vocab_size != len(SPECIAL_PIECES) + 256:
            raise InputError(
                f"tokenizer {origin}: {SETTINGS_FILE} says token_level byte, and the model has {self.vocab_size} "
                f"pieces, not {len(SPECIAL_PIECES) + 256}; the two do not belong together"
            )

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[bytes, Settings]]:
        return Tokenizer, (self.model, self.settings)

    @classmethod
    def load(cls, path: epath.PathLike, otherwise: Callable[[], Settings] = Settings) -> Tokenizer:
        """Reads a tokenizer folder, or a .model file and the tokenizer_settings.json beside it; or one of Hugging
        Face's, as BERT's, by its tokenizer.json or vocab.txt.

        `otherwise`: makes the settings of a .model file without any; by default it is taken for one of the original's,
        for its English models.
        """
        path = epath.Path(path).expanduser()
        if path.is_dir() and not (path / MODEL_FILE).exists() and (foreign := model_in(path)):
            return cls(foreign, FOREIGN_SETTINGS, str(path))
        if path.name == TOKENIZER_JSON and path.exists():
            return cls(path.read_bytes(), FOREIGN_SETTINGS, str(path))
        file = path / MODEL_FILE if path.is_dir() else path
        if not file.exists():
            raise InputError(
                f"tokenizer {path}: no such file; give a SentencePiece model or a folder with {MODEL_FILE}"
            )
        settings_file = file.with_name(SETTINGS_FILE)
        settings = _settings_in(settings_file) if settings_file.exists() else otherwise()
        return cls(read_model(file), settings, str(file))

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
    ) -> Tokenizer:
        """A tokenizer for this text; empty lines do not count. The same lines give the same bytes.

        `vocab_size`: of words and characters the most there may be; bytes have their own. `normalization`: auto guesses
        it from the first lines. `sample_bytes`: of a text with more, a uniform sample of lines is learned from. Raises
        InputError where the text cannot have so large, or so small, a vocabulary, with the size that works; errors of
        `lines` pass through.
        """
        text = [] if token_level == "byte" else sample(lines, sample_bytes).lines
        settings = Settings.suited_to(text, normalization, lower, token_level)
        normalized = (settings.normalize([line])[0] for line in text)
        return cls(train_model(normalized, vocab_size, settings.normalization, token_level), settings)

    def save(self, folder: epath.PathLike) -> None:
        """Writes a new folder with the model and the settings; complete or not at all."""
        with complete_folder(folder) as partial:
            if self.foreign:
                (partial / TOKENIZER_JSON).write_bytes(self.model)
                return
            (partial / MODEL_FILE).write_bytes(self.model)
            (partial / SETTINGS_FILE).write_text(json.dumps(dataclasses.asdict(self.settings), indent=2) + "\n")

    @cached_property
    def sha256(self) -> str:
        """Of the model and of the settings: two tokenizers that share it encode alike."""
        return hashlib.sha256(self.model + json.dumps(self.settings.identity()).encode()).hexdigest()

    @property
    def foreign(self) -> ForeignPieces | None:
        """What it knows of the vocabulary of Hugging Face that it is made of, if it is."""
        return self._processor if isinstance(self._processor, ForeignPieces) else None

    @cached_property
    def pieces(self) -> list[str]:
        """The text of each id, with ▁ for a space."""
        return [self._processor.id_to_piece(i) for i in range(self.vocab_size)]

    @cached_property
    def tables(self) -> PieceTables:
        """What the pieces mean for words and sentences."""
        level, first = self.settings.token_level, len(SPECIAL_PIECES)
        byte_values = [None] * first + list(range(256)) if level == "byte" else None
        return PieceTables.of(
            self.pieces, byte_values, unknown_is_word=level == "word", has_case=not self._is_lowercase
        )

    @property
    def _is_lowercase(self) -> bool:
        """Whether text has lost its capitals, as with BERT's uncased."""
        is_uncased = self.foreign is not None and not any(map(str.isupper, "".join(self.pieces)))
        return self.settings.lower or is_uncased

    @property
    def is_word_start(self) -> np.ndarray:
        """bool [V], see `PieceTables`."""
        return self.tables.is_word_start

    def sentence_starts(self, ids: np.ndarray) -> np.ndarray:
        """bool [T] for ids int [T] of a line, see `PieceTables.sentence_starts`."""
        return self.tables.sentence_starts(ids)

    def encode_flat(self, lines: Sequence[str], threads: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The ids of all lines, int32 [T], one line behind the other, and how many each has, int64 [lines].

        Lines are normalised first. `threads` that SentencePiece uses; None = one a core.
        """
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
        if self.settings.split_digit_commas and (splits := self._ends_in_digit_comma[ids]).any():
            return self._split_digit_commas(ids, lengths, np.flatnonzero(splits))
        return ids, lengths

    def encode_lines(self, lines: Sequence[str], threads: int | None = None) -> list[np.ndarray]:
        """The ids of each line, int32 [T_i], as `encode_flat` has them."""
        ids, lengths = self.encode_flat(lines, threads)
        return np.split(ids, np.cumsum(lengths)[:-1]) if len(lines) else []

    def encode_pieces(self, lines: Sequence[str]) -> list[list[str]]:
        """The text of each id of `encode_lines`, with ▁ for a space; of <unk>, the characters that are unknown."""
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

    def decode(self, ids: np.ndarray) -> str:
        """The text of ids int [T]; control pieces such as <sep> vanish."""
        text = self._processor.decode(np.asarray(ids).tolist())
        return text.removeprefix(" ") if self.settings.token_level == "byte" else text

    def _each_unknown(self, part: str, ids: np.ndarray) -> np.ndarray:
        """The ids with an <unk> for each unknown word or character: SentencePiece puts neighbours together."""
        texts = self._processor.encode(part, out_type=str)
        return np.repeat(ids, [len(self._unknown_units(text)) or 1 for text in texts])

    def _unknown_units(self, text: str) -> list[str]:
        """What of this part of a segmentation is unknown: nothing, or a run of what its level cuts text into."""
        if self._processor.piece_to_id(text) != UNK:
            return []
        unit = UNITS.get(self.settings.token_level)
        return unit.findall(text) if unit else [text]

    def _in_parts(self, lines: list[str]) -> tuple[list[str], np.ndarray]:
        """The lines, long ones cut at spaces, and the number of parts of each.

        SentencePiece takes 20 bytes a character to segment a line. The ids are the same, but where two segmentations
        of a word are as likely to three digits: its sums, in single precision, cannot tell them in a long line.
        """
        if max(map(len, lines), default=0) <= LONG_LINE or not self._words_are_independent:
            return lines, np.ones(len(lines), np.int64)
        parts = [_cut_at_spaces(line) for line in lines]
        return [part for line in parts for part in line], np.array([len(line) for line in parts])

    @cached_property
    def _words_are_independent(self) -> bool:
        """Whether a line's pieces are those of its words, so for all models but those with pieces across spaces."""
        if self.settings.token_level != "piece":
            return True
        words = [self._processor.encode(text, out_type=str) for text in ("a b", "a", "b")]
        return words[0] == words[1] + words[2] and not any(SPACE in piece[1:] for piece in self.pieces)

    @cached_property
    def _ends_in_digit_comma(self) -> np.ndarray:
        return np.array([len(p) > 1 and p[-1] == "," and p[-2].isdigit() for p in self.pieces])

    @cached_property
    def _digits(self) -> dict[int, list[int]]:
        """Of each piece that ends in a digit and a comma: what is in front of the comma, encoded anew."""
        found = {}
        for i in np.flatnonzero(self._ends_in_digit_comma):
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


def _sentencepiece(model: bytes, origin: str) -> sentencepiece.SentencePieceProcessor:
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
    except RuntimeError:
        raise InputError(f"tokenizer {origin}: not a SentencePiece model, or a damaged one") from None
    return processor


def read_model(file: epath.Path) -> bytes:
    """What a .model file holds. InputError where it cannot be read."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise InputError(f"tokenizer {file} cannot be read: {error.strerror}") from None


def _settings_in(file: epath.Path) -> Settings:
    try:
        content = json.loads(file.read_text())
    except ValueError as error:
        raise InputError(f"tokenizer settings {file}: not readable ({error}); delete it for the original's") from None
    return read_settings(content, str(file))


def _cut_at_spaces(line: str) -> list[str]:
    """The line in parts of at most LONG_LINE characters where its words are no longer; a cut takes its space away."""
    parts, begin = [], 0
    while len(line) - begin > LONG_LINE:
        end = line.rfind(" ", begin + 1, begin + LONG_LINE + 1)
        if end < 0:
            end = line.find(" ", begin + LONG_LINE)
        if end < 0:
            break
        parts.append(line[begin:end])
        begin = end + 1
    return [*parts, line[begin:]]
