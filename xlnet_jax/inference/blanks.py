"""Texts with positions to fill: a continuation, or gaps inside, as ids and back as text."""

import re
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from data_pipelines.tokenizer import EOD, EOP, PAD, SPECIAL_PIECES, Tokenizer
from data_pipelines.tokenizer.symbols import SPACE
from xlnet_jax.errors import InputError

GAP = re.compile("_{3,}")


class Kind(IntEnum):
    """Which pieces may stand at a position."""

    OPEN = 0  # all of a text, and its end
    WORD = 1  # those that begin behind a space
    GLUED = 2  # those that do not
    INNER = 3  # either


class Blanks(NamedTuple):
    """A text with positions to fill."""

    ids_L: np.ndarray  # int32, PAD where nothing is given
    targets_T: np.ndarray  # int32, positions in the order of filling; L and beyond go on
    kinds_T: np.ndarray  # int32, a Kind each
    parts: tuple[str, ...]  # what is printed around the gaps, one more than those
    gap_T: np.ndarray  # int32, the gap to which each target belongs

    @property
    def is_open(self) -> bool:
        """Whether the text goes on to the right, and not only inside."""
        return bool(len(self.kinds_T)) and self.kinds_T[0] == Kind.OPEN


def check_request(gap_pieces: Sequence[int], max_new_tokens: int, num_samples: int, batch_size: int, seed: int) -> None:
    """Raise InputError for numbers out of range."""
    counts = {"max_new_tokens": max_new_tokens, "num_samples": num_samples, "batch_size": batch_size}
    for name, count in (*counts.items(), *(("gap_pieces", pieces) for pieces in gap_pieces)):
        if count < 1:
            raise InputError(f"`{name}` {count} must be at least 1")
    if not 0 <= seed < 2**32:
        raise InputError(f"`seed` {seed} must be from 0 to 2^32 - 1")


def continuation(tokenizer: Tokenizer, prompt: str, prefix: str, pieces: int) -> Blanks:
    """The text goes on to the right. prefix: a text before it, closed by <eod>, as is an empty text."""
    ids_L = np.concatenate([_prefix_ids(tokenizer, prefix), tokenizer.encode_lines([prompt.rstrip()])[0]])
    if not len(ids_L):
        ids_L = np.array([EOD])
    targets_T, kinds_T = len(ids_L) + np.arange(pieces), np.full(pieces, Kind.OPEN)
    parts = (prompt.rstrip(), "")
    return Blanks(_int32(ids_L), _int32(targets_T), _int32(kinds_T), parts, np.zeros(pieces, np.int32))


def infilling(tokenizer: Tokenizer, text: str, prefix: str, pieces: Sequence[int]) -> Blanks:
    """Gaps, written as ___, filled from left to right. pieces: of each gap, or one number for all."""
    parts = GAP.split(text)
    gaps = len(parts) - 1
    if not gaps:
        raise InputError(f"no gap in {text!r}: write ___ where pieces are to be filled in")
    counts = list(pieces) * gaps if len(pieces) == 1 else list(pieces)
    if len(counts) != gaps:
        raise InputError(f"{len(counts)} numbers of pieces for the {gaps} gaps of {text!r}: give one for each, or one")
    ids: list[int] = _prefix_ids(tokenizer, prefix).tolist()
    targets: list[int] = []
    kinds: list[int] = []
    for i, part in enumerate(parts):
        known = tokenizer.encode_lines([part.strip()])[0].tolist()  # the spaces around it are its neighbours'
        ids += _glued(tokenizer, known) if i and part and not part[0].isspace() else known
        if i < gaps:
            begins_word = not ids or not part or part[-1].isspace()
            targets += range(len(ids), len(ids) + counts[i])
            kinds += [Kind.WORD if begins_word else Kind.GLUED] + [Kind.INNER] * (counts[i] - 1)
            ids += [PAD] * counts[i]
    return Blanks(_int32(ids), _int32(targets), _int32(kinds), tuple(parts), np.repeat(np.arange(gaps), counts))


def fill(tokenizer: Tokenizer, blanks: Blanks, ids_T: np.ndarray) -> str:
    """The text with these pieces in its gaps; fewer than targets fill what they reach."""
    text = blanks.parts[0]
    for gap, part in enumerate(blanks.parts[1:]):
        pieces = ids_T[blanks.gap_T[: len(ids_T)] == gap]
        needs_space = len(pieces) and tokenizer.tables.has_space[pieces[0]]
        text += " " * bool(needs_space and text and not text[-1].isspace()) + _decode(tokenizer, pieces) + part
    return text


def allowed_KV(tokenizer: Tokenizer) -> np.ndarray:
    """bool, by Kind: which pieces may be chosen. Of the special pieces a text has its end and that of a paragraph."""
    is_text_V = np.arange(tokenizer.vocab_size) >= len(SPECIAL_PIECES)
    begins_word_V = tokenizer.tables.has_space
    is_open_V = is_text_V.copy()
    is_open_V[[EOD, EOP]] = True
    return np.stack([is_open_V, is_text_V & begins_word_V, is_text_V & ~begins_word_V, is_text_V])


def _prefix_ids(tokenizer: Tokenizer, prefix: str) -> np.ndarray:
    return np.append(tokenizer.encode_lines([prefix])[0], EOD) if prefix.strip() else np.zeros(0, np.int32)


def _glued(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """A text's ids without the space that SentencePiece puts before it."""
    if tokenizer.settings.token_level == "byte":
        return ids[1:]
    first = tokenizer.pieces[ids[0]] if ids else ""
    if not first.startswith(SPACE):
        return ids
    by_piece = {piece: i for i, piece in enumerate(tokenizer.pieces)}
    rest = first.removeprefix(SPACE)
    whole = [rest] if rest in by_piece else list(rest)
    return [by_piece[piece] for piece in whole if piece in by_piece] + ids[1:]


def _decode(tokenizer: Tokenizer, ids: np.ndarray) -> str:
    paragraphs = np.split(ids, np.flatnonzero(ids == EOP))
    return "\n".join(tokenizer.decode(paragraph) for paragraph in paragraphs).rstrip("\ufffd")


def _int32(numbers: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.asarray(numbers, np.int32)
