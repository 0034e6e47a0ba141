"""One vector for a text, from the hidden states of the content stream, where every token sees every other.

The network reads a text as its pieces, <sep> and <cls>, as in finetuning. A longer text than seq_len is read in
segments of seq_len, each with the memory of the segments before it (Transformer-XL, section 3.2); a mean is over the
tokens of all segments.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from data_pipelines.tokenizer import CLS, PAD, SEP
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.dims import CLS_SEGMENT
from xlnet_jax.errors import InputError
from xlnet_jax.inference.lengths import batches_by_length, chunks, padded, power_of_two
from xlnet_jax.models.encoder import build_encoder
from xlnet_jax.models.inputs import compact_inputs
from xlnet_jax.models.masks import memory_in_use_BM
from xlnet_jax.settings.config import ModelConfig
from xlnet_jax.settings.typed import list_of_texts

Pooling = Literal["mean", "last", "first", "cls"]
SEQ_LEN = 512  # tokens, as in the released models (paper, section 3.1)
BATCH_TOKENS = 8192


class Segment(NamedTuple):
    """One segment of each of some texts, padded; no token sees padding."""

    ids_BL: np.ndarray  # int32
    real_BL: np.ndarray  # int32, 1 = real token
    weights_BL: np.ndarray  # float32, share of each token in the vector of its text


def embed_texts(
    pretrained: Pretrained,
    texts: str | Iterable[str],
    pooling: Pooling = "mean",
    *,
    layer: int = -1,
    normalize: bool = False,
    specials: bool = True,
    seq_len: int = SEQ_LEN,
    mem_len: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    names: Sequence[str] | None = None,
) -> np.ndarray:
    """Return the vectors of texts, float32 [texts, D], in their order. A vector does not depend on the other texts.

    pooling: mean of the tokens of a text, its last token, its first token, or <cls>, which comes last. layer: 1 to
    num_layers, or -1 to -num_layers from the last. normalize: scale vectors to length 1. specials: read <sep> and <cls>
    after a text; without them the last token is the last piece, and there is no cls. seq_len: longest segment, in
    tokens; learned positions may make it shorter. mem_len: positions of earlier segments that a segment sees; None = as
    the checkpoint says, 0 = none, and the only choice without relative positions. batch_tokens: tokens that the network
    reads at once; the vectors do not depend on it. names: names of the texts in errors.

    The head of a finetuned checkpoint is not used. Raises InputError for settings out of range, for texts without
    pieces, and for a checkpoint without a tokenizer.
    """
    model, backbone = _first_layers(pretrained, layer, mem_len)
    alone = replace(model, mem_len=0, same_length=False)  # same_length: rows see mem_len positions, here none
    _check(pooling, specials, seq_len)
    if model.network == "bert":
        seq_len = min(seq_len, model.num_places)
    rows = _encoded(pretrained, texts, specials, names)
    lengths = [len(row) for row in rows]
    vectors_BD = np.zeros((len(rows), model.d_model), np.float32)

    def segment(indices: Sequence[int], begin: int, length: int, count: int) -> Segment:
        parts = [rows[i][begin : begin + length] for i in indices]
        weights = [_weights(lengths[i], pooling)[begin : begin + length] for i in indices]
        return Segment(
            padded(parts, count, length, PAD),
            padded([np.ones_like(part) for part in parts], count, length, 0),
            padded(weights, count, length, 0, np.float32),
        )

    short = [i for i, length in enumerate(lengths) if length <= seq_len]
    for places, count, length in batches_by_length([lengths[i] for i in short], batch_tokens, seq_len):
        indices = [short[place] for place in places]
        pooled_BD, _ = _pooled(alone, backbone, segment(indices, 0, length, count), None, None)
        vectors_BD[indices] = pooled_BD[: len(indices)]

    long = sorted((i for i in range(len(rows)) if lengths[i] > seq_len), key=lambda i: lengths[i])
    count = max(1, min(batch_tokens // seq_len, power_of_two(len(long))))
    for indices in chunks(long, count):
        mems_ZBMD = jnp.zeros((model.num_layers, count, model.mem_len, model.d_model), model.dtype)
        for begin in range(0, lengths[indices[-1]], seq_len):
            filled_B = jnp.full(count, min(begin, model.mem_len), jnp.int32)
            part = segment(indices, begin, seq_len, count)
            pooled_BD, mems_ZBMD = _pooled(model, backbone, part, mems_ZBMD, filled_B)
            vectors_BD[indices] += pooled_BD[: len(indices)]
    if normalize:
        vectors_BD /= np.maximum(np.linalg.norm(vectors_BD, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return vectors_BD


def _check(pooling: str, specials: bool, seq_len: int) -> None:
    if pooling not in ("mean", "last", "first", "cls"):
        raise InputError(f"`pooling` {pooling} must be mean, last, first or cls")
    if pooling == "cls" and not specials:
        raise InputError("`pooling` cls reads <cls>, and without `specials` there is no <cls>: take last")
    if seq_len < 1:
        raise InputError(f"`seq_len` {seq_len} must be at least 1")


def _first_layers(pretrained: Pretrained, layer: int, mem_len: int | None) -> tuple[ModelConfig, Any]:
    """Return the settings and the parameters of the network up to a layer."""
    model, backbone = pretrained.model, pretrained.params["backbone"]
    depth = layer if layer > 0 else model.num_layers + 1 + layer
    if not 1 <= depth <= model.num_layers:
        n = model.num_layers
        raise InputError(f"`layer` {layer}: the checkpoint has the layers 1 to {n}, or -1 to -{n} from the last")
    if mem_len is not None and mem_len < 0:
        raise InputError(f"`mem_len` {mem_len} must be at least 0")
    if mem_len and model.positions != "relative":
        raise InputError(
            f"`mem_len` {mem_len}: the checkpoint has {model.positions} positions, which number the tokens of a "
            "segment and none before it; leave it out"
        )
    mem_len = model.mem_len if mem_len is None else mem_len
    model = replace(model, num_layers=depth, mem_len=mem_len, same_length=model.same_length and mem_len > 0)
    if depth == pretrained.model.num_layers or model.share_layers:
        return model, backbone
    return model, {**backbone, "layers": jax.tree.map(lambda of_layers: of_layers[:depth], backbone["layers"])}


def _encoded(
    pretrained: Pretrained, texts: str | Iterable[str], specials: bool, names: Sequence[str] | None
) -> list[np.ndarray]:
    if pretrained.tokenizer is None:
        raise InputError("the checkpoint has no tokenizer: put its spiece.model beside it, or give `tokenizer`")
    rows, names = pretrained.tokenizer.encode_lines(list_of_texts(texts)), None if names is None else list(names)
    for i, ids in enumerate(rows):
        if not len(ids):
            raise InputError(f"{names[i] if names else f'text {i}'}: the tokenizer leaves nothing of it")
    return [np.append(ids, (SEP, CLS)).astype(np.int32) for ids in rows] if specials else rows


def _weights(length: int, pooling: Pooling) -> np.ndarray:
    """Return float32 [length]: every pooling is a weighted sum over the tokens of all segments."""
    if pooling == "mean":
        return np.full(length, 1 / length, np.float32)
    weights = np.zeros(length, np.float32)
    weights[0 if pooling == "first" else -1] = 1
    return weights


def _run(
    config: ModelConfig, backbone: Any, segment: Segment, mems_ZBMD: jax.Array | None, filled_B: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    ids_BL = jnp.asarray(segment.ids_BL)
    batch = ids_BL.shape[0]
    inputs = compact_inputs(
        ids_BL,
        jnp.where(ids_BL == CLS, CLS_SEGMENT, 0),
        jnp.zeros_like(ids_BL),
        None,
        jnp.zeros(batch, bool),
        jnp.zeros((batch, 0), bool) if filled_B is None else memory_in_use_BM(filled_B, config.mem_len),
        attention_mask_BL=jnp.asarray(segment.real_BL),
    )
    outputs = cast(Any, build_encoder(config).apply({"params": backbone}, inputs, mems_ZBMD))
    hidden_BLD = outputs.content_BLD.astype(jnp.float32)
    return jnp.einsum("BL,BLD->BD", segment.weights_BL, hidden_BLD), outputs.new_mems_ZBMD


_pooled = jax.jit(_run, static_argnums=0)
