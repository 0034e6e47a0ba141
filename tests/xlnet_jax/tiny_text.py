"""A corpus of random tokens in memory, and the batches that any objective makes of it."""

from types import SimpleNamespace

import numpy as np

from data_pipelines import windows
from data_pipelines.batches import BatchSource
from data_pipelines.corpus import Start
from xlnet_jax.objectives.registry import objective_named

BLOCKS = 32


class TinyCorpus:
    """Stands for a `Corpus`: tokens behind the special ones, a word at every other, a sentence at every fifth, a
    document at every fifteenth."""

    folder = "nowhere"

    def __init__(self, vocab_size, block_len):
        self.block_len = block_len
        self.manifest = SimpleNamespace(
            made_from={}, sources=("tiny",), weights=(), splits=dict.fromkeys(("train", "validation"), _split())
        )
        self._tokens = np.random.default_rng(0).integers(9, vocab_size, (BLOCKS, block_len)).astype(np.int32)

    def num_blocks(self, split):
        return BLOCKS

    def read(self, split, indices):
        starts = np.zeros((len(indices), self.block_len), np.uint8)
        starts[:, ::5] = Start.SENTENCE
        starts[:, ::15] = Start.DOCUMENT
        return self._tokens[indices], starts


def _split():
    return SimpleNamespace(source_blocks=(BLOCKS,))


def batches_of(config):
    """The `BatchSource` of a run with these settings."""
    vocab_size = config.model.vocab_size
    corpus = TinyCorpus(vocab_size, windows.block_len(config.data))
    is_word_start = np.arange(vocab_size) % 2 == 0
    filling = objective_named(config.objective).filling
    return BatchSource(corpus, "train", is_word_start, config.data, config.model.mem_len, config.seed, filling)
