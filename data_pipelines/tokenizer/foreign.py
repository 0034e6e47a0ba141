"""Use Hugging Face tokenizers, such as BERT's and RoBERTa's, instead of a SentencePiece model.

Ids are renumbered: as in all vocabularies here, the special pieces come first, and the others follow in their original
order. A special piece that is missing in the Hugging Face vocabulary (such as <eod>) takes one of its unused pieces or,
if there are none left, no piece (NEW). `theirs` maps ids here to rows of the Hugging Face embedding. Pieces that begin
a word start with ▁.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from etils import epath

from data_pipelines.tokenizer.pieces import BOS, CLS, EOD, EOP, EOS, MASK, PAD, SEP, SPACE, SPECIAL_PIECES, UNK
from data_pipelines.tokenizer.settings import TokenizerSettings
from xlnet_jax.errors import InputError, first_line
from xlnet_jax.storage.reading import parse_json, read_document, read_json, require_regular

TOKENIZER_JSON, WORDPIECES, TOKENIZER_CONFIG = "tokenizer.json", "vocab.txt", "tokenizer_config.json"
SETTINGS = TokenizerSettings("none", split_digit_commas=False)  # these tokenizers normalize text themselves
NEW = -1  # in `theirs`: the Hugging Face vocabulary lacks this piece

_NAMES = {
    UNK: ("[UNK]", "<unk>"),
    CLS: ("[CLS]", "<s>"),
    SEP: ("[SEP]", "</s>"),
    PAD: ("[PAD]", "<pad>"),
    MASK: ("[MASK]", "<mask>"),
}
_WHAT = {UNK: "unk_token", CLS: "cls_token", SEP: "sep_token", PAD: "pad_token", MASK: "mask_token"}
_MISSING = (EOD, EOP, BOS, EOS)  # those that occur in texts first, as there may be too few unused pieces
_UNUSED = re.compile(r"\[unused\d+\]|madeupword\d+")
_SPARSEST = 2**20  # number of unused ids that a small vocabulary may have
_TRIAL = ("The sea was calm at last, and 12,345 nobody knew.", "aa  ünï ﬁ ① 가 中\u0301\t\n", "", " ", "a" * 200)
"""Texts of many kinds. A tokenizer must encode them before it is used, as some settings make the library fail late"""


def model_in(folder: epath.Path) -> bytes | None:
    """Return the tokenizer of a folder as the content of a tokenizer.json, or None if the folder has none.

    Reads tokenizer.json, or builds it from BERT's vocab.txt. Raises InputError if the tokenizers library is missing.
    """
    if (folder / TOKENIZER_JSON).exists():
        return read_document(folder / TOKENIZER_JSON)
    if not (folder / WORDPIECES).exists():
        return None
    config = folder / TOKENIZER_CONFIG
    cased = config.exists() and read_json(config).get("do_lower_case") is False
    require_regular(folder / WORDPIECES)
    wordpieces = _library(str(folder)).BertWordPieceTokenizer
    with _naming_faults(str(folder / WORDPIECES)):
        return str(wordpieces(str(folder / WORDPIECES), lowercase=not cased).to_str()).encode()


def is_foreign(model: bytes) -> bool:
    """Return True for the bytes of a tokenizer.json, False for a SentencePiece model."""
    return model[:1] == b"{"


class ForeignPieces:
    """The methods of SentencePieceProcessor that `Tokenizer` calls, implemented with the tokenizers library."""

    def __init__(self, model: bytes, origin: str) -> None:
        """Read a tokenizer.json. Raises InputError, naming `origin`, if it is damaged or lacks a special piece."""
        self._model, self._origin = model, origin
        self._kind = parse_json(model, f"tokenizer {origin}")
        for switched_on in ("truncation", "padding"):  # made for another use; here texts are read whole
            self._kind[switched_on] = None
        if isinstance(of_model := self._kind.get("model"), dict) and "dropout" in of_model:  # random segmentations
            of_model["dropout"] = None
        library = _library(origin)
        with _naming_faults(origin), _no_stderr():
            self._tokenizer = library.Tokenizer.from_str(json.dumps(self._kind))
            self._tokenizer.encode_batch(_TRIAL, add_special_tokens=False)
        self._tokenizer.encode_special_tokens = True  # <mask> in a text is text
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        names = [name for name, _ in sorted(vocabulary.items(), key=lambda item: item[1])]
        ids = [vocabulary[name] for name in names]
        self.theirs = np.array(_dealt(names, ids, origin))
        """Row of the Hugging Face embedding for each id, or NEW: int64 [V]."""
        self.their_size = max(ids) + 1
        if self.their_size > _SPARSEST + 2 * len(ids):
            raise InputError(f"tokenizer {origin}: it has {len(ids):,} pieces, but one has the id {max(ids):,}")
        self._ours = np.full(self.their_size, UNK, np.int32)
        self._ours[self.theirs[self.theirs != NEW]] = np.flatnonzero(self.theirs != NEW)
        name_of = dict(zip(ids, names, strict=True))
        self.special_names = {what: name_of[self.theirs[i]] for i, what in _WHAT.items()}
        """Hugging Face names of the special pieces, as in tokenizer_config.json."""
        self._pieces = [*SPECIAL_PIECES, *(self._text(name_of[i]) for i in self.theirs[len(SPECIAL_PIECES) :].tolist())]

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {piece: i for i, piece in reversed(list(enumerate(self._pieces)))}

    @property
    def is_lowercase(self) -> bool | None:
        """True if BERT's normalization lowercases text; None = another normalization."""
        kind = self._kind.get("normalizer") or {}
        return bool(kind.get("lowercase")) if kind.get("type") == "BertNormalizer" else None

    def to_json(self) -> str:
        """Return the tokenizer.json as the library writes it: without what it does not read."""
        with _naming_faults(self._origin):
            return str(_library(self._origin).Tokenizer.from_buffer(self._model).to_str(pretty=True))

    def get_piece_size(self) -> int:
        return len(self._pieces)

    def id_to_piece(self, i: int) -> str:
        return self._pieces[i]

    def piece_to_id(self, piece: str) -> int:
        return self._ids.get(piece, UNK)

    def encode(self, text: str | Sequence[str], num_threads: int = 1, out_type: Any = int) -> Any:
        """Encode texts with the arguments of SentencePiece's `encode`.

        out_type: int = lists of ids, "numpy" = arrays of ids, str = pieces, with the original text of unknown pieces.
        """
        if isinstance(text, str):
            return self.encode([text], num_threads, out_type)[0]
        with _naming_faults(self._origin):
            encoded = self._tokenizer.encode_batch(list(text), add_special_tokens=False)
        ids = [self._ours[np.asarray(e.ids, np.int64)] for e in encoded]
        if out_type is not str:
            return ids if out_type == "numpy" else [i.tolist() for i in ids]
        return [
            [self._pieces[i] if i != UNK else t[slice(*span)] for i, span in zip(of_text, e.offsets, strict=True)]
            for of_text, e, t in zip(ids, encoded, text, strict=True)
        ]

    def decode(self, ids: list[int]) -> str:
        theirs = self.theirs[ids]
        with _naming_faults(self._origin):
            return str(self._tokenizer.decode(theirs[theirs != NEW].tolist(), skip_special_tokens=True))

    def _text(self, name: str) -> str:
        model = self._kind["model"]
        if model["type"] == "WordPiece":
            prefix = model.get("continuing_subword_prefix", "##")
            return name.removeprefix(prefix) if name.startswith(prefix) and name != prefix else SPACE + name
        if _of_bytes(self._kind):
            text = _library("").decoders.ByteLevel().decode([name])
            return SPACE + text[1:] if text.startswith(" ") else text
        return name


@contextlib.contextmanager
def _naming_faults(origin: str) -> Iterator[None]:
    """Turn any exception of the library into an InputError. Panics of Rust are included, which are not Exceptions."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(f"tokenizer {origin}: the tokenizers library cannot use it ({first_line(error)})") from None


@contextlib.contextmanager
def _no_stderr() -> Iterator[None]:
    """Hide the dozens of lines that Rust writes about a panic."""
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def _of_bytes(kind: dict[str, Any]) -> bool:
    steps = [kind.get("pre_tokenizer") or {}]
    steps += steps[0].get("pretokenizers", [])
    return any(step.get("type") == "ByteLevel" for step in steps)


def _dealt(names: list[str], ids: list[int], origin: str) -> list[int]:
    known = dict(zip(names, ids, strict=True))
    unused = [known[name] for name in names if _UNUSED.fullmatch(name)]
    special = dict.fromkeys(range(len(SPECIAL_PIECES)), NEW) | dict(zip(_MISSING, unused, strict=False))
    for i, either in _NAMES.items():
        found = [known[name] for name in either if name in known]
        if not found:
            raise InputError(f"tokenizer {origin} has no {' or '.join(either)}, which XLNet needs")
        special[i] = found[0]
    taken = set(special.values())
    return [*special.values(), *(i for i in ids if i not in taken)]


def _library(origin: str) -> Any:
    try:
        import tokenizers
    except ImportError:
        raise InputError(
            f"tokenizer {origin} needs Hugging Face's tokenizers: pip install -e '.[hf]' in the clone"
        ) from None
    return tokenizers
