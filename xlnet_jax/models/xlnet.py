"""The XLNet transformer: embeddings, layers under one scan, memory in and out (paper, section 2; `transformer_xl` of
modeling.py).

With positions "sinusoidal" (Vaswani et al. 2017) the layers know of no distances: they have neither r kernel nor r
biases. With norm "pre" the memory holds the residual stream, and what reads it normalises it.
"""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.errors import InputError
from xlnet_jax.models.attention import MASKED, product
from xlnet_jax.models.inputs import Inputs
from xlnet_jax.models.layers import (
    Dropout,
    FeedForward,
    Norm,
    Outputs,
    dropped_attention_BNTH,
    partitioned_param,
    stacked,
    tied_logits_BPV,
    tied_table_VD,
)
from xlnet_jax.models.masks import causal_BTK
from xlnet_jax.models.positions import distances_R, signals_2RF, signals_BLD
from xlnet_jax.settings.config import ModelConfig


class _Shared(NamedTuple):
    """What every layer sees alike. Without relative positions there are no signals, and no biases."""

    signals_2RF: jnp.ndarray | None
    direction_B2: jnp.ndarray  # signs of the sine half and of the cosine half
    masked_BTK: jnp.ndarray
    other_segment_BTK: jnp.ndarray | None
    target_positions_BP: jnp.ndarray | None
    tied_biases_3NH: jnp.ndarray | None


class Attention(nn.Module):
    """Projections, `attention_BNTH`, residual and normalisation (`rel_multihead_attn`, `two_stream_rel_attn`).

    With config.norm "pre", rows and memory are normalised before they are projected, and the sum is not.
    """

    config: ModelConfig
    train: bool

    @nn.compact
    def __call__(self, rows_BTD: jnp.ndarray, mems_BMD: jnp.ndarray, shared: _Shared) -> jnp.ndarray:
        c = self.config
        norm, is_pre = Norm(c, name="norm"), c.norm == "pre"
        # In this order: initial weights depend on it.
        q_DNH, k_DNH, v_DNH = (self._projection_DNH(name) for name in "qkv")
        position_key_BNRH = self._position_key_BNRH(shared)
        o_DNH = self._projection_DNH("o")
        heads_shape, heads_axes = (c.num_heads, c.d_head), (None, "heads", "head_dim")
        segment_key_2NH, biases_3NH = None, shared.tied_biases_3NH
        if shared.other_segment_BTK is not None:
            segment_key_2NH = partitioned_param(self, "segment_embedding", (2, *heads_shape), heads_axes, c.init_std)
            segment_key_2NH = segment_key_2NH.astype(c.dtype)
        if biases_3NH is None and c.positions == "relative":
            biases_3NH = partitioned_param(self, "biases", (3, *heads_shape), heads_axes, c.init_std)

        queries = 0 if shared.target_positions_BP is None else shared.target_positions_BP.shape[1]
        context_BKD = jnp.concatenate([mems_BMD, rows_BTD[:, : rows_BTD.shape[1] - queries]], axis=1)
        asking_BTD, context_BKD = (norm(rows_BTD), norm(context_BKD)) if is_pre else (rows_BTD, context_BKD)
        read_BNTH = dropped_attention_BNTH(
            self,
            c.attention_dropout if self.train else 0.0,
            jnp.einsum("BTD,DNH->BNTH", asking_BTD, q_DNH),
            jnp.einsum("BKD,DNH->BNKH", context_BKD, k_DNH),
            jnp.einsum("BKD,DNH->BNKH", context_BKD, v_DNH),
            shared.masked_BTK,
            biases_3NH=biases_3NH,
            position_key_BNRH=position_key_BNRH,
            target_positions_BP=shared.target_positions_BP,
            segment_key_2NH=segment_key_2NH,
            other_segment_BTK=shared.other_segment_BTK,
        )
        out_BTD = jnp.einsum("BNTH,DNH->BTD", read_BNTH, o_DNH)
        rows_BTD = rows_BTD + Dropout(c.dropout, self.train)(out_BTD)
        return rows_BTD if is_pre else norm(rows_BTD)

    def _projection_DNH(self, name: str) -> jnp.ndarray:
        c = self.config
        shape, axes = (c.d_model, c.num_heads, c.d_head), ("embed", "heads", "head_dim")
        return partitioned_param(self, name, shape, axes, c.init_std).astype(c.dtype)

    def _position_key_BNRH(self, shared: _Shared) -> jnp.ndarray | None:
        if shared.signals_2RF is None:
            return None
        c = self.config
        # Never per example: the halves are projected once, and each example adds them up in its direction.
        r_2FNH = self._projection_DNH("r").reshape(2, c.d_model // 2, c.num_heads, c.d_head)
        halves_2NRH = product("SRF,SFNH->SNRH", shared.signals_2RF.astype(c.dtype), r_2FNH)
        return jnp.einsum("BS,SNRH->BNRH", shared.direction_B2, halves_2NRH).astype(c.dtype)


class Layer(nn.Module):
    """One layer of both streams. Scanned: (rows, this layer's memory) -> (rows, this layer's next memory).

    Its rows are sown as `rows_BTD` into the collection "intermediates", where that is mutable: the hidden states after
    every layer, [Z, B, T, D].
    """

    config: ModelConfig
    reuse_len: int
    train: bool

    @nn.compact
    def __call__(
        self, rows_BTD: jnp.ndarray, mems_BMD: jnp.ndarray, shared: _Shared
    ) -> tuple[jnp.ndarray, jnp.ndarray]:
        c = self.config
        newest_BMD = jnp.concatenate([mems_BMD, rows_BTD[:, : self.reuse_len]], axis=1)
        dropped = max(newest_BMD.shape[1] - c.mem_len, 0)
        new_mems_BMD = jax.lax.stop_gradient(newest_BMD[:, dropped:])
        rows_BTD = Attention(c, self.train, name="attention")(rows_BTD, mems_BMD, shared)
        rows_BTD = FeedForward(c, c.dropout, self.train, name="feed_forward")(rows_BTD)
        self.sow("intermediates", "rows_BTD", rows_BTD)
        return rows_BTD, new_mems_BMD


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
        """mems_ZBMD: hidden states of earlier windows, newest last (None = none); reuse_len: how many of this window's
        first positions become memory (None = all); train: apply dropout (takes the rng "dropout").

        The new memory holds the newest config.mem_len of the old and of the reused positions, or all where there are
        fewer.
        """
        c, (batch, length) = self.config, inputs.input_ids_BL.shape
        if mems_ZBMD is None:
            mems_ZBMD = jnp.zeros((c.num_layers, batch, 0, c.d_model))
        drop = Dropout(c.dropout, train)
        rows_BTD = drop(self._embed(inputs))
        # A masked NaN still poisons a sum: what is not in use is zero.
        mems_ZBMD = jnp.where(inputs.memory_BM[None, :, :, None], mems_ZBMD, 0).astype(c.dtype)
        signals = None
        if c.positions == "relative":
            distance_R = distances_R(length, mems_ZBMD.shape[2] + length, c.clamp_len)
            signals = drop(signals_2RF(distance_R, c.d_model))
        shared = _Shared(
            signals,
            jnp.where(jnp.stack([inputs.is_reversed_B, jnp.zeros_like(inputs.is_reversed_B)], -1), -1.0, 1.0),
            jnp.where(_visible_BTK(inputs, c), 0.0, MASKED),
            _other_segment_BTK(inputs) if c.num_segments else None,
            inputs.target_positions_BP,
            self.tied_biases,
        )
        reused = min(length, length if reuse_len is None else reuse_len)
        layers = stacked(Layer, c, in_axes=(0, nn.broadcast))(c, reused, train, name="layers")
        rows_BTD, new_mems_ZBMD = layers(rows_BTD, mems_ZBMD, shared)
        if c.norm == "pre":
            rows_BTD = Norm(c, name="norm")(rows_BTD)
        rows_BTD = drop(rows_BTD)
        query_BPD = None if inputs.target_positions_BP is None else rows_BTD[:, length:]
        return Outputs(rows_BTD[:, :length], query_BPD, new_mems_ZBMD)

    def _embed(self, inputs: Inputs) -> jnp.ndarray:
        c = self.config
        rows_BTD = nn.with_logical_constraint(self.table_VD()[inputs.input_ids_BL], ("batch", "length", "width"))
        if c.positions == "sinusoidal":
            # A row that reads its text backwards has its places with the other sign, as distances do.
            signs_B1 = jnp.where(inputs.is_reversed_B, -1, 1)[:, None]
            rows_BTD = with_signals(rows_BTD, signs_B1 * inputs.positions_BL)
        if inputs.target_positions_BP is None:
            return rows_BTD
        if c.positions != "relative":
            raise InputError(f"model.positions {c.positions}: a query stream needs relative ones")
        mask_embedding_D = partitioned_param(self, "mask_embedding", (c.d_model,), ("embed",), c.init_std).astype(
            c.dtype
        )
        query_BPD = jnp.broadcast_to(mask_embedding_D[None, None], (*inputs.target_positions_BP.shape, c.d_model))
        if inputs.predicted_BP is not None:
            own_BPD = jnp.take_along_axis(rows_BTD, inputs.target_positions_BP[:, :, None], axis=1)
            query_BPD = jnp.where(inputs.predicted_BP[:, :, None], query_BPD, own_BPD)
        return jnp.concatenate([rows_BTD, query_BPD], axis=1)

    def table_VD(self) -> jnp.ndarray:
        """The embedding of pieces in the compute type."""
        return tied_table_VD(self.word_embedding, self.config)


class XLNetLM(nn.Module):
    """Backbone and vocabulary scores of the stream that predicts. The output matrix is the word embedding; the bias is
    a parameter of its own (`lm_loss` of modeling.py)."""

    config: ModelConfig

    def setup(self) -> None:
        self.backbone = Backbone(self.config)
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",))
        self.output_bias: Any = self.param("output_bias", zeros, (self.config.vocab_size,), jnp.float32)

    def __call__(
        self,
        inputs: Inputs,
        mems_ZBMD: jnp.ndarray | None = None,
        *,
        at_BP: jnp.ndarray | None = None,
        reuse_len: int | None = None,
        train: bool = False,
    ) -> tuple[jnp.ndarray, Outputs]:
        """(float32 logits [B, P, V] of the query stream, or [B, L, V] of the content stream without one, outputs).

        at: positions, int32, at which the content stream is asked; None = at all."""
        outputs = self.backbone(inputs, mems_ZBMD, reuse_len=reuse_len, train=train)
        hidden = outputs.content_BLD if outputs.query_BPD is None else outputs.query_BPD
        if at_BP is not None:
            hidden = jnp.take_along_axis(hidden, at_BP[:, :, None], axis=1)
        return tied_logits_BPV(hidden, self.backbone.table_VD(), self.output_bias), outputs


def with_signals(embedded_BLD: jnp.ndarray, places_BL: jnp.ndarray) -> jnp.ndarray:
    """Embeddings with the signals of their places (positions "sinusoidal"), scaled up to the size of these (Vaswani et
    al. 2017, sections 3.4 and 3.5)."""
    signals = signals_BLD(places_BL, embedded_BLD.shape[-1])
    return embedded_BLD * embedded_BLD.shape[-1] ** 0.5 + signals.astype(embedded_BLD.dtype)


def _visible_BTK(inputs: Inputs, config: ModelConfig) -> jnp.ndarray:
    if config.attn_type == "bi":
        return inputs.visible_BTK
    batch, length = inputs.input_ids_BL.shape
    position_BT = jnp.broadcast_to(jnp.arange(length)[None], (batch, length))
    if inputs.target_positions_BP is not None:
        position_BT = jnp.concatenate([position_BT, inputs.target_positions_BP], axis=1)
    return inputs.visible_BTK & causal_BTK(position_BT, length, inputs.memory_BM.shape[1], config.same_length)


def _other_segment_BTK(inputs: Inputs) -> jnp.ndarray | None:
    """float32, 1 = the key belongs to another segment than the row. Memory counts as segment 0, as in the original."""
    if inputs.segment_ids_BL is None:
        return None
    rows_BT = keys_BL = inputs.segment_ids_BL
    if inputs.target_positions_BP is not None:
        of_targets_BP = jnp.take_along_axis(keys_BL, inputs.target_positions_BP, axis=1)
        rows_BT = jnp.concatenate([keys_BL, of_targets_BP], axis=1)
    keys_BK = jnp.pad(keys_BL, ((0, 0), (inputs.memory_BM.shape[1], 0)))
    return (rows_BT[:, :, None] != keys_BK[:, None, :]).astype(jnp.float32)
