"""Pretraining loss on held-out text, with memory carried from batch to batch."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from data_pipelines.batches import BatchSource
from data_pipelines.corpus import Corpus
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.dims import Batch
from xlnet_jax.objectives.base import DeviceBatch
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.settings.config import Config
from xlnet_jax.training.run.interrupt import Interrupt, Wish
from xlnet_jax.training.state import TrainState
from xlnet_jax.training.step import EvalStep
from xlnet_jax.training.training_run import Numbers

VALIDATION_SEED = 2**31 - 1  # gives every run the same held-out targets


@dataclass(frozen=True)
class HeldOutLoss:
    """`Evaluation` of pretraining: the same batches every time."""

    step: EvalStep
    batches: Sequence[Batch]
    empty_mems: Callable[[], jax.Array]
    put: Callable[[Batch], DeviceBatch]
    unigram_nats: float
    every_steps: int
    is_worth_saving: bool = False
    is_enough: bool = False

    def recall(self, records: Iterable[dict[str, Any]], step: int) -> None:
        """Do nothing: every evaluation is independent of earlier ones."""

    def run(self, state: TrainState, step: int, interrupt: Interrupt) -> Numbers | None:
        """Return what `measure` returns."""
        return self.measure(state.params, lambda: interrupt.poll() is Wish.STOP)

    def measure(self, params: Any, is_stopped: Callable[[], bool]) -> Numbers | None:
        """Return loss, nats per target over all batches, and the other measures per row: pair_loss (nats) and
        pair_accuracy (a share), or detection_loss (nats a token), detection_accuracy and replaced_share. Return None
        where `is_stopped`, asked before each batch, says so."""
        mems_ZBMD = self.empty_mems()
        sums: Any = None
        for batch in self.batches:
            if is_stopped():
                return None
            jax.block_until_ready(sums)  # stay one batch ahead of the device: a stop waits for no more
            scored = self.step(params, self.put(batch), mems_ZBMD)
            mems_ZBMD = scored.new_mems_ZBMD
            of_batch = scored.loss_sum, scored.weight_sum, {**scored.row_losses, **scored.row_measures}
            sums = of_batch if sums is None else jax.tree.map(jnp.add, sums, of_batch)
        loss_sum, weight_sum, row_sums = sums
        rows = len(self.batches) * scored.new_mems_ZBMD.shape[1]
        return {"loss": float(loss_sum / weight_sum)} | {name: float(s) / rows for name, s in row_sums.items()}

    def describe(self, numbers: Numbers) -> str:
        """Return the numbers as printed: 'loss 5.608, 0.512 below the unigram line 6.120', then '; pairs 0.650, 61.2%
        right' or '; detection 0.410, 87.1% right, 12.9% replaced' where there are such."""
        besides = ""
        if "pair_loss" in numbers:
            besides = f"; pairs {numbers['pair_loss']:.3f}, {numbers['pair_accuracy']:.1%} right"
        if "detection_loss" in numbers:
            besides = f"; detection {numbers['detection_loss']:.3f}, {numbers['detection_accuracy']:.1%} right"
            besides += f", {numbers['replaced_share']:.1%} replaced"
        return f"loss {numbers['loss']:.3f}, {relative_to_unigram(numbers['loss'], self.unigram_nats)}{besides}"


def held_out_batches(
    corpus: Corpus, tokenizer: Tokenizer, config: Config, rows: Sequence[int] | np.ndarray | None = None
) -> list[Batch]:
    """Return the batches of an evaluation, `rows` of each (None = all). Where the loss is a likelihood, every block is
    read once; otherwise whole batches of blocks are, or, where there are fewer, some blocks twice."""
    data, mem_len, objective = config.data, config.model.mem_len, objective_named(config.objective)
    source = BatchSource(
        corpus, "validation", tokenizer.is_word_start, data, mem_len, VALIDATION_SEED, objective.filling
    )
    once = objective.loss == "likelihood"
    visits = -(-corpus.num_blocks("validation") // data.batch_size)
    steps = visits * source.steps_per_block if once else source.steps_per_epoch
    batches = list(source.iterate(0, min(steps, -(-config.eval.max_windows // data.batch_size)), rows))
    return list(_read_once(batches, source, rows)) if once else batches


def _read_once(
    batches: Iterable[Batch], source: BatchSource, rows: Sequence[int] | np.ndarray | None
) -> Iterator[Batch]:
    """Yield the batches with weight 0 in rows that read a block again."""
    all_rows = np.arange(source.data.batch_size)
    own, known = all_rows if rows is None else np.asarray(rows), np.zeros(source.corpus.num_blocks(source.split), bool)
    for step, batch in enumerate(batches):
        if step % source.steps_per_block == 0:
            blocks = source.assign(step // source.steps_per_block, all_rows)[0]
            is_first = np.zeros(len(blocks), bool)
            is_first[np.unique(blocks, return_index=True)[1]] = True
            is_first &= ~known[blocks]
            known[blocks] = True
        yield batch | {"target_weights": batch["target_weights"] * is_first[own, None]}


def relative_to_unigram(loss: float, unigram_nats: float) -> str:
    """Return '0.512 below the unigram line 6.120', or above it."""
    side = "below" if loss < unigram_nats else "above"
    return f"{abs(unigram_nats - loss):.3f} {side} the unigram line {unigram_nats:.3f}"
