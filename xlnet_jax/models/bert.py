"""BERT's encoder (Devlin et al. 2019, section 3; also RoBERTa's network) and ELECTRA's detector: learned positions
added to the embeddings, post-LN layers with biases everywhere, and no memory.

    x = norm(piece + position + segment)
    layer:   x = norm(x + W_o attention(x) + b_o),   x = norm(x + W_2 act(W_1 x + b_1) + b_2)
    logits:  norm(act(W x + b)) E^T + b_V            E: the embedding of pieces

ALBERT (Lan et al. 2020, section 3.1) has narrower embeddings, projected to the width of the layers, and one set of
parameters for all layers, or for a part of each (`shared_attention` or `shared_feed_forward` of the encoder).
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from xlnet_jax.dims import CLS_SEGMENT
from xlnet_jax.errors import InputError
from xlnet_jax.kernels.arguments import AttentionInputs, Relations
from xlnet_jax.kernels.products import join_heads_BTE, to_heads_BNTH
from xlnet_jax.models.attention import attend_with_dropout_BNTH
from xlnet_jax.models.inputs import Inputs, check_inputs
from xlnet_jax.models.layers import (
    ACTIVATIONS,
    Dense,
    Dropout,
    FeedForward,
    Norm,
    Outputs,
    add_to_rows,
    look_up,
    partitioned_param,
    partitioned_zeros,
    projection_DNH,
    scan_layers,
)
from xlnet_jax.settings.config import ModelConfig


class HeadProjection(nn.Module):
    """Projection of rows to heads, with bias: [B, L, D] -> [B, N, L, H]."""

    config: ModelConfig

    @nn.compact
    def __call__(self, rows_BLD: jnp.ndarray) -> jnp.ndarray:
        c = self.config
        projected_BNLH = to_heads_BNTH(rows_BLD, projection_DNH(self, "kernel", c))
        bias_NH = partitioned_zeros(self, "bias", (c.num_heads, c.d_head), ("heads", "head_dim"))
        return add_to_rows(projected_BNLH, bias_NH[None, :, None])


class BertAttention(nn.Module):
    """Attention with residual and normalization: norm(x + W_o attention(x) + b_o)."""

    config: ModelConfig
    train: bool

    @nn.compact
    def __call__(self, rows_BLD: jnp.ndarray, relations: Relations, example_B: jnp.ndarray) -> jnp.ndarray:
        c = self.config
        query_BNLH, key_BNLH, value_BNLH = (HeadProjection(c, name=name)(rows_BLD) for name in "qkv")
        rate = c.attention_dropout if self.train else 0.0
        inputs = AttentionInputs(query_BNLH, key_BNLH, value_BNLH, relations)
        read_BNLH = attend_with_dropout_BNTH(self, rate, inputs, example_B, c.attention)
        out_BLD = Dense(c, c.d_model, ("heads", "embed"), std=c.output_std, name="o")(join_heads_BTE(read_BNLH))
        return Norm(c, name="norm")(rows_BLD + Dropout(c.dropout, self.train)(out_BLD, example_B))


class BertLayer(nn.Module):
    """One scanned layer. Sows its rows as `rows_BTD` into "intermediates", as XLNet's layers do."""

    config: ModelConfig
    train: bool

    @nn.compact
    def __call__(
        self, rows_BLD: jnp.ndarray, relations: Relations, example_B: jnp.ndarray, shared: Any = None
    ) -> tuple[jnp.ndarray, None]:
        """shared: parameters of the part that config.share_layers names; the layer then has none for it."""
        c = self.config

        def part(name: str, kind: Any) -> Any:
            return nn.map_variables(kind, "params", lambda _: {"params": shared}) if c.share_layers == name else kind

        attention = part("attention", BertAttention)(c, self.train, name="attention")
        feed_forward = part("feed_forward", FeedForward)(c, 0.0, self.train, name="feed_forward")
        rows_BLD = attention(rows_BLD, relations, example_B)
        rows_BLD = feed_forward(rows_BLD, example_B)
        self.sow("intermediates", "rows_BTD", rows_BLD)
        return rows_BLD, None


class BertEncoder(nn.Module):
    """Embeddings and layers, with the signature of `Backbone`. It returns memory of length 0."""

    config: ModelConfig

    def setup(self) -> None:
        c = self.config
        shape = (c.vocab_size, c.embedding_width or c.d_model)
        self.word_embedding = partitioned_param(self, "word_embedding", shape, ("vocab", "embed"), c.init_std)

    @nn.compact
    def __call__(
        self,
        inputs: Inputs,
        mems_ZBMD: jnp.ndarray | None = None,
        *,
        reuse_len: int | None = None,
        needs_content: bool = True,
        train: bool = False,
    ) -> Outputs:
        """Return the hidden states of the content stream; reuse_len and needs_content have no effect.

        Raises InputError for arrays that do not fit the network or each other, on a window of more than
        config.num_places positions, on memory, and on a query stream, which this network does not support.
        """
        c = self.config
        check_inputs(inputs, None, c)
        _require_places(inputs, mems_ZBMD, c)
        batch = inputs.input_ids_BL.shape[0]
        rows_BLD = Norm(c, name="embedding_norm")(self._embed(inputs))
        rows_BLD = Dropout(c.dropout, train)(rows_BLD, inputs.example_B)
        if c.embedding_width:
            rows_BLD = Dense(c, c.d_model, (None, "embed"), name="embedding_projection")(rows_BLD)
        rows_BLD = nn.with_logical_constraint(rows_BLD, ("batch", "length", "width"))
        shared = self._shared(rows_BLD, inputs, train)
        layers = scan_layers(BertLayer, c, in_axes=nn.broadcast)(c, train, name="layers")
        rows_BLD, _ = layers(rows_BLD, inputs.relations, inputs.example_B, shared)
        return Outputs(rows_BLD, None, jnp.zeros((c.num_layers, batch, 0, c.d_model), c.dtype))

    def _shared(self, rows_BLD: jnp.ndarray, inputs: Inputs, train: bool) -> Any:
        """Return the parameters of the part that all layers share, without a layer axis; None if they share none, or
        all."""
        c = self.config
        if c.share_layers == "attention":
            attention = BertAttention(c, train, name="shared_attention")
            if self.is_initializing():
                attention(rows_BLD, inputs.relations, inputs.example_B)
            return attention.variables["params"]
        if c.share_layers == "feed_forward":
            feed_forward = FeedForward(c, 0.0, train, name="shared_feed_forward")
            if self.is_initializing():
                feed_forward(rows_BLD, inputs.example_B)
            return feed_forward.variables["params"]
        return None

    def _embed(self, inputs: Inputs) -> jnp.ndarray:
        c, width = self.config, self.config.embedding_width or self.config.d_model
        rows_BLD = look_up(self.word_embedding, inputs.input_ids_BL, c)
        places_AD = partitioned_param(self, "position_embedding", (c.max_positions, width), (None, "embed"), c.init_std)
        rows_BLD += look_up(places_AD, places_BL(inputs) + c.position_offset, c)
        if c.num_segments:
            shape = (c.num_segments, width)
            segment_embedding = partitioned_param(self, "segment_embedding", shape, (None, "embed"), c.init_std)
            segment_ids_BL = jnp.zeros_like(inputs.input_ids_BL)
            if inputs.segment_ids_BL is not None:
                segment_ids_BL = jnp.where(inputs.segment_ids_BL < c.num_segments, inputs.segment_ids_BL, 0)
            rows_BLD += look_up(segment_embedding, segment_ids_BL, c)
        return rows_BLD


def places_BL(inputs: Inputs) -> jnp.ndarray:
    """Return the position of each token in BERT's order, int32: <cls> first, although it comes after the text here.

    This network sees order only through positions, so it reads <cls> A <sep> B <sep>.
    """
    if inputs.segment_ids_BL is None:
        return inputs.positions_BL
    is_cls_BL = inputs.segment_ids_BL == CLS_SEGMENT
    return jnp.where(is_cls_BL, 0, inputs.positions_BL + is_cls_BL.any(1, keepdims=True))


def _require_places(inputs: Inputs, mems_ZBMD: jnp.ndarray | None, config: ModelConfig) -> None:
    length = inputs.input_ids_BL.shape[1]
    if length > config.num_places:
        raise InputError(
            f"a window of {length} tokens is too long: the network has {config.num_places} learned positions "
            f"(`model.max_positions` {config.max_positions}); lower `seq_len` to at most {config.num_places}"
        )
    if inputs.memory_BM.shape[1] or (mems_ZBMD is not None and mems_ZBMD.size):
        raise InputError("BERT's network has no memory: `model.mem_len` must be 0")
    if inputs.target_positions_BP is not None:
        raise InputError("BERT's network has no query stream: `objective` mlm predicts without one")


class Transform(nn.Module):
    """Transform of hidden states before the vocabulary logits: norm(act(W x + b))."""

    config: ModelConfig

    @nn.compact
    def __call__(self, hidden_BPD: jnp.ndarray) -> jnp.ndarray:
        c = self.config
        dense = Dense(c, c.embedding_width or c.d_model, ("embed", None), name="dense")
        return Norm(c, name="norm")(ACTIVATIONS[c.activation](dense(hidden_BPD)))


class BertDetector(nn.Module):
    """Encoder with a detector of replaced tokens (ELECTRA)."""

    config: ModelConfig

    def setup(self) -> None:
        self.backbone = BertEncoder(self.config)
        self.detector = Detector(self.config)

    def __call__(
        self, inputs: Inputs, mems_ZBMD: jnp.ndarray | None = None, *, train: bool = False
    ) -> tuple[jnp.ndarray, Outputs]:
        """Return (float32 logits [B, L] that a token was replaced, outputs of the encoder)."""
        outputs = self.backbone(inputs, mems_ZBMD, train=train)
        return self.detector(outputs.content_BLD), outputs


class Detector(nn.Module):
    """Score of each token: w act(W x + b) + c."""

    config: ModelConfig

    @nn.compact
    def __call__(self, content_BLD: jnp.ndarray) -> jnp.ndarray:
        c = self.config
        dense_BLD = Dense(c, c.d_model, ("embed", None), name="dense")(content_BLD)
        scores_BL1 = Dense(c, 1, ("embed", None), name="logits")(ACTIVATIONS[c.activation](dense_BLD))
        return scores_BL1[:, :, 0].astype(jnp.float32)
