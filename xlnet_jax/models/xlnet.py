"""The XLNet transformer: embeddings, layers under one scan, memory in and out (paper, section 2; `transformer_xl` of
modeling.py).

With positions "sinusoidal" (Vaswani et al. 2017) the layers know no distances: they have neither r kernel nor r biases.
With norm "pre" the memory holds the residual stream, and its readers normalise it.
"""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.errors import InputError
from xlnet_jax.kernels import parts
from xlnet_jax.kernels.arguments import AttentionInputs, Positions, Segments, Visibility
from xlnet_jax.models.inputs import Inputs
from xlnet_jax.models.layers import (
    Dropout,
    FeedForward,
    Norm,
    Outputs,
    attended_BNTH,
    look_up,
    partitioned_param,
    partitioned_zeros,
    rows_at_BPD,
    stacked,
    tied_logits_BPV,
)
from xlnet_jax.models.masks import causal_span, within
from xlnet_jax.models.positions import distances_R, position_keys_2NRH, signals_2RY, signals_BLD
from xlnet_jax.settings.config import ModelConfig


class Shared(NamedTuple):
    """Arguments that every layer takes alike. Content rows stand before query rows in all of them, and memory before
    text, while the hidden states that a layer takes lie in parts (kernels/parts.py)."""

    visibility: Visibility
    example_B: jnp.ndarray  # int32, place of each example in the global batch
    content_position_BL: jnp.ndarray  # int32, positions in the window
    query_position_BP: jnp.ndarray | None  # int32; None = no query rows
    key_position_BK: jnp.ndarray  # int32, memory below 0
    is_reversed_B: jnp.ndarray | None  # bool; None = no row of the batch reads backwards
    signals_2RY: jnp.ndarray | None = None  # None = no relative positions, or position keys in a cache
    segments: tuple[jnp.ndarray, jnp.ndarray] | None = None  # int32 ids of rows [B, T] and of keys [B, K]
    tied_biases_3NH: jnp.ndarray | None = None
    row_T: jnp.ndarray | None = None  # int32, numbers of the rows as they lie in parts; None = in order

    @property
    def num_content(self) -> int:
        """Number of content rows."""
        return self.content_position_BL.shape[1]

    @property
    def row_position_BT(self) -> jnp.ndarray:
        """Positions of content rows, then of query rows."""
        if self.query_position_BP is None:
            return self.content_position_BL
        return jnp.concatenate([self.content_position_BL, self.query_position_BP], axis=1)


class LayerCache(NamedTuple):
    """Keys and values of earlier positions, which a layer reads in place of hidden states (models/decoding.py)."""

    key_GKH: jnp.ndarray
    value_GKH: jnp.ndarray
    slot_B: jnp.ndarray  # int32, the slot that the key and value of the content row go into
    position_key_2NRH: jnp.ndarray | None  # None = no relative positions

    def updated(self, key_BN1H: jnp.ndarray, value_BN1H: jnp.ndarray) -> "LayerCache":
        """Return the cache with the key and the value of the content row."""
        key_GKH = _put(self.key_GKH, key_BN1H, self.slot_B)
        return self._replace(key_GKH=key_GKH, value_GKH=_put(self.value_GKH, value_BN1H, self.slot_B))


def _put(cached_GKH: jnp.ndarray, new_BN1H: jnp.ndarray, slot_B: jnp.ndarray) -> jnp.ndarray:
    # One example after the other: a scatter of all at once would copy the cache.
    batch, heads = new_BN1H.shape[:2]
    for i in range(batch):
        cached_GKH = jax.lax.dynamic_update_slice(cached_GKH, new_BN1H[i], (i * heads, slot_B[i], 0))
    return cached_GKH


class Attention(nn.Module):
    """Projections, attention, residual and normalisation (`rel_multihead_attn`, `two_stream_rel_attn`).

    With config.norm "pre", rows and memory are normalised before they are projected, and the sum is not. The keys and
    values of all positions are sown into the collection "keys_values", where that is mutable.
    """

    config: ModelConfig
    train: bool
    implementation: str | None

    @nn.compact
    def __call__(
        self, rows_BTD: jnp.ndarray, past: jnp.ndarray | LayerCache, shared: Shared
    ) -> tuple[jnp.ndarray, LayerCache | None]:
        """past: hidden states of memory [B, M, D], or a cache, which is returned with the content row in it."""
        c = self.config
        norm, is_pre = Norm(c, name="norm"), c.norm == "pre"
        # In this order: initial weights depend on it.
        q_DNH, k_DNH, v_DNH = (self._projection_DNH(name) for name in "qkv")
        positions = self._positions(past, shared)
        o_DNH = self._projection_DNH("o")
        heads_shape, heads_axes = (c.num_heads, c.d_head), (None, "heads", "head_dim")
        segments, biases_3NH = None, shared.tied_biases_3NH
        if shared.segments is not None:
            segment_key_2NH = partitioned_param(self, "segment_embedding", (2, *heads_shape), heads_axes, c.init_std)
            segments = Segments(segment_key_2NH.astype(c.dtype), *shared.segments)
        if biases_3NH is None and c.positions == "relative":
            biases_3NH = partitioned_param(self, "biases", (3, *heads_shape), heads_axes, c.init_std)

        context_BKD, _ = parts.apart(rows_BTD, shared.num_content, parts.number())
        if not isinstance(past, LayerCache):
            context_BKD = parts.joined(past, context_BKD, parts.number())
        asking_BTD, context_BKD = (norm(rows_BTD), norm(context_BKD)) if is_pre else (rows_BTD, context_BKD)
        in_heads_BNTH, out_of_heads_BTD = _in_heads_BNTH, _out_of_heads_BTD
        if isinstance(past, LayerCache):
            in_heads_BNTH, out_of_heads_BTD = _few_in_heads_BNTH, _few_out_of_heads_BTD
        key_BNKH, value_BNKH = (in_heads_BNTH(context_BKD, w) for w in (k_DNH, v_DNH))
        cache = None
        if isinstance(past, LayerCache):
            cache = past.updated(key_BNKH, value_BNKH)
            in_heads = (len(rows_BTD), c.num_heads, -1, c.d_head)
            key_BNKH, value_BNKH = cache.key_GKH.reshape(in_heads), cache.value_GKH.reshape(in_heads)
        self.sow("keys_values", "key_BNKH", key_BNKH)
        self.sow("keys_values", "value_BNKH", value_BNKH)
        query_BNTH = in_heads_BNTH(asking_BTD, q_DNH)
        inputs = AttentionInputs(
            query_BNTH, key_BNKH, value_BNKH, shared.visibility, biases_3NH, positions=positions, segments=segments
        )
        rate = c.attention_dropout if self.train else 0.0
        read_BNTH = attended_BNTH(self, rate, inputs, shared.example_B, self.implementation or c.attention)
        out_BTD = out_of_heads_BTD(read_BNTH, o_DNH)
        rows_BTD = rows_BTD + Dropout(c.dropout, self.train)(out_BTD, shared.example_B, shared.row_T)
        return (rows_BTD if is_pre else norm(rows_BTD)), cache

    def _projection_DNH(self, name: str) -> jnp.ndarray:
        c = self.config
        shape, axes = (c.d_model, c.num_heads, c.d_head), ("embed", "heads", "head_dim")
        return partitioned_param(self, name, shape, axes, c.init_std).astype(c.dtype)

    def _positions(self, past: jnp.ndarray | LayerCache, shared: Shared) -> Positions | None:
        if isinstance(past, LayerCache):
            # Keys of a cache stand in any order, so each row is placed by its position.
            key_2NRH, query_BP = past.position_key_2NRH, shared.row_position_BT
        else:
            key_2NRH = shared.signals_2RY
            if key_2NRH is not None:
                # Gather the weights where the mesh divides them. XLA would divide the sum over D and add up the keys.
                r_DNH = nn.with_logical_constraint(self._projection_DNH("r"), ("width", "heads", "head_dim"))
                key_2NRH = position_keys_2NRH(key_2NRH, r_DNH)
            given_BP = shared.query_position_BP
            query_BP = shared.content_position_BL[:, :0] if given_BP is None else given_BP
        if key_2NRH is None:
            return None
        return Positions(key_2NRH, shared.is_reversed_B, query_BP, shared.key_position_BK)


def _in_heads_BNTH(rows_BTD: jnp.ndarray, kernel_DNH: jnp.ndarray) -> jnp.ndarray:
    return jnp.einsum("BTD,DNH->BNTH", rows_BTD, kernel_DNH)


def _out_of_heads_BTD(read_BNTH: jnp.ndarray, kernel_DNH: jnp.ndarray) -> jnp.ndarray:
    return jnp.einsum("BNTH,DNH->BTD", read_BNTH, kernel_DNH)


# Decoding has fewer rows than weights: transpose the rows, where XLA would transpose the weights.
def _few_in_heads_BNTH(rows_BTD: jnp.ndarray, kernel_DNH: jnp.ndarray) -> jnp.ndarray:
    return jnp.swapaxes(jnp.einsum("BTD,DNH->BTNH", rows_BTD, kernel_DNH), 1, 2)


def _few_out_of_heads_BTD(read_BNTH: jnp.ndarray, kernel_DNH: jnp.ndarray) -> jnp.ndarray:
    joined = jnp.swapaxes(read_BNTH, 1, 2).reshape(len(read_BNTH), read_BNTH.shape[2], -1)
    return joined @ kernel_DNH.reshape(len(kernel_DNH), -1).T


class Layer(nn.Module):
    """One layer of both streams. Scanned: (rows, memory of this layer) -> (rows, next memory of this layer).

    Its rows are sown as `rows_BTD` into the collection "intermediates", where that is mutable: the hidden states after
    every layer, [Z, B, T, D].
    """

    config: ModelConfig
    reuse_len: int
    train: bool
    implementation: str | None = None  # of attention; None = config.attention

    @nn.compact
    def __call__(
        self, rows_BTD: jnp.ndarray, past: jnp.ndarray | LayerCache, shared: Shared
    ) -> tuple[jnp.ndarray, jnp.ndarray | LayerCache]:
        """past: hidden states of memory [B, M, D], or a cache of keys and values (`LayerCache`)."""
        c = self.config
        attention = Attention(c, self.train, self.implementation, name="attention")
        read_BTD, cache = attention(rows_BTD, past, shared)
        content_BLD, _ = parts.apart(rows_BTD, shared.num_content, parts.number())
        new_past = self._new_mems_BMD(past, content_BLD) if cache is None else cache
        feed_forward = FeedForward(c, c.dropout, self.train, name="feed_forward")
        rows_BTD = feed_forward(read_BTD, shared.example_B, shared.row_T)
        self.sow("intermediates", "rows_BTD", rows_BTD)
        return rows_BTD, new_past

    def _new_mems_BMD(self, mems_BMD: Any, content_BLD: jnp.ndarray) -> jnp.ndarray:
        newest_BMD = jnp.concatenate([mems_BMD, content_BLD[:, : self.reuse_len]], axis=1)
        dropped = max(newest_BMD.shape[1] - self.config.mem_len, 0)
        return jax.lax.stop_gradient(newest_BMD[:, dropped:])


class Backbone(nn.Module):
    """Embeddings and layers. `mems_ZBMD` come in as an argument and go out as a result, gradients stopped."""

    config: ModelConfig

    def setup(self) -> None:
        c = self.config
        self.word_embedding = partitioned_param(
            self, "word_embedding", (c.vocab_size, c.d_model), ("vocab", "embed"), c.init_std
        )
        self.tied_biases = None
        if not c.untie_r and c.positions == "relative":
            shape, axes = (3, c.num_heads, c.d_head), (None, "heads", "head_dim")
            self.tied_biases = partitioned_param(self, "biases", shape, axes, c.init_std)

    @nn.compact
    def __call__(
        self, inputs: Inputs, mems_ZBMD: jnp.ndarray | None = None, *, reuse_len: int | None = None, train: bool = False
    ) -> Outputs:
        """Return the hidden states of both streams and the new memory: the newest config.mem_len of the old and of the
        reused positions, or all where there are fewer.

        mems_ZBMD: hidden states of earlier windows, newest last (None = none); reuse_len: how many of this window's
        first positions become memory (None = all); train: apply dropout (takes the rng "dropout"). Raises InputError on
        a query stream without relative positions.
        """
        c, (batch, length) = self.config, inputs.input_ids_BL.shape
        if mems_ZBMD is None:
            mems_ZBMD = jnp.zeros((c.num_layers, batch, 0, c.d_model))
        drop = Dropout(c.dropout, train)
        rows_BTD, row_T = self._embed(inputs), _row_numbers_T(inputs)
        rows_BTD = drop(rows_BTD, inputs.example_B, row_T)
        # Zero unused memory: NaN x 0 is NaN, even where masked.
        mems_ZBMD = jnp.where(inputs.memory_BM[None, :, :, None], mems_ZBMD, 0).astype(c.dtype)
        shared = self._shared(inputs, mems_ZBMD.shape[2])._replace(row_T=row_T)
        if shared.signals_2RY is not None:
            # One mask for all examples: sines and cosines stand in the place of two of them.
            shared = shared._replace(signals_2RY=drop(shared.signals_2RY, jnp.arange(2)))
        reused = min(length, length if reuse_len is None else reuse_len)
        layers = stacked(Layer, c, in_axes=(0, nn.broadcast))(c, reused, train, name="layers")
        rows_BTD, new_mems_ZBMD = layers(rows_BTD, mems_ZBMD, shared)
        if c.norm == "pre":
            rows_BTD = Norm(c, name="norm")(rows_BTD)
        rows_BTD = drop(rows_BTD, inputs.example_B, row_T)
        content_BLD, query_BPD = parts.apart(rows_BTD, length, parts.number())
        return Outputs(content_BLD, None if inputs.target_positions_BP is None else query_BPD, new_mems_ZBMD)

    def _shared(self, inputs: Inputs, mem_len: int) -> Shared:
        c, (batch, length) = self.config, inputs.input_ids_BL.shape
        content_BL = jnp.broadcast_to(jnp.arange(length)[None], (batch, length))
        key_BK = jnp.broadcast_to(jnp.arange(-mem_len, length)[None], (batch, mem_len + length))
        shared = Shared(
            inputs.visibility,
            inputs.example_B,
            content_BL,
            inputs.target_positions_BP,
            key_BK,
            inputs.is_reversed_B,
            segments=_segments(inputs, mem_len) if c.num_segments else None,
            tied_biases_3NH=self.tied_biases,
        )
        if c.attn_type == "uni":
            span = causal_span(shared.row_position_BT, key_BK, mem_len if c.same_length else None)
            shared = shared._replace(visibility=within(inputs.visibility, span))
        if c.positions == "relative":
            distance_R = distances_R(length, mem_len + length, c.clamp_len)
            shared = shared._replace(signals_2RY=signals_2RY(distance_R, c.d_model))
        return shared

    def _embed(self, inputs: Inputs) -> jnp.ndarray:
        c = self.config
        rows_BTD = nn.with_logical_constraint(
            look_up(self.word_embedding, inputs.input_ids_BL, c), ("batch", "length", "width")
        )
        if c.positions == "sinusoidal":
            # Reading backwards flips the sign of places, as it does of distances.
            signs_B1 = jnp.where(inputs.is_reversed_B, -1, 1)[:, None]
            rows_BTD = with_signals(rows_BTD, signs_B1 * inputs.positions_BL)
        if inputs.target_positions_BP is None:
            return rows_BTD
        if c.positions != "relative":
            raise InputError(f"model.positions {c.positions}: a query stream needs relative ones")
        mask_embedding_D = partitioned_param(self, "mask_embedding", (c.d_model,), ("embed",), c.init_std)
        shape = (*inputs.target_positions_BP.shape, c.d_model)
        query_BPD = jnp.broadcast_to(mask_embedding_D[None, None], shape).astype(c.dtype)
        if inputs.predicted_BP is not None:
            own_BPD = jnp.take_along_axis(rows_BTD, inputs.target_positions_BP[:, :, None], axis=1)
            query_BPD = jnp.where(inputs.predicted_BP[:, :, None], query_BPD, own_BPD)
        rows_BTD = parts.joined(rows_BTD, query_BPD, parts.number())
        return nn.with_logical_constraint(rows_BTD, ("batch", "length", "width"))


class XLNetLM(nn.Module):
    """Backbone and vocabulary logits of the stream that predicts. The output matrix is the word embedding; the bias is
    a parameter of its own (`lm_loss` of modeling.py)."""

    config: ModelConfig

    def setup(self) -> None:
        self.backbone = Backbone(self.config)
        self.output_bias = partitioned_zeros(self, "output_bias", (self.config.vocab_size,), ("vocab",))

    def __call__(
        self,
        inputs: Inputs,
        mems_ZBMD: jnp.ndarray | None = None,
        *,
        at_BP: jnp.ndarray | None = None,
        reuse_len: int | None = None,
        train: bool = False,
    ) -> tuple[jnp.ndarray, Outputs]:
        """Return (float32 logits, outputs): logits [B, P, V] of the query stream, or [B, L, V] of the content stream
        without one.

        at: positions, int32, at which the content stream predicts; None = at all."""
        outputs = self.backbone(inputs, mems_ZBMD, reuse_len=reuse_len, train=train)
        hidden = outputs.content_BLD if outputs.query_BPD is None else outputs.query_BPD
        if at_BP is not None:
            hidden = rows_at_BPD(hidden, at_BP)
        return tied_logits_BPV(hidden, self.backbone.word_embedding, self.output_bias), outputs


def with_signals(embedded_BLD: jnp.ndarray, places_BL: jnp.ndarray) -> jnp.ndarray:
    """Return embeddings, scaled by the root of their width, plus the signals of their places (positions "sinusoidal";
    Vaswani et al. 2017, sections 3.4 and 3.5)."""
    signals = signals_BLD(places_BL, embedded_BLD.shape[-1])
    return embedded_BLD * embedded_BLD.shape[-1] ** 0.5 + signals.astype(embedded_BLD.dtype)


def _row_numbers_T(inputs: Inputs) -> jnp.ndarray | None:
    """Numbers of the rows as they lie in parts, int32; None where that is their order."""
    if parts.number() == 1 or inputs.target_positions_BP is None:
        return None
    length, targets = inputs.input_ids_BL.shape[1], inputs.target_positions_BP.shape[1]
    return parts.joined(jnp.arange(length), length + jnp.arange(targets), parts.number(), axis=0)


def _segments(inputs: Inputs, mem_len: int) -> tuple[jnp.ndarray, jnp.ndarray] | None:
    """Segment ids of rows [B, T] and of keys [B, K]. Memory counts as segment 0, as in the original."""
    if inputs.segment_ids_BL is None:
        return None
    row_BT = inputs.segment_ids_BL
    if inputs.target_positions_BP is not None:
        query_BP = jnp.take_along_axis(row_BT, inputs.target_positions_BP, axis=1)
        row_BT = jnp.concatenate([row_BT, query_BP], axis=1)
    return row_BT, jnp.pad(inputs.segment_ids_BL, ((0, 0), (mem_len, 0)))
