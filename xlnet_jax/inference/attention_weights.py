"""Attention weights of every layer and head on texts, of the content stream and, for given targets, of the query stream
(paper, section 2.3)."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from data_pipelines.tokenizer import CLS, PAD, SEP
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.dims import CLS_SEGMENT
from xlnet_jax.errors import InputError
from xlnet_jax.inference.lengths import padded
from xlnet_jax.inference.query_stream import Query, padded_queries, query_inputs, scoring_tokenizer
from xlnet_jax.models.encoder import build_encoder
from xlnet_jax.models.inputs import Inputs, text_inputs
from xlnet_jax.models.layers import ATTENTION_WEIGHTS
from xlnet_jax.settings.config import ModelConfig
from xlnet_jax.settings.typed import list_of_texts


class AttentionWeights(NamedTuple):
    """Attention weights on a batch of texts, float32 in [0, 1]. K = L: the keys are the pieces of the text.

    A row sums to 1 over the keys that it may see, and is 0 on all others. Padding, on the right of shorter texts, has
    zeros as rows and as keys. So has a row that sees no piece at all, as that of the first target of a text whose
    pieces are all targets: it reads zeros.
    """

    pieces: list[list[str]]
    """pieces of each text, in its order, with <sep> and <cls> behind them"""
    targets: list[list[int]]
    """positions of the predicted pieces of each text, in the order of prediction: row p of the query stream predicts
    targets[b][p]"""
    content_ZBNLK: np.ndarray
    """[layers, texts, heads, rows, keys]; row i is piece i"""
    query_ZBNPK: np.ndarray | None
    """[layers, texts, heads, targets, keys]; None = no targets were given"""


def attention_weights(
    pretrained: Pretrained,
    texts: str | Iterable[str],
    targets: Sequence[Sequence[int]] | None = None,
    *,
    specials: bool = True,
) -> AttentionWeights:
    """Return the attention weights of all layers and heads on texts, read as one batch by plain attention.

    targets: for each text the positions of the pieces to predict, in the order of prediction; a target sees the pieces
    that are no targets and those predicted before it, and its query row does not see itself. None = the content stream
    alone, in which every piece sees every other (in a causal model, those before it). specials: put <sep> <cls> behind
    each text, as finetuning does.

    Raises InputError where the checkpoint has no tokenizer; for a text without pieces, or longer than the places that
    the network has learned; and where targets are given, for a position that is not in the text or occurs twice, and
    for a checkpoint without a query stream.
    """
    if not (texts := list_of_texts(texts)):
        raise InputError("`texts` is a list of at least one text")
    tokenizer = pretrained.tokenizer if targets is None else scoring_tokenizer(pretrained)
    if tokenizer is None:
        raise InputError("the checkpoint has no tokenizer: put its spiece.model beside it")
    behind = [SEP, CLS] if specials else []
    rows = [np.array([*ids, *behind], np.int32) for ids in tokenizer.encode_lines(texts)]
    if empty := [i for i, row in enumerate(rows) if len(row) == len(behind)]:
        raise InputError(f"text {empty[0]}: the tokenizer leaves nothing of it")
    lengths = [len(row) for row in rows]
    ids_BL = padded(rows, len(rows), max(lengths), PAD)
    real_BL = padded([np.ones_like(row) for row in rows], len(rows), max(lengths), 0)
    segments_BL = np.where(ids_BL == CLS, CLS_SEGMENT, 0).astype(np.int32)
    ordered = [[] for _ in rows] if targets is None else _checked(targets, lengths, len(behind))
    model, params = replace(pretrained.model, dtype="float32", same_length=False), pretrained.params["backbone"]
    if targets is None:
        weights_ZBNTK = _of_content(model, params, ids_BL, real_BL, segments_BL)
    else:
        queries = [Query(row, np.array(own, int), np.arange(len(own))) for row, own in zip(rows, ordered, strict=True)]
        batch = padded_queries(queries, len(rows), max(lengths), max(1, *map(len, ordered)))
        weights_ZBNTK = _of_both(model, params, batch, segments_BL)
    is_target_BP = padded([np.ones(len(own)) for own in ordered], len(rows), weights_ZBNTK.shape[3] - max(lengths), 0)
    is_row_BT = np.concatenate([real_BL, is_target_BP], axis=1)
    content_ZBNLK, query_ZBNPK = np.split(
        np.where(is_row_BT[None, :, None, :, None], weights_ZBNTK, np.float32(0)), [max(lengths)], axis=3
    )
    pieces = [[tokenizer.pieces[i] for i in row] for row in rows]
    return AttentionWeights(pieces, ordered, content_ZBNLK, None if targets is None else query_ZBNPK)


def _checked(targets: Sequence[Sequence[int]], lengths: Sequence[int], specials: int) -> list[list[int]]:
    if len(targets) != len(lengths):
        raise InputError(f"`targets` has {len(targets)} lists of positions, and there are {len(lengths)} texts")
    ordered = [[int(position) for position in own] for own in targets]
    for number, (own, length) in enumerate(zip(ordered, lengths, strict=True)):
        if outside := [i for i in own if not 0 <= i < length - specials]:
            raise InputError(
                f"`targets` of text {number}: there is no position {outside[0]}; it has {length - specials} pieces, "
                "counted from 0"
            )
        if len(set(own)) < len(own):
            raise InputError(f"`targets` of text {number}: each position stands once, in the order of prediction")
    return ordered


def _weights_ZBNTK(config: ModelConfig, backbone_params: Any, inputs: Inputs, *mems: jax.Array) -> jax.Array:
    encoder = cast(Any, build_encoder(config))
    _, sown = encoder.apply({"params": backbone_params}, inputs, *mems, mutable=[ATTENTION_WEIGHTS])
    (weights_ZBNTK,) = jax.tree.leaves(sown[ATTENTION_WEIGHTS])
    return weights_ZBNTK


def _run_content(config: ModelConfig, params: Any, ids_BL: Any, real_BL: Any, segments_BL: Any) -> jax.Array:
    return _weights_ZBNTK(config, params, text_inputs(ids_BL, real_BL, segments_BL))


def _run_both(config: ModelConfig, params: Any, batch: Any, segments_BL: Any) -> jax.Array:
    inputs, mems_ZBMD = query_inputs(config, batch, jnp.asarray(segments_BL))
    return _weights_ZBNTK(config, params, inputs, mems_ZBMD)[..., 1:]


_of_content = jax.jit(_run_content, static_argnums=0)
_of_both = jax.jit(_run_both, static_argnums=0)
