"""Unigram line: the loss on the held-out targets of a model that knows word frequencies alone."""

from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
import numpy as np

from data_pipelines.tokenizer import UNK
from xlnet_jax.dims import Batch

Put = Callable[[Batch], dict[str, jax.Array]]


def unigram_line(counts_V: np.ndarray, batches: Iterable[Batch], put: Put) -> float:
    """Return the cross-entropy, in nats per target, of the batches' targets under the frequencies of a text."""
    return _mean_over_targets(-np.log(frequencies_V(counts_V)), batches, put)


def unknown_share(vocab_size: int, batches: Iterable[Batch], put: Put) -> float:
    """Return the share of `<unk>` among the targets of the batches."""
    return _mean_over_targets(np.arange(vocab_size) == UNK, batches, put)


def frequencies_V(counts_V: np.ndarray) -> np.ndarray:
    """Return the frequency of each piece, estimated from its count in a text (Witten and Bell 1991, method C).

    A text of N tokens that has T of the V pieces gives (count + T / V) / (N + T): add-one smoothing where it has all
    pieces, and little to the pieces that a short text does not have.
    """
    kinds = np.count_nonzero(counts_V)
    return (counts_V + kinds / len(counts_V)) / (counts_V.sum() + kinds)


def _mean_over_targets(values_V: np.ndarray, batches: Iterable[Batch], put: Put) -> float:
    """Return the mean of a value of each target, over the batches on all hosts."""
    values_on_device_V = jnp.asarray(values_V, jnp.float32)

    @jax.jit
    def sums(target_ids_BP: jax.Array, target_weights_BP: jax.Array) -> tuple[jax.Array, jax.Array]:
        return (values_on_device_V[target_ids_BP] * target_weights_BP).sum(), target_weights_BP.sum()

    total, targets = 0.0, 0.0
    for batch in batches:
        on_mesh = put({k: batch[k] for k in ("target_ids", "target_weights")})
        batch_total, batch_targets = sums(on_mesh["target_ids"], on_mesh["target_weights"])
        total, targets = total + float(batch_total), targets + float(batch_targets)
    return total / max(targets, 1.0)
