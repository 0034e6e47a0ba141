"""Words of a text: the pieces that they are, and the likeliest pieces in their place."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from data_pipelines.tokenizer import SPACE, Tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.settings.fields import list_of_texts

if TYPE_CHECKING:
    from xlnet_jax.checkpoints.pretrained import Pretrained

_BYTE = re.compile("<0x[0-9A-F]{2}>")


class Gap(NamedTuple):
    """One hidden piece, and the likeliest pieces for it. Probabilities are in [0, 1]."""

    position: int  # in the text, in pieces
    piece: str
    probability: float
    likeliest: list[tuple[str, float]]  # most likely first


def fill_in(pretrained: "Pretrained", text: str, hidden: str | Iterable[str], likeliest: int = 5) -> list[Gap]:
    """Return a Gap for each hidden piece of a text, in the order of the text. Each is predicted from the pieces that
    are not hidden.

    hidden: words or phrases of the text, each hidden at its first occurrence. likeliest: number of pieces to return for
    each gap. Raises InputError if `hidden` is not whole pieces of the text, or the checkpoint has no tokenizer or no
    vocabulary scores.
    """
    from xlnet_jax.checkpoints.pretrained import scoring_tokenizer
    from xlnet_jax.inference.log_probs import Query, log_probs_PV

    tokenizer = scoring_tokenizer(pretrained)
    ids_L = tokenizer.encode_lines([text])[0]
    positions_P = np.unique(
        [i for words in list_of_texts(hidden, "hidden") for i in find_words(tokenizer, ids_L, words)]
    ).astype(np.int32)
    if not len(positions_P):
        return []
    probs_PV = np.exp(log_probs_PV(pretrained, Query(ids_L, positions_P, np.zeros_like(positions_P))))
    best_PQ = np.argsort(-probs_PV, axis=1, kind="stable")[:, :likeliest]
    gaps = []
    for position, probs_V, best_Q in zip(positions_P.tolist(), probs_PV, best_PQ, strict=True):
        piece, best = ids_L[position], [(tokenizer.pieces[i], float(probs_V[i])) for i in best_Q]
        gaps.append(Gap(position, tokenizer.pieces[piece], float(probs_V[piece]), best))
    return gaps


def find_words(tokenizer: Tokenizer, ids_L: np.ndarray, words: str) -> np.ndarray:
    """Return the positions [P] of the first occurrence of these words in a text, whatever surrounds them, such as
    spaces, quotes or brackets; otherwise, of the first longer word that begins with them. Raises InputError if they are
    not whole pieces of the text.

    Compares characters, because a word has other pieces after a space (▁city) than after a quote (c ity).
    """
    pieces = [_characters(tokenizer, i) for i in ids_L.tolist()]
    wanted = "".join(_characters(tokenizer, i) for i in tokenizer.encode_lines([words])[0].tolist()).lstrip(SPACE)
    text, begins, ends = "", {}, {}
    for position, piece in enumerate(pieces):
        begins[len(text) + len(piece) - len(piece.lstrip(SPACE))] = position
        text += piece
        ends[len(text)] = position + 1
    for is_whole in (True, False):
        for at in re.finditer(f"(?={re.escape(wanted)})", text) if wanted else ():
            begin, end = at.start(), at.start() + len(wanted)
            fits = begin in begins and end in ends and not _in_a_word(text, begin)
            if fits and not (is_whole and _in_a_word(text, end)):
                return np.arange(begins[begin], ends[end])
    raise InputError(f"{words!r} does not match whole pieces of the text, which reads: {' '.join(pieces)}")


def _characters(tokenizer: Tokenizer, piece: int) -> str:
    """Return a piece as text, with ▁ for a space; for a byte, the character with the same number."""
    name = tokenizer.pieces[piece]
    if tokenizer.settings.token_level != "byte" or not _BYTE.fullmatch(name):
        return name
    return chr(int(name[3:5], 16)).replace(" ", SPACE)


def _in_a_word(text: str, place: int) -> bool:
    """Return True if a place is inside a word. Scripts from U+2E80 on, such as Chinese, have no spaces between
    words."""
    beside = text[place - 1 : place + 1]
    return 0 < place < len(text) and all(c.isalnum() and c < "\u2e80" for c in beside)
