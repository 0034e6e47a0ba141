"""Two-stream relative attention (XLNet, section 2.3; Transformer-XL, section 3.3; `two_stream_rel_attn` and
`rel_multihead_attn` of modeling.py).

h is the content stream at all L positions, g the query stream at the P target positions, m the memory, and z the
factorization order:

    g[z_t] <- Attention(Q = g[z_t], KV = h[z_<t])        predicts a token, and does not see it
    h[z_t] <- Attention(Q = h[z_t], KV = h[z_<=t])       provides keys and values, and sees its own token

Both streams share weights, keys and values, so their rows x = [h; g] are computed together. Only the masks differ
(models/masks.py). With the context c = [m; h], and s the sines and cosines of relative distances:

    q = x W_q       k = c W_k       v = c W_v       r = s W_r
    AC = (q + r_w_bias) k                        content
    BD = (q + r_r_bias) r                        position: key j of row i uses r at the distance i - j
    EF = (q + r_s_bias) s_same or s_other        segments: s_same if row and key have the same one
    x <- norm(x + dropout(softmax((AC + BD + EF) / sqrt(H), masked)) v W_o)

With config.norm "pre", rows and context are normalized before the projections, and the sum is not normalized.
kernels/plain.py computes AC, BD and EF; the fused kernels compute the same numbers.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from xlnet_jax.kernels import plain
from xlnet_jax.kernels.arguments import AttentionInputs, Relations, einsum_float32
from xlnet_jax.kernels.dropout import AttentionDropout, attention_seed_BN
from xlnet_jax.kernels.implementations import attention_BNTH
from xlnet_jax.kernels.mesh import join_parts, split_parts
from xlnet_jax.kernels.products import from_heads_BTD, join_heads_BTE, joined_DE, outer_sum_DE, to_heads_BNTH
from xlnet_jax.models.layers import ATTENTION, ATTENTION_WEIGHTS, Dropout, Norm, partitioned_param, projection_DNH
from xlnet_jax.settings.config import ModelConfig


class Attention(nn.Module):
    """Attention of the rows to a context, with residual and normalization: the equations above, line by line.

    Sows the keys and values of the context into the collection "keys_values", if that is mutable.
    """

    config: ModelConfig
    train: bool
    parts: int = 1  # into which a mesh divides the sequence (kernels/mesh.py)

    @nn.compact
    def __call__(
        self,
        rows_BTD: jnp.ndarray,
        mems_BMD: jnp.ndarray,
        relations: Relations,
        example_B: jnp.ndarray,
        signals_2RY: jnp.ndarray | None = None,
        tied_biases_3NH: jnp.ndarray | None = None,
        row_T: jnp.ndarray | None = None,
    ) -> jnp.ndarray:
        """Return the rows [B, T, D] after attention.

        rows: content, then query rows; mems: memory, which comes before the content in the context; relations: of all
        rows, or of only the query rows, which are then the only ones to attend; example: int32, index of each example
        in the global batch; signals: of relative distances (`signals_2RY`), None = no relative positions; tied_biases:
        r_w, r_r and r_s shared by all layers, None = the layer has its own; row: int32, numbers of the rows that attend
        for dropout, None = in order.
        """
        c = self.config
        norm, is_pre = Norm(c, name="norm"), c.norm == "pre"
        # Keep this order: the initial weights depend on it.
        q_DNH, k_DNH, v_DNH = (projection_DNH(self, name, c) for name in "qkv")
        position_key_2NRH = segment_key_2NH = None
        if signals_2RY is not None:
            # Gather sharded weights. XLA would shard the sum over D and all-reduce the keys.
            r_DNH = nn.with_logical_constraint(projection_DNH(self, "r", c), ("width", "heads", "head_dim"))
            position_key_2NRH = position_keys_2NRH(signals_2RY, r_DNH)
        o_DNH = projection_DNH(self, "o", c, c.output_std)
        heads_shape, heads_axes = (c.num_heads, c.d_head), (None, "heads", "head_dim")
        if relations.row_segment_BT is not None:
            segment_key_2NH = partitioned_param(self, "segment_embedding", (2, *heads_shape), heads_axes, c.init_std)
            segment_key_2NH = segment_key_2NH.astype(c.dtype)
        biases_3NH = tied_biases_3NH
        if biases_3NH is None and c.positions == "relative":
            biases_3NH = partitioned_param(self, "biases", (3, *heads_shape), heads_axes, c.init_std)

        asking_BTD, mems_BMD = (norm(rows_BTD), norm(mems_BMD)) if is_pre else (rows_BTD, mems_BMD)
        content = rows_BTD.shape[1] - relations.num_targets
        key_BNKH, value_BNKH = (
            project_context_BNKH(mems_BMD, asking_BTD, w, content, self.parts) for w in (k_DNH, v_DNH)
        )
        self.sow("keys_values", "key_BNKH", key_BNKH)
        self.sow("keys_values", "value_BNKH", value_BNKH)
        rows_BTD, asking_BTD = (x_BTD[:, -relations.num_rows :] for x_BTD in (rows_BTD, asking_BTD))
        query_BNTH = to_heads_BNTH(asking_BTD, q_DNH)
        inputs = AttentionInputs(
            query_BNTH, key_BNKH, value_BNKH, relations, biases_3NH, position_key_2NRH, segment_key_2NH
        )
        rate = c.attention_dropout if self.train else 0.0
        numbers_T = row_T if self.parts == 1 else None  # the parts of a sequence number their own rows
        read_BNTH = attend_with_dropout_BNTH(self, rate, inputs, example_B, c.attention, numbers_T)
        out_BTD = from_heads_BTD(read_BNTH, o_DNH)
        rows_BTD = rows_BTD + Dropout(c.dropout, self.train)(out_BTD, example_B, row_T)
        return rows_BTD if is_pre else norm(checkpoint_name(rows_BTD, ATTENTION))


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def project_context_BNKH(
    mems_BMD: jnp.ndarray, rows_BTD: jnp.ndarray, w_DNH: jnp.ndarray, content: int, parts: int
) -> jnp.ndarray:
    """Return the projection of memory and of the first `content` rows. parts: of the sequence (kernels/mesh.py).

    The gradients of memory and of rows are separate products, and that of memory is not computed if nothing uses it.
    """
    return _project_context(mems_BMD, rows_BTD, w_DNH, content, parts)[0]


def _context_BKD(mems_BMD: jnp.ndarray, rows_BTD: jnp.ndarray, content: int, parts: int) -> jnp.ndarray:
    if parts == 1:
        # Join, then cut: XLA fuses both into the products. Content rows that are cut first are stored.
        return jnp.concatenate([mems_BMD, rows_BTD], axis=1)[:, : mems_BMD.shape[1] + content]
    content_BLD, _ = split_parts(rows_BTD, content, parts)
    return join_parts(mems_BMD, content_BLD, parts)


def _project_context(
    mems_BMD: jnp.ndarray, rows_BTD: jnp.ndarray, w_DNH: jnp.ndarray, content: int, parts: int
) -> tuple[jnp.ndarray, tuple[jnp.ndarray, ...]]:
    projected_BNKH = to_heads_BNTH(_context_BKD(mems_BMD, rows_BTD, content, parts), w_DNH, jnp.dot)
    return projected_BNKH, (mems_BMD, rows_BTD, w_DNH)


def _project_context_backward(
    content: int, parts: int, saved: tuple[jnp.ndarray, ...], grad_BNKH: jnp.ndarray
) -> tuple[jnp.ndarray, ...]:
    mems_BMD, rows_BTD, w_DNH = saved
    content_BLD, _ = split_parts(rows_BTD, content, parts)
    # Join heads before the split: XLA:TPU would copy them after it.
    grads_BTE = split_parts(join_heads_BTE(grad_BNKH), mems_BMD.shape[1], parts)
    of_memory_DE, of_content_DE = map(outer_sum_DE, (mems_BMD, content_BLD), grads_BTE)
    grad_mems_BMD, grad_content_BLD = (grad_BTE @ joined_DE(w_DNH).T for grad_BTE in grads_BTE)
    no_query_BPD = jnp.zeros_like(rows_BTD[:, content:])
    grad_w_DNH = (of_memory_DE + of_content_DE).reshape(w_DNH.shape).astype(w_DNH.dtype)
    return grad_mems_BMD, join_parts(grad_content_BLD, no_query_BPD, parts), grad_w_DNH


project_context_BNKH.defvjp(_project_context, _project_context_backward)


def attend_with_dropout_BNTH(
    module: nn.Module,
    rate: float,
    inputs: AttentionInputs,
    example_B: jnp.ndarray,
    implementation: str,
    row_T: jnp.ndarray | None = None,
) -> jnp.ndarray:
    """Return the attention output with dropout at this rate on its probabilities, from the module's rng "dropout".

    example_B: int32, index of each example in the global batch; row_T: int32, row numbers, None = in order. Sows the
    attention weights of the plain implementation into the collection "attention_weights", if that is mutable.
    """
    if module.is_initializing():
        implementation = "plain"  # parameters have the same shapes, and `plan` traces this without the run's devices
    elif module.is_mutable_collection(ATTENTION_WEIGHTS):
        module.sow(ATTENTION_WEIGHTS, "weights_BNTK", plain.weights_BNTK(inputs))
    if rate:
        seed_BN = attention_seed_BN(module.make_rng("dropout"), example_B, inputs.query_BNTH.shape[1])
        inputs = inputs._replace(dropout=AttentionDropout(rate, seed_BN, row_T))
    return attention_BNTH(inputs, implementation)


def distances_R(num_queries: int, num_keys: int, clamp_len: int) -> jnp.ndarray:
    """Return the distances from a row to a key, in positions, float32 [R = K + L]: from K, long before the row, down to
    1 - L, after it.

    Always float32, because bfloat16 represents integers exactly only up to 256. `clamp_len` limits distances in both
    directions; -1 = no limit.
    """
    distance = jnp.arange(num_keys, -num_queries, -1, dtype=jnp.float32)
    return jnp.clip(distance, -clamp_len, clamp_len) if clamp_len > 0 else distance


def signals_2RY(distance_R: jnp.ndarray, width: int) -> jnp.ndarray:
    """Return the sines [0] and the cosines [1] of distances in text read forwards; float32 [2, R, Y = width / 2]."""
    angle_RY = _angles(distance_R, width)
    return jnp.stack([jnp.sin(angle_RY), jnp.cos(angle_RY)])


def position_keys_2NRH(signals_2RY: jnp.ndarray, r_DNH: jnp.ndarray) -> jnp.ndarray:
    """Return the sine part [0] and the cosine part [1] of the position keys, float32; their sum gives the keys for
    text read forwards.

    Reading backwards negates every distance, which only flips the sign of the sines. So both parts are projected once
    for the whole batch, and each row adds or subtracts the sine part.
    """
    r_2YNH = r_DNH.reshape(2, -1, *r_DNH.shape[1:])
    return einsum_float32("iRY,iYNH->iNRH", signals_2RY.astype(r_DNH.dtype), r_2YNH)


def signals_BLD(place_BL: jnp.ndarray, width: int) -> jnp.ndarray:
    """Return the sines, then the cosines of any integers, float32 (Vaswani et al. 2017, section 3.5, interleave
    them)."""
    angle_BLY = _angles(place_BL.astype(jnp.float32), width)
    return jnp.concatenate([jnp.sin(angle_BLY), jnp.cos(angle_BLY)], axis=-1)


def _angles(positions: jnp.ndarray, width: int) -> jnp.ndarray:
    frequency_Y = 10_000.0 ** -(jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    return positions[..., None] * jnp.expand_dims(frequency_Y, range(positions.ndim))
