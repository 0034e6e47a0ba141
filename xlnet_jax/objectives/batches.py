"""Batches that an objective draws from a prepared corpus, in pretraining and for training loops of one's own."""

from pathlib import Path

from data_pipelines.batches import BatchSource
from data_pipelines.corpus import Corpus, SplitName
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.settings.config import Config


def batch_source(
    corpus: Corpus | str | Path,
    tokenizer: Tokenizer,
    config: Config,
    split: SplitName = "train",
    max_windows: int | None = None,
) -> BatchSource:
    """Return the batches that the objective of these settings draws from a corpus, as pretraining does.

    corpus: made by `prepare_corpus`, or its folder. max_windows: most windows of held-out text, in whole batches; None
    = all. `iterate(start, stop)` yields batches made ahead of time, each a pure function of (corpus, settings, seed,
    number): dicts of NumPy arrays (docs/data.md). Raises InputError where the corpus cannot be read, or its blocks are
    too short for a window.
    """
    opened = Corpus(corpus) if isinstance(corpus, str | Path) else corpus
    filling = objective_named(config.objective).filling
    return BatchSource(
        opened, split, tokenizer.is_word_start, config.data, config.model.mem_len, config.seed, filling, max_windows
    )
