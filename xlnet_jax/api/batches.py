"""Batches of a prepared corpus, for training loops of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from data_pipelines.batches import BatchSource
    from data_pipelines.corpus import Corpus
    from data_pipelines.tokenizer import Tokenizer
    from xlnet_jax.settings.config import Config


def batch_source(
    corpus: Corpus | str | Path, tokenizer: Tokenizer, config: Config, split: Literal["train", "validation"] = "train"
) -> BatchSource:
    """Return the batches that the objective of these settings draws from a corpus, as pretraining does.

    corpus: made by `prepare_corpus`, or its folder. `iterate(start, stop)` yields batches made ahead of time, each a
    pure function of (corpus, settings, seed, number): dicts of NumPy arrays (docs/data.md). Raises InputError where the
    corpus cannot be read, or its blocks are too short for a window.
    """
    from data_pipelines.batches import BatchSource
    from data_pipelines.corpus import Corpus
    from xlnet_jax.objectives.registry import objective_named

    opened = Corpus(corpus) if isinstance(corpus, str | Path) else corpus
    filling = objective_named(config.objective).filling
    return BatchSource(opened, split, tokenizer.is_word_start, config.data, config.model.mem_len, config.seed, filling)
