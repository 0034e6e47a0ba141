"""Predict the held-out loss of a run from its network, vocabulary and text.

`python -m benchmarks.dial --fit` fits the law and writes dial_law.json beside this file.
"""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from etils import epath

from data_pipelines.corpus import Corpus, SplitName
from xlnet_jax.costs import layer_parameters
from xlnet_jax.settings.config import Config, ModelConfig
from xlnet_jax.storage.reading import read_json

FILE = Path(__file__).with_name("dial_law.json")
SAMPLE = 400_000
"""tokens of the training text, and of the held-out one, that trigrams are counted in"""


@dataclass(frozen=True)
class DialLaw:
    """Gain G - A / N^alpha - B V^delta / (D - D0)^beta: nats per piece by which the held-out loss is below the unigram
    line.

    N: weights of the matrices in layers, where L layers of a width count as 2 (L / 2)^depth. V: pieces. D0: tokens in
    which a network learns frequencies only. D: tokens read, where text that is read again counts less: U tokens that
    are read U + C tokens long count as U + R U (1 - exp(-C / (R U))) (Muennighoff et al. 2023, "Scaling
    Data-Constrained Language Models", equation 5). Below the unigram line, losses of different vocabularies are
    comparable (Tao et al. 2024, "Scaling Laws with Vocabulary", section 2).

    If trigrams gain r times as much as in the texts of the law, the gain is multiplied by 1 + T (r - 1)."""

    G: float
    A: float
    alpha: float
    B: float
    delta: float
    beta: float
    D0: float
    R: float
    depth: float
    T: float
    vocabularies: tuple[tuple[int, float, float], ...]
    """pieces, unigram line and characters per piece in the texts of the law"""
    trigrams: tuple[float, float, float]
    """a, b, c: there, trigrams of n tokens gain a + b log n + c log V over the unigram line"""
    ranges: dict[str, tuple[float, float]]
    """least and most of parameters, pieces, tokens read and of text, and passes over it, of the fitted runs"""
    errors: tuple[float, ...]
    """nats per piece by which the law missed runs that were not fitted"""
    errors_of_others: tuple[float, ...]
    """nats per piece by which it missed all runs on other kinds of text, fitted or not"""

    def gain(
        self, layers: int, parameters: float, pieces: float, read: float, text: float, of_trigrams: float = 1.0
    ) -> float:
        """Return the expected gain. parameters: of all layers. read, text: tokens that are read, and that the text
        has. of_trigrams: r of the text."""
        size = parameters * (layers / 2) ** (self.depth - 1)
        again = max(read / text - 1, 0.0)
        seen = min(read, text) + text * self.R * (1 - math.exp(-again / self.R))
        of_data = self.B * pieces**self.delta / max(seen - self.D0, 1.0) ** self.beta
        gain = max(self.G - self.A / size**self.alpha - of_data, 0.0)
        return gain * (1 + self.T * (of_trigrams - 1))

    def of_vocabulary(self, pieces: float) -> tuple[float, float]:
        """Return the unigram line and the characters per piece of a vocabulary, in the texts of the law."""
        known, *columns = np.array(self.vocabularies).T
        unigram, characters = (float(np.interp(math.log(pieces), np.log(known), column)) for column in columns)
        return unigram, characters

    def nats_per_character(self, model: ModelConfig, read: float, text: float) -> float:
        """Return the expected loss in the texts of the law. read, text: as for `gain`."""
        unigram, characters = self.of_vocabulary(model.vocab_size)
        return (
            unigram - self.gain(model.num_layers, layer_parameters(model), model.vocab_size, read, text)
        ) / characters

    def of_trigrams(self, tokens: int, gain: float, pieces: int) -> float:
        """Return how many times as much trigrams gain as in the texts of the law. tokens, gain: of `trigram_gain`."""
        a, b, c = self.trigrams
        return gain / (a + b * math.log(tokens) + c * math.log(pieces))

    def limits(self, config: Config, read: float, text: float, of_trigrams: float) -> Iterator[str]:
        """Yield why the law may not hold for a run.

        read, text, of_trigrams: as for `gain`.
        """
        facts = {
            "parameters": layer_parameters(config.model), "pieces": config.model.vocab_size,
            "million tokens read": read / 1e6, "million tokens of text": text / 1e6, "passes": read / text,
        }  # fmt: skip
        outside = [
            f"{facts[name]:,.3g} {name} (fitted: {low:,.3g} to {high:,.3g})"
            for name, (low, high) in self.ranges.items()
            if not 0.9 * low <= facts[name] <= 1.1 * high
        ]
        if outside:
            yield f"EXTRAPOLATED to {', '.join(outside)}"
        if not 0.9 <= of_trigrams <= 1.1:
            missed = f"missed {len(self.errors_of_others)} runs on other texts by {max(self.errors_of_others):.2f}"
            yield f"trigrams gain {of_trigrams:.2f} times as much as in the fitted novels; the law {missed} at most"
        if config.objective != Config().objective:
            yield f"fitted to objective {Config().objective}; does not hold for {config.objective}"


def trigram_gain(corpus: Corpus) -> tuple[int, float]:
    """Return the number of tokens of a part of the training text, and the nats per piece by which trigrams of it gain
    over its unigrams in the held-out text."""
    train, held_out = _sample(corpus, "train"), _sample(corpus, "validation")
    return len(train), ngram_loss(train, held_out, 1) - ngram_loss(train, held_out, 3)


def _sample(corpus: Corpus, split: SplitName) -> np.ndarray:
    """Return tokens of blocks at even distances."""
    blocks = corpus.num_blocks(split)
    count = min(blocks, max(SAMPLE // corpus.block_len, 1))
    return corpus.read(split, np.linspace(0, blocks - 1, count).astype(int))[0].ravel().astype(np.uint64)


def ngram_loss(train: np.ndarray, held_out: np.ndarray, order: int) -> float:
    """Return the cross-entropy of tokens under n-grams of training tokens, in nats (Witten and Bell 1991, method C)."""
    factor, contexts = np.uint64(0x9E3779B97F4A7C15), (np.zeros_like(train), np.zeros_like(held_out))
    probability = np.full(len(held_out), 1 / (1 + max(train.max(), held_out.max())))

    def count(keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        known, counts = np.unique(keys, return_counts=True)
        at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        return np.where(known[at] == wanted, counts[at], 0)

    for length in range(order):
        if length:  # contexts grow by the token before
            contexts = tuple(
                (context * factor + np.roll(tokens, length) + np.uint64(1)) * factor
                for context, tokens in zip(contexts, (train, held_out), strict=True)
            )
        grams, wanted = ((c ^ (t + np.uint64(7))) * factor for c, t in zip(contexts, (train, held_out), strict=True))
        kinds = count(contexts[0][np.unique(grams, return_index=True)[1]], contexts[1])
        total = count(contexts[0], contexts[1])
        seen = (count(grams, wanted) + kinds * probability) / np.maximum(total + kinds, 1)
        probability = np.where(total > 0, seen, probability)
    return float(-np.log(probability).mean())


@functools.cache
def read_law() -> DialLaw:
    """Return the law in the package."""
    return read_json(epath.Path(FILE), DialLaw)
