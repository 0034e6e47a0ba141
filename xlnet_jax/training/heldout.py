"""The pretraining loss on held-out text, memory carried from batch to batch."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from xlnet_jax.dims import Batch
from xlnet_jax.objectives.objective import DeviceBatch
from xlnet_jax.training.interrupt import Interrupt, Wish
from xlnet_jax.training.loop import Numbers
from xlnet_jax.training.state import TrainState
from xlnet_jax.training.step import EvalStep


@dataclass(frozen=True)
class HeldOutLoss:
    """The `Evaluation` of pretraining: the same batches every time."""

    step: EvalStep
    batches: Sequence[Batch]
    empty_mems: Callable[[], jax.Array]
    put: Callable[[Batch], DeviceBatch]
    unigram_nats: float
    every_steps: int
    is_worth_saving: bool = False
    is_enough: bool = False

    def recall(self, records: Iterable[dict[str, Any]], step: int) -> None:
        """Every evaluation stands by itself."""

    def run(self, state: TrainState, step: int, interrupt: Interrupt) -> Numbers | None:
        """loss: nats per target over all batches."""
        mems_ZBMD = self.empty_mems()
        loss_sum = weight_sum = jnp.zeros(())
        for batch in self.batches:
            if interrupt.poll() is Wish.STOP:
                return None
            jax.block_until_ready(loss_sum)  # one batch ahead of the device and no more: all of it would have to end
            scored = self.step(state.params, self.put(batch), mems_ZBMD)
            mems_ZBMD = scored.new_mems_ZBMD
            loss_sum, weight_sum = loss_sum + scored.loss_sum, weight_sum + scored.weight_sum
        return {"loss": float(loss_sum / weight_sum)}

    def describe(self, numbers: Numbers) -> str:
        """'loss 5.608, 0.512 below the unigram line 6.120'"""
        return f"loss {numbers['loss']:.3f}, {relative_to_unigram(numbers['loss'], self.unigram_nats)}"


def relative_to_unigram(loss: float, unigram_nats: float) -> str:
    """'0.512 below the unigram line 6.120', or above it."""
    side = "below" if loss < unigram_nats else "above"
    return f"{abs(unigram_nats - loss):.3f} {side} the unigram line {unigram_nats:.3f}"
