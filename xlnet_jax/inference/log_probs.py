"""Log-probabilities of the pieces of a text: of hidden pieces in any order, by the query stream (paper, section 2.3),
and of next pieces, by a causal network. Batches have few shapes, because each needs a compiled program.

A row of the query stream sees the pieces that are not hidden, and hidden pieces of lower rank. A row that sees nothing,
such as the first of a completely hidden text, must read zero from the attention of every layer: with all scores masked,
a softmax is uniform and would reveal all pieces, including its own.

A text can be read in segments, each with the hidden states of the mem_len positions before it, so that every token is
read once (Transformer-XL: Dai et al. 2019, section 3.2). A network of any order reads a segment for memory in a pass of
its own, in which all tokens see each other, so memory does not depend on the order. A causal network can also read a
separate window for each token, in which only the last position predicts (Al-Rfou et al. 2019; Dai et al. 2019, section
3.1). Both give the same numbers until a text is longer than the memory. After that they differ, because the hidden
states in memory depend on tokens before the window.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from data_pipelines.tokenizer import MASK, PAD
from xlnet_jax.checkpoints.pretrained import Pretrained, require_vocabulary_scores
from xlnet_jax.errors import InputError
from xlnet_jax.kernels.arguments import round_up
from xlnet_jax.models.heads import build_encoder, build_model
from xlnet_jax.models.inputs import Inputs, compact_inputs
from xlnet_jax.models.masks import HIGHEST, memory_in_use_BM
from xlnet_jax.objectives.language_model import cross_entropy_BP
from xlnet_jax.objectives.registry import objective_named, segment_of_V
from xlnet_jax.settings.config import ModelConfig

CONTEXT, PADDING = -1, -2  # in place of the ranks of given pieces, which all see, and of padding, which none sees
SHORTEST = 16  # padded length
FEW_TOKENS = 128  # smaller batches are not faster
BATCH_TOKENS = 4096


# ---- batches ---------------------------------------------------------------------------------------------------------


def batches_by_length(
    lengths: Sequence[int], batch_tokens: int, longest: int = 2**31
) -> Iterator[tuple[list[int], int, int]]:
    """Yield (indices of rows, number of rows in the batch, padded length), the shortest rows first.

    Each batch has rows of the same padded length. batch_tokens: maximum number of tokens in a batch, including padding;
    a batch has at least one row. longest: largest padded length; longer rows come in batches of their own, to be read
    in segments of this length.
    """
    by_length: dict[tuple[bool, int], list[int]] = {}
    for i in np.argsort(np.asarray(lengths), kind="stable").tolist():
        padded_length = min(max(SHORTEST, round_up_size(lengths[i], 2)), longest)
        by_length.setdefault((lengths[i] > longest, padded_length), []).append(i)
    for (_, length), rows in by_length.items():
        most = max(1, batch_tokens // length)
        evenly = math.ceil(len(rows) / math.ceil(len(rows) / most))
        size = min(most, max(round_up_size(evenly, 4), FEW_TOKENS // length))
        for begin in range(0, len(rows), size):
            yield rows[begin : begin + size], size, length


def round_up_size(n: int, steps: int) -> int:
    """Return the next of few sizes, because each is compiled: from each power of two to the next there are `steps`,
    evenly spaced."""
    return round_up(n, max(1, power_of_two(n) // (2 * steps)))


def power_of_two(n: int) -> int:
    """Return the smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()


def padded(
    rows: Sequence[np.ndarray], num_rows: int, length: int, fill: int, dtype: type[np.generic] = np.int32
) -> np.ndarray:
    """Return [num_rows, length]: the rows, padded on the right with `fill`; missing rows are all `fill`."""
    array = np.full((num_rows, length), fill, dtype)
    for i, row in enumerate(rows):
        array[i, : len(row)] = row
    return array


# ---- hidden pieces ---------------------------------------------------------------------------------------------------


class Query(NamedTuple):
    """A text and the pieces of it to predict."""

    ids_L: np.ndarray  # int32
    positions_P: np.ndarray  # int
    rank_P: np.ndarray  # int, from 0; pieces of equal rank do not see each other
    mems_ZMD: Any = None  # hidden states of the M positions before the text, which all its pieces see; None = none


def log_probs_PV(pretrained: Pretrained, query: Query) -> np.ndarray:
    """Return the log-probability of every piece of the vocabulary at the positions of a query, float32 [P, V], nats."""
    return log_probs_of_vocabulary(pretrained, [query], BATCH_TOKENS)[0]


def log_probs_of_vocabulary(pretrained: Pretrained, queries: Sequence[Query], batch_tokens: int) -> list[np.ndarray]:
    """Return `log_probs_PV` of each query. The arguments and errors are those of `log_likelihoods`."""
    return _score(pretrained, queries, batch_tokens, _of_vocabulary_BPV)


def log_likelihoods(pretrained: Pretrained, queries: Sequence[Query], batch_tokens: int) -> list[np.ndarray]:
    """Return the log-probabilities of the pieces at the positions of each query, float32 [P], nats.

    All queries have memory of one length, or none has. batch_tokens: maximum number of tokens in a batch. The result
    for a query depends neither on it nor on the other queries. Raises InputError if a text has more pieces than the
    network has learned positions.
    """
    return _score(pretrained, queries, batch_tokens, _of_pieces_BP)


def beside_likeliest(pretrained: Pretrained, queries: Sequence[Query], batch_tokens: int) -> list[np.ndarray]:
    """Return as `log_likelihoods`, with the log-probability of the likeliest piece beside each: float32 [P, 2]."""
    return _score(pretrained, queries, batch_tokens, _beside_likeliest_BP2)


def _score(
    pretrained: Pretrained, queries: Sequence[Query], batch_tokens: int, score: Callable[..., jax.Array]
) -> list[np.ndarray]:
    """Return what `score` returns for the pieces of each query, float32 [P, ...].

    By the query stream, a query is one row. A network that reads `<mask>` predicts the pieces of each rank in a row of
    their own, in which they and all pieces of higher rank read `<mask>`.
    """
    model, by_mask = pretrained.model, objective_named(pretrained.objective).filling.stream == "content"
    longest, lengths = model.num_places, [len(query.ids_L) for query in queries]
    if max(lengths, default=0) > longest:
        raise InputError(f"a text has {max(lengths)} pieces, but the checkpoint {longest} learned positions: split it")
    orders = [np.argsort(query.rank_P, kind="stable") for query in queries]
    rows: list[tuple[int, Query, int]] = []  # number of the query, its hidden pieces by rank, how many to predict
    for i, (query, order_P) in enumerate(zip(queries, orders, strict=True)):
        first = np.unique(query.rank_P[order_P], return_index=True)[1].tolist() if by_mask else [0]
        for begin, end in pairwise([*first, len(order_P)]):
            positions_P, rank_P = query.positions_P[order_P[begin:]], query.rank_P[order_P[begin:]]
            rows.append((i, query._replace(positions_P=positions_P, rank_P=rank_P), end - begin))
    most = power_of_two(max((count for *_, count in rows), default=1))
    found: list[list[np.ndarray]] = [[] for _ in queries]
    for places, size, length in batches_by_length([lengths[i] for i, *_ in rows], batch_tokens, longest):
        ids_BL, *others = stack_queries([rows[place][1] for place in places], size, length, min(most, length))
        segments_BL = segment_ids(pretrained, ids_BL)
        scores = np.asarray(_program(model, by_mask, score, pretrained.params, ids_BL, segments_BL, *others))
        for place, of_row in zip(places, scores, strict=False):
            i, _, count = rows[place]
            found[i].append(of_row[:count])
    return [np.concatenate(by_rank)[np.argsort(order_P)] for by_rank, order_P in zip(found, orders, strict=True)]


def segment_ids(pretrained: Pretrained, ids_BL: np.ndarray) -> np.ndarray:
    """Return the segment of each piece, int32 [B, L]: in records the index of its field, in prose 0."""
    if pretrained.tokenizer is None or pretrained.tokenizer.records is None:
        return np.zeros_like(ids_BL)
    return segment_of_V(pretrained.tokenizer, pretrained.model)[ids_BL]


@functools.partial(jax.jit, static_argnums=0)
def extend_memory(
    config: ModelConfig, backbone: Any, ids_BL: jax.Array, segment_ids_BL: jax.Array, mems_ZBMD: jax.Array | None
) -> jax.Array:
    """Return the memory after a segment whose pieces all see each other and the memory before it (None = none): the
    hidden states of the newest mem_len positions, [Z, B, M, D]. config: of `with_mem_len`; ids: without padding."""
    memory_BM = None if mems_ZBMD is None else jnp.ones(mems_ZBMD.shape[1:3], bool)
    inputs = compact_inputs(ids_BL, segment_ids_BL=segment_ids_BL, memory_BM=memory_BM)
    return cast(Any, build_encoder(config).apply({"params": backbone}, inputs, mems_ZBMD)).new_mems_ZBMD


def stack_queries(
    queries: Sequence[Query], rows: int, length: int, targets: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Any]:
    """Return (ids [rows, length], ranks, the first `targets` positions to predict, memory [Z, rows, M, D]) of queries,
    padded. All have memory of one length, or none has (None)."""
    ranks = [np.full(len(query.ids_L), CONTEXT) for query in queries]
    for rank_L, query in zip(ranks, queries, strict=True):
        rank_L[query.positions_P] = query.rank_P
    mems = [q.mems_ZMD for q in queries]
    return (
        padded([q.ids_L for q in queries], rows, length, PAD),
        padded(ranks, rows, length, PADDING),
        padded([q.positions_P[:targets] for q in queries], rows, targets, 0),
        None if mems[0] is None else jnp.stack(mems + mems[-1:] * (rows - len(mems)), axis=1),
    )


def query_inputs(
    config: ModelConfig,
    ids_BL: jax.Array,
    segment_ids_BL: jax.Array,
    rank_BL: jax.Array,
    positions_BP: jax.Array,
    mems_ZBMD: jax.Array | None,
) -> tuple[Inputs, jax.Array]:
    """Return (inputs of the network, memory), with keys K = M + L, for the query stream.

    All rows see all memory. Without memory there is one slot, at position -1, whose values are zeros; only rows that
    see no piece see it.
    """
    has_memory = mems_ZBMD is not None
    mems_ZBMD = jnp.zeros((config.num_layers, len(ids_BL), 1, config.d_model)) if mems_ZBMD is None else mems_ZBMD
    inputs = compact_inputs(
        ids_BL,
        segment_ids_BL=segment_ids_BL,
        perm_rank_BL=rank_BL,
        target_positions_BP=positions_BP,
        memory_BM=jnp.full(mems_ZBMD.shape[1:3], has_memory),
        attention_mask_BL=rank_BL != PADDING,
        attend_empty_memory=True,
    )
    if has_memory:
        return inputs, mems_ZBMD
    relations = inputs.relations
    sees_nothing_BT = relations.row_rank_BT < relations.key_rank_BK[:, 1:].min(1, keepdims=True)
    first_BT = jnp.where(sees_nothing_BT, -1, 0)
    return inputs._replace(relations=relations.within(first_BT, jnp.full_like(first_BT, HIGHEST))), mems_ZBMD


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _program(
    config: ModelConfig,
    by_mask: bool,
    score: Callable[..., jax.Array],
    params: Any,
    ids_BL: jax.Array,
    segments_BL: jax.Array,
    rank_BL: jax.Array,
    positions_BP: jax.Array,
    mems_ZBMD: jax.Array | None,
) -> jax.Array:
    logits_BPV = query_logits_BPV(config, by_mask, params, ids_BL, segments_BL, rank_BL, positions_BP, mems_ZBMD)
    return score(logits_BPV, jnp.take_along_axis(ids_BL, positions_BP, axis=1))


def query_logits_BPV(
    config: ModelConfig,
    by_mask: bool,
    params: Any,
    ids_BL: jax.Array,
    segments_BL: jax.Array,
    rank_BL: jax.Array,
    positions_BP: jax.Array,
    mems_ZBMD: jax.Array | None,
) -> jax.Array:
    """Return the scores of all pieces at the positions of queries (`stack_queries`). segments: of `segment_ids`;
    by_mask: the network reads `<mask>` where the rank is that of a hidden piece."""
    if by_mask:
        memory_BM = None if mems_ZBMD is None else jnp.ones(mems_ZBMD.shape[1:3], bool)
        inputs = compact_inputs(
            jnp.where(rank_BL < 0, ids_BL, MASK),
            segment_ids_BL=segments_BL,
            memory_BM=memory_BM,
            attention_mask_BL=rank_BL != PADDING,
        )
    else:
        inputs, mems_ZBMD = query_inputs(config, ids_BL, segments_BL, rank_BL, positions_BP, mems_ZBMD)
    network = cast(Any, build_model(config, None))
    at_BP = positions_BP if by_mask else None
    logits_BPV, _ = network.apply({"params": params}, inputs, mems_ZBMD, at_BP=at_BP, needs_content=False)
    return cast(jax.Array, logits_BPV)


def _of_vocabulary_BPV(logits_BPV: jax.Array, _: jax.Array) -> jax.Array:
    return jax.nn.log_softmax(logits_BPV)


def _of_pieces_BP(logits_BPV: jax.Array, ids_BP: jax.Array) -> jax.Array:
    return -cross_entropy_BP(logits_BPV, ids_BP)


def _beside_likeliest_BP2(logits_BPV: jax.Array, ids_BP: jax.Array) -> jax.Array:
    """Return the log-probabilities of these pieces and of the likeliest ones, which are equal for the same piece."""
    return jnp.stack([-cross_entropy_BP(logits_BPV, x_BP) for x_BP in (ids_BP, logits_BPV.argmax(-1))], axis=-1)


# ---- next pieces, by a causal network --------------------------------------------------------------------------------


def require_causal(pretrained: Pretrained) -> None:
    """Raise InputError if the weights do not predict the next piece."""
    require_vocabulary_scores(pretrained)
    objective = objective_named(pretrained.objective)
    if objective.order != "left to right":
        raise InputError(
            f"the checkpoint was trained to predict {objective.learns} ({objective.name}), not the next piece: "
            "give one that was trained with `objective` clm"
        )


def with_mem_len(config: ModelConfig, mem_len: int) -> ModelConfig:
    """Return the settings of a network with this memory length. Raises InputError if its positions do not support
    memory."""
    if mem_len < 0:
        raise InputError("mem_len", mem_len, "must be at least 0")
    if mem_len and config.positions != "relative":
        why = f": the checkpoint has {config.positions} positions, which cannot describe memory: give 0"
        raise InputError("mem_len", mem_len, why)
    # With same_length and no memory, rows would see no earlier positions; without it they see the window.
    return replace(config, mem_len=mem_len, same_length=config.same_length and mem_len > 0)


def causal_beside_likeliest(
    pretrained: Pretrained,
    texts: Sequence[np.ndarray],
    batch_tokens: int = BATCH_TOKENS,
    segment_len: int | None = None,
    mem_len: int = 0,
) -> list[np.ndarray]:
    """Return for each text, int32 [L], the log-probabilities of its pieces after the first, given all pieces before
    them, and beside each that of the likeliest piece: float32 [L - 1, 2], nats.

    batch_tokens: maximum number of tokens in a batch; does not change the results. segment_len: a text with more pieces
    after the first is read in segments with a memory of mem_len positions; None = no text is. Raises InputError if the
    checkpoint is not causal, or does not support memory.
    """
    require_causal(pretrained)
    found: list[np.ndarray] = [np.zeros(0, np.float32)] * len(texts)
    lengths = [len(ids_L) - 1 for ids_L in texts]
    for indices, rows, length in batches_by_length(lengths, batch_tokens, segment_len or 2**31):
        longest, read = lengths[indices[-1]], [texts[i] for i in indices]
        config = with_mem_len(pretrained.model, mem_len if longest > length else 0)
        scores, mems_ZBMD = [], jnp.zeros((config.num_layers, rows, config.mem_len, config.d_model), config.dtype)
        for begin in range(0, longest, length):
            end = begin + length
            ids_BL = padded([ids_L[:-1][begin:end] for ids_L in read], rows, length, PAD)
            next_BL = padded([ids_L[1:][begin:end] for ids_L in read], rows, length, PAD)
            # At most mem_len: in a long text the position would overflow int32.
            filled = min(begin, config.mem_len)
            scores_BL2, mems_ZBMD = _segment(config, pretrained.params, ids_BL, next_BL, mems_ZBMD, filled)
            scores.append(np.asarray(scores_BL2))
        for i, scores_L2 in zip(indices, np.concatenate(scores, axis=1), strict=False):
            found[i] = scores_L2[: lengths[i]]
    return found


def by_window(
    pretrained: Pretrained,
    ids_L: np.ndarray,
    window_len: int,
    targets_P: np.ndarray | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> np.ndarray:
    """Return the log-probabilities of the pieces at targets_P (None = all after the first), float32 [P], nats. Each is
    predicted by a forward pass over the window_len pieces before it, or over all if there are fewer.

    batch_tokens: maximum number of tokens in a batch of windows; does not change the results. Raises InputError if the
    checkpoint is not causal.
    """
    require_causal(pretrained)
    config = with_mem_len(pretrained.model, 0)
    targets_P = np.arange(1, len(ids_L)) if targets_P is None else targets_P
    # With fewer pieces before a target, later pieces fill the window; causal rows do not see them.
    begins_P = np.maximum(targets_P - window_len, 0)
    ids_L = np.pad(ids_L, (0, max(window_len - len(ids_L), 0)), constant_values=PAD)
    rows, scores = max(batch_tokens // window_len, 1), []
    for first in range(0, len(targets_P), rows):
        batch = slice(first, first + rows)
        missing = rows - len(targets_P[batch])
        begins_B, targets_B = (np.pad(of_P[batch], (0, missing), mode="edge") for of_P in (begins_P, targets_P))
        windows_BL = ids_L[begins_B[:, None] + np.arange(window_len)]
        at_B1, next_B1 = (targets_B - 1 - begins_B)[:, None], ids_L[targets_B][:, None]
        scores_B12, _ = _segment(config, pretrained.params, windows_BL, next_B1, None, 0, at_B1)
        scores.append(scores_B12[:, 0, 0])
    return np.concatenate(scores)[: len(targets_P)]


@functools.partial(jax.jit, static_argnums=0, donate_argnums=4)
def _segment(
    config: ModelConfig, params: Any, ids_BL: jax.Array, next_BP: jax.Array, mems_ZBMD: Any, filled: int,
    at_BP: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """Return (log-probabilities of the pieces after these positions beside those of the likeliest, memory for the next
    segment). at: None = after all."""
    logits_BPV, new_mems_ZBMD = next_logits(config, params, ids_BL, mems_ZBMD, filled, at_BP)
    return _beside_likeliest_BP2(logits_BPV, next_BP), new_mems_ZBMD


def next_logits(
    config: ModelConfig, params: Any, ids_BL: jax.Array, mems_ZBMD: Any, filled: int, at_BP: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """Return (scores of all pieces after these positions [B, P, V], memory for the next segment). config: of
    `with_mem_len`; filled: positions of memory in use; at: None = after all."""
    rank_BL = jnp.broadcast_to(jnp.arange(ids_BL.shape[1], dtype=jnp.int32), ids_BL.shape)
    memory_BM = memory_in_use_BM(jnp.full(len(ids_BL), filled), config.mem_len)
    inputs = compact_inputs(ids_BL, perm_rank_BL=rank_BL, memory_BM=memory_BM)
    network = cast(Any, build_model(config, None))
    logits_BPV, outputs = network.apply({"params": params}, inputs, mems_ZBMD, at_BP=at_BP, needs_content=False)
    return logits_BPV, outputs.new_mems_ZBMD
