"""Texts with positions to fill, at their end or in gaps inside: from text to ids, and back to text."""

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
    """Class of pieces that may stand at a position."""

    OPEN = 0  # any piece of text, <eod> or <eop>
    WORD = 1  # pieces of text that begin with a space
    GLUED = 2  # pieces of text that begin without a space
    INNER = 3  # any piece of text


class Blanks(NamedTuple):
    """A text with positions to fill."""

    ids_L: np.ndarray  # int32, PAD at positions to fill
    targets_P: np.ndarray  # int32, positions in the order of filling; positions from L on continue the text
    kinds_P: np.ndarray  # int32, a Kind each
    parts: tuple[str, ...]  # text around the gaps, one part more than there are gaps
    gap_P: np.ndarray  # int32, the gap to which each target belongs

    @property
    def is_open(self) -> bool:
        """True where positions to fill continue the text, False where they are gaps inside."""
        return bool(len(self.kinds_P)) and self.kinds_P[0] == Kind.OPEN


def read_prompt(
    tokenizer: Tokenizer, prompt: str, prefix: str, gap_pieces: Sequence[int], max_new_tokens: int
) -> Blanks:
    """Return a prompt to fill in, if it has gaps or a number of pieces is given for them, or else to continue."""
    if gap_pieces or GAP.search(prompt):
        return infilling(tokenizer, prompt, prefix, gap_pieces or (1,))
    return continuation(tokenizer, prompt, prefix, max_new_tokens)


def continuation(tokenizer: Tokenizer, prompt: str, prefix: str, pieces: int) -> Blanks:
    """Return a text to continue by `pieces` pieces. prefix: document before it, ended by <eod>; an empty prompt without
    one begins behind <eod>."""
    ids_L = np.concatenate([_prefix_ids(tokenizer, prefix), tokenizer.encode_lines([prompt.rstrip()])[0]])
    if not len(ids_L):
        ids_L = np.array([EOD])
    targets_P, kinds_P = len(ids_L) + np.arange(pieces), np.full(pieces, Kind.OPEN)
    parts = (prompt.rstrip(), "")
    return Blanks(_int32(ids_L), _int32(targets_P), _int32(kinds_P), parts, np.zeros(pieces, np.int32))


def infilling(tokenizer: Tokenizer, text: str, prefix: str, pieces: Sequence[int]) -> Blanks:
    """Return a text with gaps, written as ___, to fill from left to right.

    prefix: document before it, ended by <eod>. pieces: number of pieces in each gap, or one number for all gaps. Raises
    InputError where the text has no gap, or another number of gaps than `pieces` has numbers.
    """
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
        known = tokenizer.encode_lines([part.strip()])[0].tolist()  # the spaces at its ends belong to the gaps
        ids += _glued(tokenizer, known) if i and part and not part[0].isspace() else known
        if i < gaps:
            begins_word = not ids or not part or part[-1].isspace()
            targets += range(len(ids), len(ids) + counts[i])
            kinds += [Kind.WORD if begins_word else Kind.GLUED] + [Kind.INNER] * (counts[i] - 1)
            ids += [PAD] * counts[i]
    return Blanks(_int32(ids), _int32(targets), _int32(kinds), tuple(parts), np.repeat(np.arange(gaps), counts))


def fill(tokenizer: Tokenizer, blanks: Blanks, ids_P: np.ndarray) -> str:
    """Return the text with these pieces in its gaps, as far as they go where they are fewer than the targets."""
    text = blanks.parts[0]
    for gap, part in enumerate(blanks.parts[1:]):
        pieces = ids_P[blanks.gap_P[: len(ids_P)] == gap]
        needs_space = len(pieces) and tokenizer.tables.has_space[pieces[0]]
        text += " " * bool(needs_space and text and not text[-1].isspace()) + _decode(tokenizer, pieces) + part
    return text


def allowed_XV(tokenizer: Tokenizer) -> np.ndarray:
    """Return which pieces may be chosen, bool [Kind, V]. <eod> and <eop> are the only special pieces in a text."""
    is_text_V = np.arange(tokenizer.vocab_size) >= len(SPECIAL_PIECES)
    begins_word_V = tokenizer.tables.has_space
    is_open_V = is_text_V.copy()
    is_open_V[[EOD, EOP]] = True
    return np.stack([is_open_V, is_text_V & begins_word_V, is_text_V & ~begins_word_V, is_text_V])


def _prefix_ids(tokenizer: Tokenizer, prefix: str) -> np.ndarray:
    return np.append(tokenizer.encode_lines([prefix])[0], EOD) if prefix.strip() else np.zeros(0, np.int32)


def _glued(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """Return the ids of a text without the space that SentencePiece puts before it."""
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
