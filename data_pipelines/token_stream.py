"""Text files as one stream of tokens: documents in order, `<eod>` behind each, and what begins where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from data_pipelines.corpus import Start
from data_pipelines.sources import DOCUMENT_END, read_lines
from data_pipelines.tokenizer import EOD, Tokenizer

BATCH_CHARS = 2**20  # text that is encoded by one call


@dataclass(frozen=True)
class TokenBatch:
    """A stretch of the stream, of whole lines."""

    begin: int  # tokens in front of it
    tokens: np.ndarray  # int32 [T]
    starts: np.ndarray  # uint8 [T], `Start`
    is_line: np.ndarray  # bool [T], a line begins at this token
    document: np.ndarray  # int64 [T], index of the document it belongs to


def encode_files(
    paths: Sequence[Path], tokenizer: Tokenizer, errors: Literal["strict", "replace"]
) -> Iterator[TokenBatch]:
    """The stream, a batch of lines at a time. Text that normalisation leaves nothing of is not there at all."""
    begin = document = 0
    last_document = -1  # the last one that any text was seen of
    for lines in _batches(read_lines(paths, errors)):
        rows = tokenizer.encode_lines(lines)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        is_end = np.fromiter((line == DOCUMENT_END for line in lines), bool, len(lines))
        document_of_line = document + np.cumsum(is_end) - is_end

        # An <eod> behind every line, so that its sentences do not depend on the next line. Most are dropped again.
        line_end = np.cumsum(lengths + 1) - 1
        keep = np.ones(line_end[-1] + 1, bool)
        keep[line_end] = False
        tokens = np.full(len(keep), EOD, np.int32)
        tokens[keep] = np.concatenate(rows)
        starts = np.where(tokenizer.sentence_starts(tokens), Start.SENTENCE, Start.NOTHING).astype(np.uint8)

        has_text = lengths > 0
        text_document = document_of_line[has_text]
        line_begin = (line_end - lengths)[has_text]
        starts[line_begin] = np.where(
            np.diff(text_document, prepend=last_document) != 0, Start.DOCUMENT, Start.SENTENCE
        )
        is_line = np.zeros(len(keep), bool)
        is_line[line_begin] = True
        keep[line_end] = is_end & np.isin(document_of_line, np.append(text_document, last_document))

        yield TokenBatch(
            begin, tokens[keep], starts[keep], is_line[keep], np.repeat(document_of_line, lengths + 1)[keep]
        )
        begin += int(keep.sum())
        document += int(is_end.sum())
        last_document = text_document[-1] if len(text_document) else last_document


def _batches(lines: Iterator[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    chars = 0
    for line in lines:
        batch.append(line)
        chars += len(line)
        if chars >= BATCH_CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch
