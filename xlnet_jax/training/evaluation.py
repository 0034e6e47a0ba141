"""The held-out loss of any checkpoint on any text, as training measures it: the same windows, masks, targets and
carried memory, so that a run's own number comes out for its own text."""

import contextlib
import itertools
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from data_pipelines import windows
from data_pipelines.corpus import Corpus, is_corpus
from data_pipelines.prepare import prepare
from data_pipelines.readers import Errors
from data_pipelines.sources import Source
from data_pipelines.tokenizer import CLS, SEP, Tokenizer
from data_pipelines.tokenizer.symbols import SPECIAL_PIECES, UNK
from xlnet_jax.config import Config, ModelConfig
from xlnet_jax.dims import Batch
from xlnet_jax.interop import native
from xlnet_jax.interop.pretrained import Pretrained
from xlnet_jax.objectives.language_model import LanguageModel
from xlnet_jax.objectives.query_stream import scoring_tokenizer
from xlnet_jax.rules import validate
from xlnet_jax.training import sharding
from xlnet_jax.training.heldout import HeldOutLoss, held_out_batches
from xlnet_jax.training.optimizer import make_optimizer
from xlnet_jax.training.state import empty_mems_ZBMD, plan_state
from xlnet_jax.training.step import make_eval_step
from xlnet_jax.training.unigram import unigram_line


@dataclass(frozen=True)
class Run:
    """The pretraining run that a checkpoint is of."""

    folder: Path
    config: Config

    @classmethod
    def of(cls, checkpoint: str | Path) -> "Run | None":
        """None where it is of none: of another project, or converted."""
        source = Path(checkpoint)
        found = native.find(source) if source.is_dir() else None
        config = native.run_config(found) if found else None
        return cls(found.parent.parent, config) if found and config else None

    def corpus(self) -> Corpus | None:
        """The text that it learns from, with its held-out part, where that is still there."""
        beside = self.folder / "corpus"
        there = next((name for name in (beside, *(self.config.corpus or ())) if is_corpus(name)), None)
        return Corpus(there) if there else None


def trained_mem_len(pretrained: Pretrained, run: Run | None) -> int:
    """Positions of memory that the weights were trained with; the paper's where the checkpoint does not say, as most of
    Hugging Face's."""
    return pretrained.model.mem_len if run else pretrained.model.mem_len or ModelConfig().mem_len


@dataclass(frozen=True)
class Measured:
    """What was measured on some windows, and what their text consists of."""

    loss: float  # nats per target: a piece that was predicted
    targets: int
    unigram: float  # nats per target, of a model that knows how frequent pieces are
    windows: int
    pieces: int  # of the text in the windows, without <sep> and <cls>
    characters: int  # that these pieces stand for; a space counts, an unknown piece is one
    words: int  # pieces that begin with a space

    @property
    def perplexity(self) -> float:
        """Per piece."""
        return math.exp(self.loss)

    @property
    def bits_per_piece(self) -> float:
        return self.loss / math.log(2)

    @property
    def bits_per_character(self) -> float:
        """Those of a piece, times pieces per character of the text."""
        return self.bits_per_piece * self.pieces / max(self.characters, 1)

    @property
    def bits_per_word(self) -> float:
        """Those of a piece, times pieces per word of the text."""
        return self.bits_per_piece * self.pieces / max(self.words, 1)


@contextlib.contextmanager
def corpus_of(text: Sequence[Source], tokenizer: Tokenizer, config: Config, errors: Errors) -> Iterator[Corpus]:
    """This text as the held-out part of a corpus, which is gone afterwards; its unigram counts are of the same text."""
    with tempfile.TemporaryDirectory() as folder:
        yield prepare(
            text, text, tokenizer, Path(folder) / "corpus", block_len=windows.block_len(config.data),
            validation_fraction=config.data.validation_fraction, errors=errors,
        )  # fmt: skip


def evaluate(
    pretrained: Pretrained,
    corpus: Corpus,
    config: Config,
    unigram_counts: np.ndarray,
    on_batch: Callable[[int, int], None] = lambda number, batches: None,
) -> Measured:
    """The loss of a checkpoint on the validation split of a corpus. config: its data, eval, mesh and model.mem_len
    count; unigram_counts: int64 [V], of the text that the unigram line knows.

    on_batch: called before each batch with its number, from 1, and that of all. Raises InputError where the settings
    contradict each other, or the corpus or the checkpoint does not fit.
    """
    tokenizer = scoring_tokenizer(pretrained)
    corpus.demand(tokenizer, "the checkpoint's")
    config = replace(config, model=replace(pretrained.model, mem_len=config.model.mem_len))
    validate(config)
    mesh = sharding.make_mesh(config)
    put = sharding.batch_to_mesh(mesh, config.data.batch_size)
    batches = held_out_batches(corpus, tokenizer, config)
    unigram = unigram_line(unigram_counts, batches, put)

    objective = LanguageModel(config)
    plan = plan_state(objective, make_optimizer(config.optimizer, config.steps), mesh)
    held_out = HeldOutLoss(
        make_eval_step(objective, plan, mesh), batches, lambda: empty_mems_ZBMD(plan), put, unigram,
        config.eval.every_steps,
    )  # fmt: skip
    counted = itertools.count(1)

    def is_stopped() -> bool:
        on_batch(next(counted), len(batches))
        return False

    numbers = held_out.measure(sharding.from_host(pretrained.params, plan.shardings.params), is_stopped)
    assert numbers is not None
    targets = int(sum(batch["target_weights"].sum() for batch in batches))
    return Measured(
        numbers["loss"], targets, unigram, len(batches) * config.data.batch_size, *_content(batches, tokenizer)
    )


def _content(batches: Sequence[Batch], tokenizer: Tokenizer) -> tuple[int, int, int]:
    """(pieces, characters, words) of the windows' text."""
    counts_V = sum(np.bincount(batch["input_ids"].ravel(), minlength=tokenizer.vocab_size) for batch in batches)
    counts_V = np.asarray(counts_V)
    counts_V[[SEP, CLS]] = 0
    lengths_V = np.array([len(piece) for piece in tokenizer.pieces])
    lengths_V[: len(SPECIAL_PIECES)] = 0
    lengths_V[UNK] = 1
    return int(counts_V.sum()), int(counts_V @ lengths_V), int(counts_V @ tokenizer.tables.has_space)
