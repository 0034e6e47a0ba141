"""Parts of text as tokens: documents in order, `<eod>` behind each, and what begins where."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import numpy as np
from etils import epath

from data_pipelines.corpus import Start
from data_pipelines.prepare.parts import Part
from data_pipelines.tokenizer import EOD, Tokenizer
from xlnet_jax.storage.files import complete_file


@dataclass(frozen=True)
class EncodedPart:
    """The tokens of a part, and how they belong to its documents. The first one may have begun in the part before."""

    tokens: np.ndarray  # int32 [T]
    starts: np.ndarray  # uint8 [T], `Start`
    document_tokens: np.ndarray  # int64 [documents], 0 = normalisation leaves nothing of it
    line_starts: np.ndarray  # int64 [lines], tokens at which the lines with text begin
    continues: np.ndarray  # bool [], as in `Part`

    def save(self, file: epath.Path) -> None:
        """Write the part, whole or not at all; another process may save the same one, as texts can hold it twice."""
        with complete_file(file, writer=uuid.uuid4().hex) as partial, partial.open("wb") as opened:
            np.savez(opened, **vars(self))


def load(file: str, *names: str) -> tuple[np.ndarray, ...]:
    """Fields of a saved part by their names; the others are not read."""
    with epath.Path(file).open("rb") as opened, np.load(opened) as arrays:
        return tuple(arrays[name] for name in names)


def encode(part: Part, tokenizer: Tokenizer, threads: int = 1) -> EncodedPart:
    """The tokens of a part. Text that normalisation leaves nothing of is not there at all."""
    lines = _lines(part)
    ids, lengths = tokenizer.encode_flat(lines, threads)
    is_end = np.array([not line for line in lines], bool)
    document = np.cumsum(is_end) - is_end  # of each line
    documents = int(is_end.sum()) + (not part.ends)

    # An <eod> behind every line, so that its sentences do not depend on the next line. Most are dropped again.
    line_end = np.cumsum(lengths + 1) - 1
    keep = np.ones(line_end[-1] + 1, bool) if len(lines) else np.zeros(0, bool)
    keep[line_end] = False
    tokens = np.full(len(keep), EOD, np.int32)
    tokens[keep] = ids
    starts = tokenizer.sentence_starts(tokens) * np.uint8(Start.SENTENCE)

    has_text = lengths > 0
    before = 0 if part.continues else -1  # the document that is already under way
    begins_document = np.diff(document[has_text], prepend=before) != 0
    starts[(line_end - lengths)[has_text]] = np.where(begins_document, Start.DOCUMENT, Start.SENTENCE)
    is_line = np.zeros(len(keep), bool)
    is_line[(line_end - lengths)[has_text]] = True
    has_lines = np.bincount(document[has_text], minlength=documents) > 0
    keep[line_end] = is_end & (has_lines[document] | (document == before))
    return EncodedPart(
        tokens=tokens[keep],
        starts=starts[keep],
        document_tokens=np.bincount(document, lengths + keep[line_end], documents).astype(np.int64),
        line_starts=np.flatnonzero(is_line[keep]),
        continues=np.array(part.continues),
    )


def _lines(part: Part) -> list[str]:
    """The stripped lines, and one empty line behind each document that ends in the part."""
    lines = [line.strip() for line in part.text.split("\n")]
    kept = [line for line, before in zip(lines, [part.continues and "x", *lines], strict=False) if line or before]
    if part.ends and (kept or part.continues) and (not kept or kept[-1]):
        kept.append("")
    if not part.ends:
        while kept and not kept[-1]:
            kept.pop()
    return kept
