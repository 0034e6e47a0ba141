"""Pretraining loss on held-out text, with memory carried from batch to batch."""

from collections.abc import Callable, Iterable, Sequence
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
from xlnet_jax.objectives.batches import batch_source
from xlnet_jax.settings.config import Config
from xlnet_jax.training.run.interrupt import Interrupt, Wish
from xlnet_jax.training.state import TrainState
from xlnet_jax.training.step import EvalStep
from xlnet_jax.training.training_run import Numbers


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
            on_mesh = self.put(batch)
            scored = self.step(params, on_mesh, mems_ZBMD)
            mems_ZBMD = scored.new_mems_ZBMD
            of_rows = {**scored.row_losses, **scored.row_measures}
            of_batch = scored.loss_sum, scored.weight_sum, of_rows, on_mesh["row_weights"].sum()
            sums = of_batch if sums is None else jax.tree.map(jnp.add, sums, of_batch)
        loss_sum, weight_sum, of_rows, rows = sums
        return {"loss": float(loss_sum / weight_sum)} | {name: float(s / rows) for name, s in of_rows.items()}

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


def held_out_source(corpus: Corpus, tokenizer: Tokenizer, config: Config) -> BatchSource:
    """Return the source of held-out batches: every block once, or those that eval.max_windows admits."""
    return batch_source(corpus, tokenizer, config, "validation", config.eval.max_windows)


def held_out_batches(
    corpus: Corpus, tokenizer: Tokenizer, config: Config, rows: Sequence[int] | np.ndarray | None = None
) -> list[Batch]:
    """Return the batches of an evaluation, `rows` of each (None = all)."""
    source = held_out_source(corpus, tokenizer, config)
    return list(source.iterate(0, source.steps_per_epoch, rows))


def relative_to_unigram(loss: float, unigram_nats: float) -> str:
    """Return '0.512 below the unigram line 6.120', or above it."""
    side = "below" if loss < unigram_nats else "above"
    return f"{abs(unigram_nats - loss):.3f} {side} the unigram line {unigram_nats:.3f}"
