"""Unigram line: the loss on the held-out targets of a model that knows word frequencies alone."""

from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
import numpy as np

from xlnet_jax.dims import Batch


def unigram_line(counts_V: np.ndarray, batches: Iterable[Batch], put: Callable[[Batch], dict[str, jax.Array]]) -> float:
    """Return the cross-entropy, in nats per target, of the batches' targets under the training text's token counts plus
    one."""
    smoothed_V = counts_V.astype(np.float64) + 1.0
    nats_V = jnp.asarray(-np.log(smoothed_V / smoothed_V.sum()), jnp.float32)

    @jax.jit
    def sums(target_ids_BP: jax.Array, target_weights_BP: jax.Array) -> tuple[jax.Array, jax.Array]:
        return (nats_V[target_ids_BP] * target_weights_BP).sum(), target_weights_BP.sum()

    nats, targets = 0.0, 0.0
    for batch in batches:
        on_mesh = put({k: batch[k] for k in ("target_ids", "target_weights")})
        batch_nats, batch_targets = sums(on_mesh["target_ids"], on_mesh["target_weights"])
        nats, targets = nats + float(batch_nats), targets + float(batch_targets)
    return nats / max(targets, 1.0)
