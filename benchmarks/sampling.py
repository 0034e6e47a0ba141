"""Measure generated text by temperature, top-p, repetition penalty and order, beside the text itself.

    python -m benchmarks.sampling CHECKPOINT TEXT [--texts 32] [--pieces 64]

Each text continues the first 16 pieces of a line of the last tenth of TEXT, which the checkpoint must not have read. Of
the new pieces:

    repeated   share of 3-grams that occur earlier in the same text
    distinct   different 2-grams of all texts, as a share of all 2-grams (Li et al. 2016, section 5)
    nats       per piece, under a 5-gram model of the other nine tenths (benchmarks/ngram.py)

`repeated` and `nats` are means over texts with their standard errors. A good setting is close to the text itself in all
three.
"""

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import xlnet_jax
from benchmarks.ngram import probabilities
from benchmarks.results import keep_table
from data_pipelines.tokenizer import EOD, Tokenizer
from xlnet_jax.checkpoints.pretrained import Pretrained

SETTINGS = (  # temperature, top-p, repetition penalty
    (0.0, 1.0, 1.0), (0.0, 1.0, 1.2), (0.7, 0.9, 1.0), (0.7, 0.9, 1.2), (0.7, 1.0, 1.0), (0.8, 0.9, 1.0),
    (0.8, 0.9, 1.1), (0.8, 0.9, 1.2), (1.0, 0.8, 1.0), (1.0, 0.8, 1.1), (1.0, 0.8, 1.2), (1.0, 0.9, 1.0),
    (1.0, 0.9, 1.1), (1.0, 1.0, 1.0),
)  # fmt: skip
GIVEN = 16
ORDER = 5


class Quality(NamedTuple):
    """What the new pieces of texts are measured by."""

    repeated_T: np.ndarray
    """percent"""
    distinct: float
    nats_T: np.ndarray


@dataclass(frozen=True)
class Continued:
    """Texts whose first GIVEN pieces are continued, and the text that the 5-gram model is fitted to."""

    tokenizer: Tokenizer
    fitted: np.ndarray  # int64 [blocks, length]
    itself: np.ndarray  # int64 [T, length]

    @classmethod
    def of(cls, tokenizer: Tokenizer, text: str, texts: int, pieces: int, seed: int | None = None) -> "Continued":
        """Cut texts of GIVEN + `pieces` pieces from the last tenth of a longer one: at even distances, or at places
        drawn with a seed."""
        lines = [line for line in text.splitlines() if line.strip()]
        ids = np.concatenate([np.append(line, EOD) for line in tokenizer.encode_lines(lines)]).astype(np.int64)
        fitted, rest = np.split(ids, [len(ids) * 9 // 10])
        length = GIVEN + pieces
        places = np.linspace(0, len(rest) - length, texts).astype(int)
        if seed is not None:
            places = np.random.default_rng(seed).choice(len(rest) - length, texts, replace=False)
        itself = np.stack([rest[place : place + length] for place in places])
        return cls(tokenizer, fitted[: len(fitted) // length * length].reshape(-1, length), itself)

    @property
    def prompts(self) -> list[str]:
        """The beginnings of the texts."""
        return [self.tokenizer.decode(row[:GIVEN].tolist()) for row in self.itself]

    def draw(self, model: Pretrained, **settings: Any) -> list[np.ndarray]:
        """Return the new pieces of each text: int64 [at most `pieces`]. settings: of xlnet_jax.generate."""
        drawn = xlnet_jax.generate(
            model, self.prompts, max_new_tokens=self.itself.shape[1] - GIVEN, batch_size=len(self.itself), **settings
        )
        by_piece = {piece: i for i, piece in enumerate(self.tokenizer.pieces)}
        return [np.array([by_piece[piece] for piece in text.pieces] or [EOD]) for text in drawn]

    def quality(self, new: Sequence[np.ndarray]) -> Quality:
        """Measure new pieces of each text."""
        length = self.itself.shape[1]
        texts = [np.append(begin[:GIVEN], more) for begin, more in zip(self.itself, new, strict=True)]
        whole = np.stack([np.resize(text, length) for text in texts])
        nats = -np.log(probabilities(self.fitted, whole, self.tokenizer.vocab_size, ORDER)[:, GIVEN:]).mean(1)
        new = [text[GIVEN:length] for text in texts]
        threes = [list(zip(*(text[k:] for k in range(3)), strict=False)) for text in new]
        repeated = 100 * np.array([1 - len(set(of)) / max(len(of), 1) for of in threes])
        twos = [pair for text in new for pair in itertools.pairwise(text)]
        return Quality(repeated, len(set(twos)) / len(twos), nats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("text", type=Path)
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--pieces", type=int, default=64)
    parser.add_argument("--orders", nargs="+", default=["left", "random", "confidence"])
    given = parser.parse_args()
    model = xlnet_jax.load(given.checkpoint)
    texts = Continued.of(model.require_tokenizer(), given.text.read_text(), given.texts, given.pieces)
    rows: list[list[str]] = []

    def row(name: str, new: Sequence[np.ndarray]) -> None:
        of = texts.quality(new)
        rows.append([name, _mean(of.repeated_T, 1), f"{of.distinct:.3f}", _mean(of.nats_T, 3)])
        print(*rows[-1], sep="  ", flush=True)

    row("the text itself", list(texts.itself[:, GIVEN:]))
    for order in ("left",) if model.is_causal else given.orders:
        for temperature, top_p, penalty in SETTINGS:
            row(
                f"{order}, temperature {temperature:g}, top-p {top_p:g}, penalty {penalty:g}",
                texts.draw(model, temperature=temperature, top_p=top_p, repetition_penalty=penalty, order=order),
            )
    keep_table(f"sampling-{Path(given.checkpoint).name}", ["setting", "repeated, %", "distinct", "nats"], rows)


def _mean(of_texts: np.ndarray, digits: int) -> str:
    """Return the mean and its standard error."""
    return f"{of_texts.mean():.{digits}f} ± {of_texts.std(ddof=1) / len(of_texts) ** 0.5:.{digits}f}"


if __name__ == "__main__":
    main()
