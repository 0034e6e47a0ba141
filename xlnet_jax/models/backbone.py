"""The XLNet transformer: embeddings, layers under one scan, memory in and out (paper, section 2; `transformer_xl` of
modeling.py).

Parameters carry logical axis names; `training/sharding.py` says what they mean on a mesh.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.config import ModelConfig
from xlnet_jax.models.attention import MASKED, kept, product, relative_attention_BNTH
from xlnet_jax.models.inputs import Inputs
from xlnet_jax.models.masks import causal_BTK
from xlnet_jax.models.positions import distances_R, signals_2RF


class Outputs(NamedTuple):
    """What the network gives: both streams and the memory of the next window."""

    content_BLD: jnp.ndarray
    query_BPD: jnp.ndarray | None
    new_mems_ZBMD: jnp.ndarray


class _Shared(NamedTuple):
    """What every layer sees alike."""

    signals_2RF: jnp.ndarray
    direction_B2: jnp.ndarray  # signs of the sine half and of the cosine half
    masked_BTK: jnp.ndarray
    other_segment_BTK: jnp.ndarray | None
    target_positions_BP: jnp.ndarray | None
    tied_biases_3NH: jnp.ndarray | None


def partitioned_param(
    module: nn.Module, name: str, shape: tuple[int, ...], axes: tuple[str | None, ...], std: float
) -> Any:
    """A float32 parameter, normal, with a logical name for each of its axes."""
    return module.param(name, nn.with_logical_partitioning(nn.initializers.normal(std), axes), shape, jnp.float32)


def partitioned_dense(
    config: ModelConfig, name: str | None, features: int, axes: tuple[str | None, str | None], use_bias: bool = True
) -> nn.Dense:
    """A dense layer whose kernel has these logical axes; name: None in `setup`, where the attribute names it."""
    return nn.Dense(
        features,
        use_bias=use_bias,
        dtype=jnp.dtype(config.dtype),
        kernel_init=nn.with_logical_partitioning(nn.initializers.normal(config.init_std), axes),
        bias_init=nn.with_logical_partitioning(nn.initializers.zeros, axes[1:]),
        name=name,
    )


class Norm(nn.Module):
    """Layer normalisation in float32."""

    config: ModelConfig

    @nn.compact
    def __call__(self, hidden_BTD: jnp.ndarray) -> jnp.ndarray:
        norm = nn.LayerNorm(
            epsilon=self.config.layer_norm_eps,
            dtype=jnp.float32,
            use_fast_variance=False,
            scale_init=nn.with_logical_partitioning(nn.initializers.ones, ("embed",)),
            bias_init=nn.with_logical_partitioning(nn.initializers.zeros, ("embed",)),
        )
        return norm(hidden_BTD).astype(self.config.dtype)


class Dropout(nn.Module):
    """In training, zeros a share of the elements and scales up the others (`kept`); takes the rng "dropout"."""

    rate: float
    train: bool

    @nn.compact
    def __call__(self, x: jnp.ndarray) -> jnp.ndarray:
        if not self.train or self.rate == 0:
            return x
        return jnp.where(kept(self.make_rng("dropout"), self.rate, x.shape), x / (1.0 - self.rate), 0)


class Attention(nn.Module):
    """Projections, `relative_attention_BNTH`, residual and post-LN (`rel_multihead_attn`, `two_stream_rel_attn`)."""

    config: ModelConfig
    train: bool

    @nn.compact
    def __call__(self, rows_BTD: jnp.ndarray, mems_BMD: jnp.ndarray, shared: _Shared) -> jnp.ndarray:
        c = self.config
        kernel_shape, axes = (c.d_model, c.num_heads, c.d_head), ("embed", "heads", "head_dim")
        q_DNH, k_DNH, v_DNH, r_DNH, o_DNH = (
            partitioned_param(self, name, kernel_shape, axes, c.init_std).astype(c.dtype) for name in "qkvro"
        )
        heads_shape, heads_axes = (c.num_heads, c.d_head), (None, *axes[1:])
        segment_key_2NH, biases_3NH = None, shared.tied_biases_3NH
        if shared.other_segment_BTK is not None:
            segment_key_2NH = partitioned_param(self, "segment_embedding", (2, *heads_shape), heads_axes, c.init_std)
            segment_key_2NH = segment_key_2NH.astype(c.dtype)
        if biases_3NH is None:
            biases_3NH = partitioned_param(self, "biases", (3, *heads_shape), heads_axes, c.init_std)

        length = rows_BTD.shape[1] - (0 if shared.target_positions_BP is None else shared.target_positions_BP.shape[1])
        context_BKD = jnp.concatenate([mems_BMD, rows_BTD[:, :length]], axis=1)
        # Never per example: the halves are projected once, and each example adds them up in its direction.
        r_2FNH = r_DNH.reshape(2, c.d_model // 2, *heads_shape)
        halves_2NRH = product("SRF,SFNH->SNRH", shared.signals_2RF.astype(c.dtype), r_2FNH)
        position_key_BNRH = jnp.einsum("BS,SNRH->BNRH", shared.direction_B2, halves_2NRH).astype(c.dtype)
        kept_BNTK = None
        if self.train and c.attention_dropout > 0:
            shape = (rows_BTD.shape[0], c.num_heads, rows_BTD.shape[1], context_BKD.shape[1])
            kept_BNTK = kept(self.make_rng("dropout"), c.attention_dropout, shape)
        read_BNTH = relative_attention_BNTH(
            jnp.einsum("BTD,DNH->BNTH", rows_BTD, q_DNH),
            jnp.einsum("BKD,DNH->BNKH", context_BKD, k_DNH),
            jnp.einsum("BKD,DNH->BNKH", context_BKD, v_DNH),
            position_key_BNRH,
            segment_key_2NH,
            biases_3NH,
            shared.masked_BTK,
            shared.other_segment_BTK,
            shared.target_positions_BP,
            kept_BNTK,
        )
        if kept_BNTK is not None:
            read_BNTH = read_BNTH / (1.0 - c.attention_dropout)
        out_BTD = jnp.einsum("BNTH,DNH->BTD", read_BNTH, o_DNH)
        out_BTD = Dropout(c.dropout, self.train)(out_BTD)
        return Norm(c, name="norm")(rows_BTD + out_BTD)


ACTIVATIONS: dict[str, Callable[[jnp.ndarray], jnp.ndarray]] = {
    "gelu": functools.partial(nn.gelu, approximate=True),
    "gelu_erf": functools.partial(nn.gelu, approximate=False),
    "relu": nn.relu,
}


class FeedForward(nn.Module):
    """norm(x + W2 act(W1 x)) (`positionwise_ffn`)."""

    config: ModelConfig
    train: bool

    @nn.compact
    def __call__(self, rows_BTD: jnp.ndarray) -> jnp.ndarray:
        c = self.config
        drop = Dropout(c.dropout, self.train)

        inner_BTF = drop(ACTIVATIONS[c.activation](partitioned_dense(c, "inner", c.d_ff, ("embed", "mlp"))(rows_BTD)))
        out_BTD = drop(partitioned_dense(c, "outer", c.d_model, ("mlp", "embed"))(inner_BTF))
        return Norm(c, name="norm")(rows_BTD + out_BTD)


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
        newest_BMD = jnp.concatenate([mems_BMD, rows_BTD[:, : self.reuse_len]], axis=1)
        dropped = max(newest_BMD.shape[1] - self.config.mem_len, 0)
        new_mems_BMD = jax.lax.stop_gradient(newest_BMD[:, dropped:])
        rows_BTD = Attention(self.config, self.train, name="attention")(rows_BTD, mems_BMD, shared)
        rows_BTD = FeedForward(self.config, self.train, name="feed_forward")(rows_BTD)
        self.sow("intermediates", "rows_BTD", rows_BTD)
        return rows_BTD, new_mems_BMD


REMAT_POLICIES = {
    "full": None,
    "dots": jax.checkpoint_policies.checkpoint_dots,
    "attention": jax.checkpoint_policies.save_only_these_names("read_BNTH"),
}


class Backbone(nn.Module):
    """Embeddings and layers. `mems_ZBMD` come in as an argument and go out as a result, gradients stopped."""

    config: ModelConfig

    def setup(self) -> None:
        c = self.config
        self.word_embedding = partitioned_param(
            self, "word_embedding", (c.vocab_size, c.d_model), ("vocab", "embed"), c.init_std
        )
        self.tied_biases = None
        if not c.untie_r:
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
        distance_R = distances_R(length, mems_ZBMD.shape[2] + length, c.clamp_len)
        shared = _Shared(
            drop(signals_2RF(distance_R, c.d_model)),
            jnp.where(jnp.stack([inputs.is_reversed_B, jnp.zeros_like(inputs.is_reversed_B)], -1), -1.0, 1.0),
            jnp.where(_visible_BTK(inputs, c), 0.0, MASKED),
            _other_segment_BTK(inputs),
            inputs.target_positions_BP,
            self.tied_biases,
        )
        layer: Any = Layer
        if c.remat != "none":
            layer = nn.remat(Layer, prevent_cse=False, policy=REMAT_POLICIES[c.remat])
        layers = nn.scan(
            layer,
            variable_axes={"params": 0, "intermediates": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=(0, nn.broadcast),
            length=c.num_layers,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )(c, min(length, length if reuse_len is None else reuse_len), train, name="layers")
        rows_BTD, new_mems_ZBMD = layers(rows_BTD, mems_ZBMD, shared)
        rows_BTD = drop(rows_BTD)
        query_BPD = None if inputs.target_positions_BP is None else rows_BTD[:, length:]
        return Outputs(rows_BTD[:, :length], query_BPD, new_mems_ZBMD)

    def _embed(self, inputs: Inputs) -> jnp.ndarray:
        c = self.config
        rows_BTD = nn.with_logical_constraint(self._table_VD()[inputs.input_ids_BL], ("batch", "length", "width"))
        if inputs.target_positions_BP is None:
            return rows_BTD
        mask_embedding_D = partitioned_param(self, "mask_embedding", (c.d_model,), ("embed",), c.init_std).astype(
            c.dtype
        )
        query_BPD = jnp.broadcast_to(mask_embedding_D[None, None], (*inputs.target_positions_BP.shape, c.d_model))
        if inputs.predicted_BP is not None:
            own_BPD = jnp.take_along_axis(rows_BTD, inputs.target_positions_BP[:, :, None], axis=1)
            query_BPD = jnp.where(inputs.predicted_BP[:, :, None], query_BPD, own_BPD)
        return jnp.concatenate([rows_BTD, query_BPD], axis=1)

    def logits_BPV(self, hidden_BPD: jnp.ndarray, bias_V: jnp.ndarray) -> jnp.ndarray:
        """Scores of all pieces by the tied embedding, float32."""
        return product("BPD,VD->BPV", hidden_BPD, self._table_VD()) + bias_V[None, None]

    def _table_VD(self) -> jnp.ndarray:
        return nn.with_logical_constraint(self.word_embedding.astype(self.config.dtype), ("vocab", "width"))


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
