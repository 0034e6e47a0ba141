"""Log-probabilities of hidden pieces of a text, in any order, by the query stream (paper, section 2.3).

A row sees the pieces that are not hidden, and the hidden pieces of lower rank. A row that sees nothing at all, such as
the first of a text that is hidden completely, must read zero from the attention of every layer: with every score masked
a softmax is uniform, and would show it all pieces, its own included.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from data_pipelines.tokenizer import PAD
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.inference.lengths import batches_by_length, padded, padded_length
from xlnet_jax.kernels.arguments import Relations
from xlnet_jax.models.inputs import Inputs, compact_inputs
from xlnet_jax.models.masks import HIGHEST
from xlnet_jax.models.xlnet import XLNetLM
from xlnet_jax.objectives.language_model import cross_entropy_BP
from xlnet_jax.settings.config import ModelConfig

CONTEXT = -1  # rank of the pieces that are given: below every hidden piece


class Query(NamedTuple):
    """A text and its pieces to predict."""

    ids_L: np.ndarray  # int32
    positions_P: np.ndarray  # int
    rank_P: np.ndarray  # int, from 0; pieces of equal rank do not see each other


class QueryBatch(NamedTuple):
    """Queries of one shape, padded; nothing sees padding."""

    ids_BL: np.ndarray  # int32
    real_BL: np.ndarray  # int32, 1 = real token
    rank_BL: np.ndarray  # int32
    positions_BP: np.ndarray  # int32
    target_ids_BP: np.ndarray  # int32, the pieces at these positions


def log_probs_PV(pretrained: Pretrained, query: Query) -> np.ndarray:
    """Return the log-probability of every piece of the vocabulary at the positions of a query, float32 [P, V], nats."""
    length, targets = padded_length(len(query.ids_L)), padded_length(len(query.positions_P))
    batch = padded_queries([query], 1, length, targets)
    return np.asarray(_log_probs_BPV(pretrained.model, pretrained.params, batch)[0, : len(query.positions_P)])


def log_likelihoods(pretrained: Pretrained, queries: Sequence[Query], batch_tokens: int) -> list[np.ndarray]:
    """Return the log-probabilities of the pieces at the positions of each query, float32 [P], nats.

    batch_tokens: most tokens that the network reads at once. The result for a query depends neither on it nor on the
    other queries.
    """
    found: list[np.ndarray] = [np.zeros(0, np.float32)] * len(queries)
    alone = all(len(query.positions_P) == 1 for query in queries)
    for indices, rows, length in batches_by_length([len(query.ids_L) for query in queries], batch_tokens):
        batch = padded_queries([queries[i] for i in indices], rows, length, 1 if alone else length)
        scores_BP = np.asarray(_log_likelihoods_BP(pretrained.model, pretrained.params, batch))
        for i, scores_P in zip(indices, scores_BP, strict=False):
            found[i] = scores_P[: len(queries[i].positions_P)]
    return found


def padded_queries(queries: Sequence[Query], rows: int, length: int, targets: int) -> QueryBatch:
    """Return queries as one batch of this many rows, each of `length` tokens and `targets` query rows."""
    ranks = []
    for ids_L, positions_P, rank_P in queries:
        rank_L = np.full(len(ids_L), CONTEXT)
        rank_L[positions_P] = rank_P
        ranks.append(rank_L)
    return QueryBatch(
        padded([q.ids_L for q in queries], rows, length, PAD),
        padded([np.ones_like(q.ids_L) for q in queries], rows, length, 0),
        padded(ranks, rows, length, CONTEXT),
        padded([q.positions_P for q in queries], rows, targets, 0),
        padded([q.ids_L[q.positions_P] for q in queries], rows, targets, 0),
    )


def query_inputs(
    config: ModelConfig, batch: QueryBatch, segment_ids_BL: jnp.ndarray | None = None
) -> tuple[Inputs, jax.Array]:
    """Return (inputs of the network, memory of one slot), with keys K = 1 + L. segment_ids: None = segment 0.

    A row that sees no piece reads the slot, whose values are zeros; no other row sees it.
    """
    rows = batch.ids_BL.shape[0]
    inputs = compact_inputs(
        jnp.asarray(batch.ids_BL),
        jnp.zeros_like(batch.ids_BL) if segment_ids_BL is None else segment_ids_BL,
        jnp.asarray(batch.rank_BL),
        jnp.asarray(batch.positions_BP),
        jnp.zeros(rows, bool),
        jnp.zeros((rows, 1), bool),
        attention_mask_BL=jnp.asarray(batch.real_BL),
        attend_empty_memory=True,
    )
    inputs = inputs._replace(relations=_memory_for_rows_that_see_nothing(inputs.relations))
    return inputs, jnp.zeros((config.num_layers, rows, 1, config.d_model))


def _logits_BPV(config: ModelConfig, params: Any, batch: QueryBatch) -> jax.Array:
    inputs, mems_ZBMD = query_inputs(config, batch)
    logits_BPV, _ = cast(Any, XLNetLM(config).apply)({"params": params}, inputs, mems_ZBMD)
    return logits_BPV


def _memory_for_rows_that_see_nothing(relations: Relations) -> Relations:
    # The one memory slot, at position -1, is empty and read as zeros.
    sees_nothing_BT = relations.row_rank_BT < relations.key_rank_BK[:, 1:].min(1, keepdims=True)
    first_BT = jnp.where(sees_nothing_BT, -1, 0)
    return relations.within(first_BT, jnp.full_like(first_BT, HIGHEST))


def _run_all(config: ModelConfig, params: Any, batch: QueryBatch) -> jax.Array:
    return jax.nn.log_softmax(_logits_BPV(config, params, batch))


def _run_own(config: ModelConfig, params: Any, batch: QueryBatch) -> jax.Array:
    return -cross_entropy_BP(_logits_BPV(config, params, batch), jnp.asarray(batch.target_ids_BP))


_log_probs_BPV = jax.jit(_run_all, static_argnums=0)
_log_likelihoods_BP = jax.jit(_run_own, static_argnums=0)
