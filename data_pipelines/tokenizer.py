"""XLNet's SentencePiece tokenizer: text normalisation, training, encoding, and what each piece of it means.

A tokenizer on disk is a folder: spiece.model, and tokenizer_settings.json with what SentencePiece does not keep.
A model without the settings is taken for one of the original's.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import itertools
import json
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import sentencepiece

from data_pipelines.atomic import complete_folder
from data_pipelines.pieces import SPACE, PieceTables
from xlnet_jax.config import InputError

SPECIAL_PIECES = ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")
UNK, BOS, EOS, CLS, SEP, PAD, MASK, EOD, EOP = range(len(SPECIAL_PIECES))

MODEL_FILE, SETTINGS_FILE = "spiece.model", "tokenizer_settings.json"

# The recipe of the released models (README.md of the original).
RECIPE: dict[str, Any] = {
    "model_type": "unigram",
    "character_coverage": 0.99995,
    "control_symbols": ["<cls>", "<sep>", "<pad>", "<mask>", "<eod>"],
    "user_defined_symbols": ["<eop>", ".", "(", ")", '"', "-", "–", "£", "€"],
    "shuffle_input_sentence": True,
    "input_sentence_size": 10_000_000,
}
SAMPLE_LINES = 10_000  # lines that decide the normalisation
ENGLISH_SHARE = 0.99  # of the letters in ASCII

Normalization = Literal["english", "nfkc", "none"]


@dataclass(frozen=True)
class Settings:
    """How text is treated around SentencePiece. The defaults are the original's, for its English models."""

    normalization: Normalization = "english"
    split_digit_commas: bool = True
    """pieces such as '1,' are split once more, into the digits and the comma (prepro_utils.py, encode_pieces)"""

    @classmethod
    def suited_to(cls, lines: Iterable[str], normalization: Normalization | Literal["auto"]) -> Settings:
        """Settings of this normalisation; auto = what the lines look like. The digit rule belongs to English."""
        kind = guess_normalization(lines) if normalization == "auto" else normalization
        return cls(kind, split_digit_commas=kind == "english")


def normalize(text: str, kind: Normalization) -> str:
    """The text with its white space collapsed, and more: english = straight double quotes, NFKD, accents dropped
    (preprocess_text of prepro_utils.py); nfkc = NFKC; none = no more."""
    text = " ".join(text.split())
    if kind == "english":
        text = text.replace("``", '"').replace("''", '"')
        if not text.isascii():
            text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    elif kind == "nfkc":
        text = unicodedata.normalize("NFKC", text)
    return text


def guess_normalization(lines: Iterable[str]) -> Normalization:
    """english where at least 99 % of the letters are ASCII, else nfkc: dropping marks ruins most other scripts."""
    letters = [c for line in lines for c in line if c.isalpha()]
    return "english" if sum(map(str.isascii, letters)) >= ENGLISH_SHARE * len(letters) else "nfkc"


class Tokenizer:
    """A SentencePiece model with XLNet's special pieces as ids 0 to 8, and its settings. Safe to share by threads."""

    def __init__(self, model: bytes, settings: Settings, origin: str = "the tokenizer"):
        """`model`: what a .model file holds. Raises InputError, naming `origin`, where it is not XLNet's kind."""
        self.model, self.settings = model, settings
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except RuntimeError:
            raise InputError(f"tokenizer {origin}: not a SentencePiece model, or a damaged one") from None
        self.vocab_size: int = self._processor.get_piece_size()
        for i, expected in enumerate(SPECIAL_PIECES):
            found = self.pieces[i] if i < self.vocab_size else "missing"
            if found != expected:
                raise InputError(
                    f"tokenizer {origin}: id {i} is {found}, and XLNet needs {expected} there; leave --tokenizer out, "
                    "and one that fits is trained on the corpus"
                )

    @classmethod
    def load(cls, path: Path, otherwise: Settings | None = None) -> Tokenizer:
        """Reads a tokenizer folder, or a .model file and the tokenizer_settings.json beside it.

        `otherwise`: the settings of a .model file without one; None = the original's, for its English models.
        """
        file = path / MODEL_FILE if path.is_dir() else path
        if not file.is_file():
            raise InputError(
                f"tokenizer {path}: no such file; give a SentencePiece model or a folder with {MODEL_FILE}"
            )
        settings_file = file.with_name(SETTINGS_FILE)
        settings = _settings_in(settings_file) if settings_file.exists() else otherwise or Settings()
        return cls(read_model(file), settings, str(file))

    @classmethod
    def train(cls, lines: Iterable[str], vocab_size: int, normalization: Normalization | Literal["auto"]) -> Tokenizer:
        """A tokenizer for this text; empty lines do not count. The same lines give the same bytes.

        `normalization`: auto guesses it from the first lines. Raises InputError where the text cannot have so large, or
        so small, a vocabulary, with the size that works; errors of `lines` pass through.
        """
        lines = filter(None, lines)
        first = list(itertools.islice(lines, SAMPLE_LINES))
        settings = Settings.suited_to(first, normalization)
        kind = settings.normalization
        text = (normalize(line, kind) for line in itertools.chain(first, lines))
        return cls(_train(text, vocab_size, kind), settings)

    def save(self, folder: Path) -> None:
        """Writes a new folder with the model and the settings; complete or not at all."""
        with complete_folder(folder) as partial:
            (partial / MODEL_FILE).write_bytes(self.model)
            (partial / SETTINGS_FILE).write_text(json.dumps(dataclasses.asdict(self.settings), indent=2) + "\n")

    @cached_property
    def sha256(self) -> str:
        """Of the model and of the settings: two tokenizers that share it encode alike."""
        return hashlib.sha256(self.model + json.dumps(dataclasses.asdict(self.settings)).encode()).hexdigest()

    @cached_property
    def pieces(self) -> list[str]:
        """The text of each id, with ▁ for a space."""
        return [self._processor.id_to_piece(i) for i in range(self.vocab_size)]

    @cached_property
    def tables(self) -> PieceTables:
        """What the pieces mean for words and sentences."""
        return PieceTables.of(self.pieces)

    @property
    def is_word_start(self) -> np.ndarray:
        """bool [V], see `PieceTables`."""
        return self.tables.is_word_start

    def sentence_starts(self, ids: np.ndarray) -> np.ndarray:
        """bool [T] for ids int [T] of a line, see `PieceTables.sentence_starts`."""
        return self.tables.sentence_starts(ids)

    def encode_lines(self, lines: Sequence[str]) -> list[np.ndarray]:
        """The ids of each line, int32 [T_i], by one call that uses all cores. Lines are normalised first."""
        text = [normalize(line, self.settings.normalization) for line in lines]
        encoded = self._processor.encode(text, num_threads=os.cpu_count() or 1)
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        flat = np.fromiter(itertools.chain.from_iterable(encoded), np.int32, lengths.sum())
        rows = np.split(flat, np.cumsum(lengths)[:-1]) if len(lines) else []
        if self.settings.split_digit_commas and (split := self._ends_in_digit_comma[flat]).any():
            for row in np.unique(np.repeat(np.arange(len(rows)), lengths)[split]):
                rows[row] = self._split_digit_commas(rows[row])
        return rows

    def encode_flat(self, lines, threads=None):
        rows = self.encode_lines(lines)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        return np.concatenate([np.zeros(0, np.int32), *rows]), lengths

    def __reduce__(self):
        return Tokenizer, (self.model, self.settings)

    def decode(self, ids: np.ndarray) -> str:
        """The text of ids int [T]; control pieces such as <sep> vanish."""
        return self._processor.decode(np.asarray(ids).tolist())

    @cached_property
    def _ends_in_digit_comma(self) -> np.ndarray:
        return np.array([len(p) > 1 and p[-1] == "," and p[-2].isdigit() for p in self.pieces])

    @cached_property
    def _digit_comma_parts(self) -> dict[int, list[int]]:
        """What replaces each piece that ends in a digit and a comma: the digits encoded anew, then the comma."""
        parts = {}
        for i in np.flatnonzero(self._ends_in_digit_comma):
            piece = self.pieces[i]
            digits = self._processor.encode(piece[:-1].replace(SPACE, ""), out_type=str)
            if not piece.startswith(SPACE) and digits[0].startswith(SPACE):
                digits = ([digits[0][1:]] if len(digits[0]) > 1 else []) + digits[1:]
            parts[int(i)] = [self._processor.piece_to_id(p) for p in (*digits, ",")]
        return parts

    def _split_digit_commas(self, ids: np.ndarray) -> np.ndarray:
        parts = (self._digit_comma_parts.get(i, (i,)) for i in ids.tolist())
        return np.fromiter(itertools.chain.from_iterable(parts), np.int32)


def read_model(file: Path) -> bytes:
    """What a .model file holds. InputError where it cannot be read."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise InputError(f"tokenizer {file} cannot be read: {error.strerror}") from None


def _settings_in(file: Path) -> Settings:
    try:
        content = json.loads(file.read_text())
    except ValueError as error:
        raise InputError(f"tokenizer settings {file}: not readable ({error}); delete it for the original's") from None
    return read_settings(content, str(file))


def read_settings(content: Any, where: str) -> Settings:
    """The settings that a JSON object holds. InputError, naming `where`, where it holds something else."""
    try:
        settings = Settings(**content)
    except TypeError as error:
        raise InputError(f"tokenizer settings {where}: not readable ({error}); delete it for the original's") from None
    if settings.normalization not in ("english", "nfkc", "none"):
        raise InputError(
            f"tokenizer settings {where}: normalization {settings.normalization!r} is none of english, nfkc, none"
        )
    if not isinstance(settings.split_digit_commas, bool):
        raise InputError(f"tokenizer settings {where}: split_digit_commas is neither true nor false")
    return settings


def _train(text: Iterator[str], vocab_size: int, normalization: Normalization) -> bytes:
    failure: list[Exception] = []

    def guarded() -> Iterator[str]:
        # SentencePiece would turn an error of its input into a RuntimeError with only its text.
        try:
            yield from text
        except Exception as error:
            failure.append(error)

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=guarded(),
            model_writer=model,
            vocab_size=vocab_size,
            normalization_rule_name="identity" if normalization == "none" else "nmt_nfkc",
            max_sentence_length=2**30,  # bytes; the default skips paragraphs above 4192
            num_threads=8,  # partial sums depend on it: fixed, so that the model does not depend on the machine
            minloglevel=2,
            **RECIPE,
        )
    except RuntimeError as error:
        if failure:
            raise failure[0] from None
        raise _vocabulary_error(vocab_size, str(error)) from None
    if failure:
        raise failure[0]
    return model.getvalue()


def _vocabulary_error(vocab_size: int, message: str) -> Exception:
    """SentencePiece's two complaints about a vocabulary size, with what to do; other errors as they are."""
    if largest := re.search(r"value <= (\d+)", message):
        return InputError(
            f"model.vocab-size {vocab_size} is too large for this text: the largest that works is {largest[1]}; lower "
            "it or give more text"
        )
    if smallest := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return InputError(
            f"model.vocab-size {vocab_size} is too small for the characters of this text: the smallest that works is "
            f"{smallest[1]}"
        )
    if "sentences_.empty" in message:
        return InputError("there is no text to train a tokenizer on: normalisation leaves nothing of it")
    return RuntimeError(message)
