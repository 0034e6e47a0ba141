"""The XLNet transformer: embeddings, layers under one scan, memory in and out (paper, section 2; `transformer_xl` of
modeling.py).

With positions "sinusoidal" (Vaswani et al. 2017) the layers do not use distances and have no r kernel or r biases. With
norm "pre" the memory holds the residual stream, and each layer normalizes what it reads.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.errors import InputError
from xlnet_jax.kernels.arguments import Relations
from xlnet_jax.kernels.mesh import count_parts, join_parts, split_parts
from xlnet_jax.models.attention import Attention, distances_R, signals_2RY, signals_BLD
from xlnet_jax.models.inputs import Inputs, check_inputs
from xlnet_jax.models.last_layer import split_off_last
from xlnet_jax.models.layers import (
    SOWN,
    Dropout,
    FeedForward,
    Norm,
    Outputs,
    look_up,
    partitioned_param,
    scan_layers,
)
from xlnet_jax.models.masks import causal_bounds
from xlnet_jax.settings.config import ModelConfig


class Layer(nn.Module):
    """One layer of both streams: (rows, memory of this layer) -> (rows that attend, what is new in its next memory).

    Sows its rows as `rows_BTD` into the collection "intermediates", if that is mutable: the hidden states after every
    layer, [Z, B, T, D].
    """

    config: ModelConfig
    reuse_len: int
    train: bool
    parts: int  # into which a mesh divides the sequence (kernels/mesh.py)

    @nn.compact
    def __call__(
        self,
        rows_BTD: jnp.ndarray,
        mems_BMD: jnp.ndarray,
        relations: Relations,
        example_B: jnp.ndarray,
        signals_2RY: jnp.ndarray | None,
        tied_biases_3NH: jnp.ndarray | None,
        row_T: jnp.ndarray | None,
    ) -> tuple[jnp.ndarray, jnp.ndarray]:
        """mems: hidden states of memory; the others: as in `Attention`, with relations that decide which rows
        attend."""
        c = self.config
        length = rows_BTD.shape[1] - relations.num_targets
        content_BLD, _ = split_parts(rows_BTD, length, self.parts)
        attention = Attention(c, self.train, self.parts, name="attention")
        rows_BTD = attention(rows_BTD, mems_BMD, relations, example_B, signals_2RY, tied_biases_3NH, row_T)
        rows_BTD = FeedForward(c, c.dropout, self.train, name="feed_forward")(rows_BTD, example_B, row_T)
        self.sow("intermediates", "rows_BTD", rows_BTD)
        newest = slice(max(self.reuse_len - c.mem_len, 0), self.reuse_len)
        return rows_BTD, jax.lax.stop_gradient(content_BLD[:, newest])


class Backbone(nn.Module):
    """Embeddings and layers. Takes `mems_ZBMD` as an argument and returns the new ones, without gradients."""

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
        self,
        inputs: Inputs,
        mems_ZBMD: jnp.ndarray | None = None,
        *,
        reuse_len: int | None = None,
        needs_content: bool = True,
        train: bool = False,
    ) -> Outputs:
        """Return the hidden states of both streams and the new memory: the newest config.mem_len of the old and the
        reused positions, or all if there are fewer.

        mems_ZBMD: hidden states of earlier windows, newest last (None = none); reuse_len: how many of this window's
        first positions become memory (None = all); needs_content: False = the last layer may leave out the content
        stream if there is a query stream; train: apply dropout (needs the rng "dropout"). Raises InputError for arrays
        that do not fit the network or each other, and on a query stream without relative positions.
        """
        c, parts = self.config, count_parts()
        check_inputs(inputs, mems_ZBMD, c)
        batch, length = inputs.input_ids_BL.shape
        if mems_ZBMD is None:
            if mem_len := inputs.memory_BM.shape[1]:
                raise InputError("mems_ZBMD", "", f"is missing: `memory_BM` has {mem_len} slots")
            mems_ZBMD = jnp.zeros((c.num_layers, batch, 0, c.d_model))
        drop, signals = Dropout(c.dropout, train), None
        rows_BTD, row_T = self._embed(inputs, parts), _row_numbers_T(inputs, parts)
        rows_BTD = drop(rows_BTD, inputs.example_B, row_T)
        # Zero unused memory: NaN x 0 is NaN, even under a mask.
        mems_ZBMD = jnp.where(inputs.memory_BM[None, :, :, None], mems_ZBMD, 0).astype(c.dtype)
        mem_len = mems_ZBMD.shape[2]
        relations = relate(inputs, mem_len, c)
        if c.positions == "relative":
            signals = signals_2RY(distances_R(length, mem_len + length, c.clamp_len), c.d_model)
            # One mask for all examples; sines and cosines count as two examples.
            signals = drop(signals, jnp.arange(2))
        reused = min(length, length if reuse_len is None else reuse_len)
        settings, others = (c, reused, train, parts), (relations, inputs.example_B, signals, self.tied_biases, row_T)
        # In a sequence that a mesh divides, each part has rows of both streams.
        skips_content = inputs.target_positions_BP is not None and not needs_content and parts == 1
        skips_content = skips_content and not any(map(self.is_mutable_collection, ("params", *SOWN)))
        if skips_content:
            row_T = jnp.arange(length, rows_BTD.shape[1])
            of_query = relations.of_rows(lambda x_BT: x_BT[:, length:])
            of_last = (of_query, inputs.example_B, signals, self.tied_biases, row_T)
            layers = split_off_last(Layer, c)(*settings, name="layers")
            rows_BTD, newest_ZBMD = layers(rows_BTD, mems_ZBMD, others, of_last)
        else:
            layers = scan_layers(Layer, c, in_axes=(0, *[nn.broadcast] * 5))(*settings, name="layers")
            rows_BTD, newest_ZBMD = layers(rows_BTD, mems_ZBMD, *others)
        new_mems_ZBMD = jnp.concatenate([jax.lax.stop_gradient(mems_ZBMD), newest_ZBMD], axis=2)
        new_mems_ZBMD = new_mems_ZBMD[:, :, max(new_mems_ZBMD.shape[2] - c.mem_len, 0) :]
        if c.norm == "pre":
            rows_BTD = Norm(c, name="norm")(rows_BTD)
        rows_BTD = drop(rows_BTD, inputs.example_B, row_T)
        if skips_content:
            return Outputs(None, rows_BTD, new_mems_ZBMD)
        content_BLD, query_BPD = split_parts(rows_BTD, length, parts)
        return Outputs(content_BLD, None if inputs.target_positions_BP is None else query_BPD, new_mems_ZBMD)

    def _embed(self, inputs: Inputs, parts: int) -> jnp.ndarray:
        c = self.config
        rows_BTD = nn.with_logical_constraint(
            look_up(self.word_embedding, inputs.input_ids_BL, c), ("batch", "length", "width")
        )
        if c.positions == "sinusoidal":
            # Reading backwards negates positions, as it negates distances.
            signs_B1 = jnp.where(inputs.is_reversed_B, -1, 1)[:, None]
            rows_BTD = add_signals(rows_BTD, signs_B1 * inputs.positions_BL)
        if inputs.target_positions_BP is None:
            return rows_BTD
        if c.positions != "relative":
            raise InputError("model.positions", c.positions, ": a query stream needs relative positions")
        mask_embedding_D = partitioned_param(self, "mask_embedding", (c.d_model,), ("embed",), c.init_std)
        shape = (*inputs.target_positions_BP.shape, c.d_model)
        query_BPD = jnp.broadcast_to(mask_embedding_D[None, None], shape).astype(c.dtype)
        if inputs.predicted_BP is not None:
            own_BPD = jnp.take_along_axis(rows_BTD, inputs.target_positions_BP[:, :, None], axis=1)
            query_BPD = jnp.where(inputs.predicted_BP[:, :, None], query_BPD, own_BPD)
        rows_BTD = join_parts(rows_BTD, query_BPD, parts)
        return nn.with_logical_constraint(rows_BTD, ("batch", "length", "width"))


def add_signals(embedded_BLD: jnp.ndarray, places_BL: jnp.ndarray) -> jnp.ndarray:
    """Return embeddings, scaled by the square root of their width, plus position signals (positions "sinusoidal";
    Vaswani et al. 2017, sections 3.4 and 3.5)."""
    signals = signals_BLD(places_BL, embedded_BLD.shape[-1])
    return embedded_BLD * embedded_BLD.shape[-1] ** 0.5 + signals.astype(embedded_BLD.dtype)


def relate(inputs: Inputs, mem_len: int, config: ModelConfig) -> Relations:
    """Return the relations of the inputs with segments, positions and, for attn_type uni, causal bounds.

    Memory has segment 0, as in the 2019 code.
    """
    query_BP, segment_BL = inputs.target_positions_BP, inputs.segment_ids_BL
    relations = inputs.relations._replace(query_position_BP=query_BP, is_reversed_B=inputs.is_reversed_B)
    batch, length = inputs.input_ids_BL.shape
    row_BT = jnp.broadcast_to(jnp.arange(length)[None], (batch, length))
    if query_BP is not None:
        row_BT = jnp.concatenate([row_BT, query_BP], axis=1)
    if config.num_segments and segment_BL is not None:
        row_segment_BT = segment_BL
        if query_BP is not None:
            row_segment_BT = jnp.concatenate([segment_BL, jnp.take_along_axis(segment_BL, query_BP, axis=1)], axis=1)
        key_segment_BK = jnp.pad(segment_BL, ((0, 0), (mem_len, 0)))
        relations = relations._replace(row_segment_BT=row_segment_BT, key_segment_BK=key_segment_BK)
    if config.attn_type == "uni":
        relations = relations.within(*causal_bounds(row_BT, mem_len if config.same_length else None))
    return relations


def _row_numbers_T(inputs: Inputs, parts: int) -> jnp.ndarray | None:
    """Return the row numbers in the order of the parts, int32; None if the rows are in order."""
    if parts == 1 or inputs.target_positions_BP is None:
        return None
    length, targets = inputs.input_ids_BL.shape[1], inputs.target_positions_BP.shape[1]
    return join_parts(jnp.arange(length), length + jnp.arange(targets), parts, axis=0)
