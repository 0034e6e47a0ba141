"""Train SentencePiece models: pieces (with the recipe of the released XLNet models), words, characters and bytes.

SentencePiece keeps its text in memory, so it gets a uniform sample of lines, limited in bytes.
"""

from __future__ import annotations

import heapq
import io
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import sentencepiece

from data_pipelines import stateless
from data_pipelines.stateless import Purpose
from data_pipelines.tokenizer.normalization import Normalization
from data_pipelines.tokenizer.pieces import SPECIAL_PIECES
from data_pipelines.tokenizer.settings import TokenLevel
from xlnet_jax.errors import InputError

# SentencePiece 0.2.3 needs 16 to 30 bytes of memory per byte of text, and about a second per megabyte on two cores
# (benchmarks/tokenizer.py): 3 GB and two minutes for this default.
SAMPLE_BYTES = 128 * 10**6
CHUNK = 4096  # random numbers drawn at once
CONTROL = [piece for piece in SPECIAL_PIECES if piece not in ("<unk>", "<s>", "</s>", "<eop>")]
# SentencePiece adds <unk>, <s> and </s> before them.
RECIPES: dict[TokenLevel, dict[str, Any]] = {
    "piece": {  # README.md of the original
        "model_type": "unigram",
        "character_coverage": 0.99995,
        "control_symbols": CONTROL,
        "user_defined_symbols": ["<eop>", ".", "(", ")", '"', "-", "–", "£", "€"],
    },
    # SentencePiece's word model does not find symbols inside words.
    "word": {"model_type": "word", "control_symbols": [*CONTROL, "<eop>"], "hard_vocab_limit": False},
    "character": {
        "model_type": "char",
        "character_coverage": 1.0,
        "control_symbols": CONTROL,
        "user_defined_symbols": ["<eop>"],
    },
}
_LARGEST = 2**24
"""Largest vocabulary to request from SentencePiece, which starts from a million pieces. It never ends if 1.1 times the
size overflows"""


def sample(lines: Iterable[str], max_bytes: int) -> tuple[list[str], int]:
    """Return (non-empty lines of a text, their number in the whole text). If the lines have more than `max_bytes` in
    UTF-8, return a uniform sample of them, in text order.

    Each line gets a random number that depends on its position, and the lines with the lowest numbers are kept. So the
    sample is the same on every machine, and memory holds only the sample. Raises InputError if the line with the lowest
    number is longer than `max_bytes`. Errors of `lines` pass through.
    """
    kept: list[tuple[float, int, int, str]] = []  # heap, highest number first: (negated number, place, bytes, line)
    threshold, size, place = 1.0, 0, -1
    for place, (line, draw) in enumerate(zip(filter(None, lines), _uniforms(), strict=False)):
        if draw >= threshold:
            continue
        num_bytes = len(line.encode(errors="surrogatepass"))
        heapq.heappush(kept, (-draw, place, num_bytes, line))
        size += num_bytes
        while size > max_bytes:
            highest, _, num_bytes, _ = heapq.heappop(kept)
            threshold = -highest
            size -= num_bytes
    if place >= 0 and not kept:
        raise InputError(
            f"a line of this text does not fit a sample of {max_bytes:,} bytes; use a larger sample or shorter lines"
        )
    kept.sort(key=lambda entry: entry[1])
    return [line for *_, line in kept], place + 1


def _uniforms() -> Iterator[float]:
    for chunk in itertools.count():
        yield from stateless.uniforms(0, Purpose.TOKENIZER_SAMPLE, 0, range(chunk, chunk + 1), CHUNK)[0].tolist()


def train_model(
    text: Iterable[str],
    vocab_size: int,
    normalization: Normalization,
    token_level: TokenLevel = "piece",
    user_symbols: Sequence[str] = (),
) -> bytes:
    """Train a model on normalized lines, and return the content of its .model file. Equal lines give equal bytes on any
    machine.

    vocab_size: number of pieces; for words and characters, the maximum, and the others become <unk>; ignored for bytes.
    user_symbols: pieces that are never split or merged, in addition to those of the recipe; for pieces and characters.
    Raises InputError, with a size that works, if the vocabulary size is too large or too small for the text.
    """
    if token_level == "byte":
        return byte_model()
    if vocab_size <= len(SPECIAL_PIECES) - (token_level == "piece"):
        raise InputError(
            "vocab_size",
            vocab_size,
            f"is too small: {len(SPECIAL_PIECES)} pieces are special symbols, and the text needs more",
        )
    model, recipe = io.BytesIO(), dict(RECIPES[token_level])
    if user_symbols:
        recipe["user_defined_symbols"] = list(dict.fromkeys([*recipe["user_defined_symbols"], *user_symbols]))
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text),
            model_writer=model,
            vocab_size=min(vocab_size, _LARGEST),
            normalization_rule_name="identity" if normalization == "none" else "nmt_nfkc",
            max_sentence_length=2**30,  # bytes; the default skips paragraphs above 4192
            num_threads=8,  # fixed, because the order of floating-point sums, and so the model, depends on it
            minloglevel=2,
            shuffle_input_sentence=True,
            input_sentence_size=10_000_000,
            **recipe,
        )
    except RuntimeError as error:
        raise _vocabulary_error(vocab_size, str(error)) from None
    return model.getvalue()


class VocabularyTooLarge(InputError):
    """A text has fewer pieces than it was asked for. largest: number that it has."""

    def __init__(self, vocab_size: int, largest: int) -> None:
        why = f"is too large for this text: the largest that works is {largest}; lower it or give more text"
        super().__init__("vocab_size", vocab_size, why)
        self.largest = largest


def byte_model() -> bytes:
    """Return a character model with special symbols and bytes but no characters, so SentencePiece falls back to bytes.
    White space is kept. As in the other models, each line gets a leading space."""
    from sentencepiece import sentencepiece_model_pb2

    proto: Any = sentencepiece_model_pb2  # typed Any: protobuf creates its messages at import
    kind = proto.ModelProto.SentencePiece
    special = {"<unk>": kind.UNKNOWN, "<eop>": kind.USER_DEFINED}
    model = proto.ModelProto()
    for piece in SPECIAL_PIECES:
        model.pieces.add(piece=piece, score=0.0, type=special.get(piece, kind.CONTROL))
    for byte in range(256):
        model.pieces.add(piece=f"<0x{byte:02X}>", score=0.0, type=kind.BYTE)
    model.trainer_spec.model_type = proto.TrainerSpec.CHAR
    model.trainer_spec.byte_fallback = True
    model.trainer_spec.vocab_size = len(model.pieces)
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = True
    model.normalizer_spec.remove_extra_whitespaces = False
    model.normalizer_spec.escape_whitespaces = False
    return model.SerializeToString(deterministic=True)


def adapt_model(model: bytes) -> bytes:
    """Return a .model file with XLNet's special pieces at the ids 0 to 8, then all other pieces, with their scores and
    in their order: text becomes the same pieces, with other ids. model: a .model file that SentencePiece reads."""
    from sentencepiece import sentencepiece_model_pb2

    proto: Any = sentencepiece_model_pb2
    kind = proto.ModelProto.SentencePiece
    theirs, ours = proto.ModelProto.FromString(model), proto.ModelProto()
    ours.CopyFrom(theirs)
    # The piece of unknown characters may have another name; there is one.
    kept = {piece.piece: piece for piece in theirs.pieces if piece.type != kind.UNKNOWN}
    del ours.pieces[:]
    for name in SPECIAL_PIECES:
        unknown = name == "<unk>"
        new = kind(piece=name, score=0.0, type=kind.UNKNOWN if unknown else kind.CONTROL)
        there = kept.pop(name, None)
        ours.pieces.append(new if unknown or there is None else there)
    ours.pieces.extend(kept.values())
    trained = ours.trainer_spec
    trained.vocab_size = len(ours.pieces)
    for field, name in {"unk": "<unk>", "bos": "<s>", "eos": "</s>", "pad": "<pad>"}.items():
        setattr(trained, f"{field}_id", SPECIAL_PIECES.index(name))
        setattr(trained, f"{field}_piece", name)
    return ours.SerializeToString(deterministic=True)


def _vocabulary_error(vocab_size: int, message: str) -> InputError:
    """Return an InputError that explains SentencePiece's message about the vocabulary size, or else quotes it."""
    if largest := re.search(r"value <= (\d+)", message):
        return VocabularyTooLarge(vocab_size, int(largest[1]))
    if smallest := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return InputError(
            "vocab_size",
            vocab_size,
            f"is too small for the characters of this text: the smallest that works is {smallest[1]}",
        )
    if "sentences_.empty" in message:
        return InputError("no text is left to train a tokenizer on: normalization removes all of it")
    return InputError(f"SentencePiece cannot make a vocabulary of {vocab_size} from this text: {message[:200]}")
