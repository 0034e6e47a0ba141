"""A uniform sample of a text's lines, bounded in bytes: SentencePiece keeps what it is trained on in memory."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from data_pipelines import stateless
from data_pipelines.stateless import Purpose
from xlnet_jax.errors import InputError

# SentencePiece 0.2.3 holds 16 to 30 bytes for each byte of text and takes about a second for each megabyte on two cores
# (benchmarks/tokenizer.py): 3 GB and two minutes, which the smallest machines have.
SAMPLE_BYTES = 128 * 10**6
CHUNK = 4096  # numbers drawn at once


@dataclass(frozen=True)
class Sample:
    """Lines of a text, in its order."""

    lines: list[str]
    seen_lines: int
    """lines of the whole text; empty ones do not count"""

    @property
    def is_whole(self) -> bool:
        """Whether no line was left out."""
        return len(self.lines) == self.seen_lines


def sample(lines: Iterable[str], max_bytes: int) -> Sample:
    """All lines but the empty ones where they have at most `max_bytes` in UTF-8, else a uniform sample that has.

    Each line draws a number from its place in the text, and those with the lowest numbers are kept: the choice depends
    on nothing else. Memory is that of the sample. Raises InputError where the line with the lowest number alone is too
    long; errors of `lines` pass through.
    """
    kept: list[tuple[float, int, int, str]] = []  # heap: the highest number first (negated), place, bytes, line
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
