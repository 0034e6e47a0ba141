"""Choose the held-out documents of a text by their content, so that equal documents are always on the same side.

The hash of a document is the sum of the hashes of its lines, so it does not depend on where parts cut it. Lines that
differ only in case, accents, spaces or punctuation have the same hash, as normalization may make their tokens equal.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Mapping, Sequence

import numpy as np

_NO_LETTER = re.compile(r"[\W_]+")
_NO_ASCII_LETTER = bytes(code for code in range(128) if not chr(code).isalnum())


def line_hashes(lines: Sequence[str]) -> np.ndarray:
    """Return a hash of the letters and digits of each line, uint64 [lines]; of the whole line if it has none."""
    digests = (hashlib.blake2b(_letters(line) or line.encode(), digest_size=8).digest() for line in lines)
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


def _letters(line: str) -> bytes:
    if line.isascii():
        return line.lower().encode().translate(None, _NO_ASCII_LETTER)
    return _NO_LETTER.sub("", unicodedata.normalize("NFKD", line).lower()).encode()


Exceptions = Mapping[int, bool]
"""True by the hash of a document that is held out, False if it is not, although its hash alone says otherwise"""


def holds_out(hashes: np.ndarray, share: float, exceptions: Exceptions) -> np.ndarray:
    """Return True for held-out documents, bool [documents]: those in the lowest `share` of all hashes (0 = none, 1 =
    all), except for exceptions. hashes: uint64 [documents]."""
    chosen = (hashes >> np.uint64(11)) * 2.0**-53 < share
    for side in (True, False):
        found = [hash_ for hash_, is_held_out in exceptions.items() if is_held_out is side]
        chosen[np.isin(hashes, np.array(found, np.uint64))] = side
    return chosen


DOCUMENT = np.dtype([("hash", np.uint64), ("tokens", np.int64)])
"""Whole document of a source, with at least one token"""


def choose(texts: Sequence[np.ndarray], fraction: float, block_len: int) -> list[Exceptions | int]:
    """Choose the hold-out rule for each source of a text, `DOCUMENT` [documents] in order. Each source must have at
    least two blocks.

    About `fraction` of the documents are held out. If that is less than a block of a source, the documents with the
    next hashes are held out too. If it is far more than the source's share, documents that are too long stay in
    training. All sources have the same exceptions, so that equal documents are on the same side. If no whole documents
    fit, the last blocks of a source are held out. Its rule is then the number of tokens before them.
    """
    exceptions: dict[int, bool] = {}
    for text in texts:
        if not _is_fair(text, fraction, exceptions, block_len):
            _add_exceptions(exceptions, text, fraction, block_len)
    rules: list[Exceptions | int] = []
    for text in texts:
        blocks = int(text["tokens"].sum()) // block_len
        kept = blocks - min(max(1, round(fraction * blocks)), blocks - 1)
        rules.append(exceptions if _is_fair(text, fraction, exceptions, block_len) else kept * block_len)
    return rules


def _is_fair(text: np.ndarray, share: float, exceptions: Exceptions, block_len: int) -> bool:
    held_out = int(text["tokens"][holds_out(text["hash"], share, exceptions)].sum())
    return block_len <= held_out <= _most(int(text["tokens"].sum()), share, block_len)


def _most(total: int, fraction: float, block_len: int) -> int:
    """Return the maximum number of tokens to hold out: at least a block, and half of what exceeds the share, must
    stay."""
    return min(total - block_len, round(total * (1 + fraction) / 2))


def _add_exceptions(exceptions: dict[int, bool], text: np.ndarray, share: float, block_len: int) -> None:
    """Add exceptions for this text: as few documents as possible, by ascending hash."""
    room, held_out = _most(int(text["tokens"].sum()), share, block_len), 0
    hashes, index = np.unique(text["hash"], return_inverse=True)
    sizes = np.zeros(len(hashes), np.int64)  # summed over equal documents
    np.add.at(sizes, index, text["tokens"])
    chosen = holds_out(hashes, share, exceptions)
    for hash_, tokens, is_chosen in zip(hashes.tolist(), sizes.tolist(), chosen.tolist(), strict=True):
        if held_out >= block_len and not is_chosen:
            continue
        if held_out + tokens <= room and exceptions.get(hash_, True):
            held_out += tokens
            if not is_chosen:
                exceptions[hash_] = True
        elif is_chosen and not exceptions.get(hash_, False):
            exceptions[hash_] = False
