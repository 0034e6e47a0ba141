"""Draw a uniform sample of a text's lines, bounded in bytes: SentencePiece keeps its training text in memory."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from data_pipelines import stateless
from data_pipelines.stateless import Purpose
from xlnet_jax.errors import InputError

# SentencePiece 0.2.3 needs 16 to 30 bytes of memory for each byte of text, and about a second for each megabyte on two
# cores (benchmarks/tokenizer.py): 3 GB and two minutes for this default.
SAMPLE_BYTES = 128 * 10**6
CHUNK = 4096  # random numbers drawn at once


@dataclass(frozen=True)
class Sample:
    """Lines of a text, in the text's order."""

    lines: list[str]
    seen_lines: int
    """number of lines of the whole text, without empty ones"""

    @property
    def is_whole(self) -> bool:
        """True if no line was left out."""
        return len(self.lines) == self.seen_lines


def sample(lines: Iterable[str], max_bytes: int) -> Sample:
    """Return all lines that are not empty if they have at most `max_bytes` in UTF-8, else a uniform sample that does.

    Each line draws a number from its position in the text, and the lines with the lowest numbers are kept; so the
    sample is the same on every machine, and memory holds the sample alone. Raises InputError if the line with the
    lowest number is longer than `max_bytes`; errors of `lines` pass through.
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
            f"a sample of {max_bytes:,} bytes has no room for a line of this text; make it larger, or the lines shorter"
        )
    kept.sort(key=lambda entry: entry[1])
    return Sample([line for *_, line in kept], place + 1)


def _uniforms() -> Iterator[float]:
    for chunk in itertools.count():
        yield from stateless.uniforms(0, Purpose.TOKENIZER_SAMPLE, 0, range(chunk, chunk + 1), CHUNK)[0].tolist()
