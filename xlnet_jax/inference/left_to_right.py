"""Causal language models over texts: log p(x_t | x_<t), with memory or with a sliding window.

With memory a text is read in whole segments, each with the hidden states of the mem_len positions before it, so that
every token is read once (Transformer-XL: Dai et al. 2019, section 3.2). Without memory every token needs a window of
its own to have as much context: only the last position of a window predicts (Al-Rfou et al. 2019; Dai et al. 2019,
section 3.1). Both give the same numbers until a text is longer than the memory. After that they differ: a window
forgets the tokens before it, while the hidden states in memory have seen them.
"""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from data_pipelines.tokenizer import PAD
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.errors import InputError
from xlnet_jax.inference.lengths import batches_by_length, padded
from xlnet_jax.models.heads import build_model
from xlnet_jax.models.inputs import Inputs, compact_inputs
from xlnet_jax.models.masks import memory_in_use_BM
from xlnet_jax.objectives.language_model import cross_entropy_BP
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.settings.config import ModelConfig

BATCH_TOKENS = 4096


def demand_causal(pretrained: Pretrained) -> None:
    """Raise InputError where the weights do not predict the next piece."""
    if pretrained.head is not None:
        raise InputError(f"the checkpoint has a head for {pretrained.head.task}, and no vocabulary scores")
    objective = objective_named(pretrained.objective)
    if objective.order != "left to right":
        raise InputError(
            f"the checkpoint has learned to predict {objective.learns} ({objective.name}), which see more than what is "
            "before them: give one that was trained with the objective clm"
        )


def causal_log_likelihoods(pretrained: Pretrained, texts: Sequence[np.ndarray], batch_tokens: int) -> list[np.ndarray]:
    """Return log-probabilities for each text (int32 [L]): of its pieces after the first, given all pieces before them,
    float32 [L - 1], nats.

    batch_tokens: most tokens that the network reads at once; the results do not depend on it. Raises InputError for a
    checkpoint that is not causal.
    """
    demand_causal(pretrained)
    config = _without_memory(pretrained.model)
    found: list[np.ndarray] = [np.zeros(0, np.float32)] * len(texts)
    for indices, rows, length in batches_by_length([len(ids_L) - 1 for ids_L in texts], batch_tokens):
        ids_BL = padded([texts[i][:-1] for i in indices], rows, length, PAD)
        next_BL = padded([texts[i][1:] for i in indices], rows, length, PAD)
        mems_ZBMD = _empty_mems_ZBMD(config, rows)
        scores_BL, _ = _segment(config, pretrained.params, ids_BL, next_BL, mems_ZBMD, 0)
        for i, scores_L in zip(indices, np.asarray(scores_BL), strict=False):
            found[i] = scores_L[: len(texts[i]) - 1]
    return found


def with_memory(pretrained: Pretrained, ids_L: np.ndarray, segment_len: int, mem_len: int) -> np.ndarray:
    """Return the log-probabilities of a text's pieces after the first, read in segments with a memory of mem_len
    positions: float32 [L - 1], nats. Both lengths may differ from training.

    Raises InputError for a checkpoint that is not causal, or that cannot use memory.
    """
    demand_causal(pretrained)
    _check_lengths(ids_L, "segment_len", segment_len)
    if mem_len < 0:
        raise InputError(f"`mem_len` {mem_len} must be at least 0")
    if mem_len and pretrained.model.positions != "relative":
        raise InputError(
            f"`mem_len` {mem_len}: the checkpoint has {pretrained.model.positions} positions, which number the tokens "
            "of a window and none before it; give 0"
        )
    config = replace(pretrained.model, mem_len=mem_len) if mem_len else _without_memory(pretrained.model)
    mems_ZBMD = _empty_mems_ZBMD(config, 1)
    scores = []
    for begin in range(0, len(ids_L) - 1, segment_len):
        ids_1L = padded([ids_L[begin : begin + segment_len]], 1, segment_len, PAD)
        next_1L = padded([ids_L[begin + 1 : begin + 1 + segment_len]], 1, segment_len, PAD)
        # Memory is full from mem_len on; a larger count of a long text would not fit int32.
        filled = min(begin, mem_len)
        scores_1L, mems_ZBMD = _segment(config, pretrained.params, ids_1L, next_1L, mems_ZBMD, filled)
        scores.append(scores_1L)
    return np.concatenate([np.asarray(scores_1L)[0] for scores_1L in scores])[: len(ids_L) - 1]


def by_window(
    pretrained: Pretrained,
    ids_L: np.ndarray,
    window_len: int,
    targets_P: np.ndarray | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> np.ndarray:
    """Return the log-probabilities of the pieces at targets_P (None = all after the first), float32 [P], nats. Each is
    predicted by a forward pass over the window_len pieces before it, or over all where there are fewer.

    batch_tokens: most tokens in windows that are read at once; the results do not depend on it. Raises InputError for a
    checkpoint that is not causal.
    """
    demand_causal(pretrained)
    _check_lengths(ids_L, "window_len", window_len)
    config = _without_memory(pretrained.model)
    targets_P = np.arange(1, len(ids_L)) if targets_P is None else targets_P
    # Where fewer pieces stand before a target, later pieces fill the window: a causal row does not see them.
    begins_P = np.maximum(targets_P - window_len, 0)
    ids_L = np.pad(ids_L, (0, max(window_len - len(ids_L), 0)), constant_values=PAD)
    rows, scores = max(batch_tokens // window_len, 1), []
    for first in range(0, len(targets_P), rows):
        batch = slice(first, first + rows)
        missing = rows - len(targets_P[batch])
        begins_B, targets_B = (np.pad(of_P[batch], (0, missing), mode="edge") for of_P in (begins_P, targets_P))
        windows_BL = ids_L[begins_B[:, None] + np.arange(window_len)]
        at_B1, next_B1 = (targets_B - 1 - begins_B)[:, None], ids_L[targets_B][:, None]
        scores.append(_last(config, pretrained.params, windows_BL, at_B1, next_B1))
    return np.concatenate([np.asarray(scores_B) for scores_B in scores])[: len(targets_P)]


def _check_lengths(ids_L: np.ndarray, name: str, length: int) -> None:
    if length < 1:
        raise InputError(f"`{name}` {length} must be at least 1")
    if len(ids_L) < 2:
        raise InputError(f"a text of {len(ids_L)} pieces has nothing to predict: give at least 2 pieces")


def _without_memory(config: ModelConfig) -> ModelConfig:
    # same_length: rows would see mem_len positions, here none; without it they see the window.
    return replace(config, mem_len=0, same_length=False)


def _empty_mems_ZBMD(config: ModelConfig, batch: int) -> jax.Array:
    return jnp.zeros((config.num_layers, batch, config.mem_len, config.d_model), config.dtype)


def _inputs(config: ModelConfig, ids_BL: jnp.ndarray, filled: jax.Array | int) -> Inputs:
    batch, length = ids_BL.shape
    rank_BL = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32)[None], (batch, length))
    memory_BM = memory_in_use_BM(jnp.full(batch, filled), config.mem_len)
    return compact_inputs(ids_BL, None, rank_BL, None, jnp.zeros(batch, bool), memory_BM)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=4)
def _segment(
    config: ModelConfig, params: Any, ids_BL: jax.Array, next_BL: jax.Array, mems_ZBMD: jax.Array, filled: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return (log-probabilities of the next pieces, memory for the next segment)."""
    logits_BLV, outputs = cast(Any, build_model(config, None)).apply(
        {"params": params}, _inputs(config, ids_BL, filled), mems_ZBMD
    )
    return -cross_entropy_BP(logits_BLV, next_BL), outputs.new_mems_ZBMD


@functools.partial(jax.jit, static_argnums=0)
def _last(config: ModelConfig, params: Any, ids_BL: jax.Array, at_B1: jax.Array, next_B1: jax.Array) -> jax.Array:
    logits_B1V, _ = cast(Any, build_model(config, None)).apply(
        {"params": params}, _inputs(config, ids_BL, 0), _empty_mems_ZBMD(config, len(ids_BL)), at_BP=at_B1
    )
    return -cross_entropy_BP(logits_B1V, next_B1)[:, 0]
