"""Choose the attention implementation of a run for its devices, and compare it with plain attention before use.

The comparison runs one attention call with random numbers on the first device of this process. Lengths, masks,
segments, directions, dropout, number format and head width are those of the run, and so is the part of a window on one
device, so the kernel uses the same tiles and blocks as in the run. The output, and the gradients with respect to
queries, keys, values, position keys, biases and segment keys, are compared with plain attention in float32, block by
block.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from data_pipelines.batches import BatchSource
from xlnet_jax.errors import InputError
from xlnet_jax.kernels import plain
from xlnet_jax.kernels.arguments import AttentionInputs, Implementation, Relations, numbers_of
from xlnet_jax.kernels.dropout import AttentionDropout, attention_seed_BN
from xlnet_jax.kernels.implementations import attention_BNTH, describe_fused, why_not_fused
from xlnet_jax.kernels.mesh import join_parts, rows_of_part_BNTH, split_parts
from xlnet_jax.models.inputs import Inputs, text_inputs
from xlnet_jax.models.xlnet import relate
from xlnet_jax.objectives.language_model import DeviceBatch
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.settings.config import Config, DataConfig, ModelConfig, RunConfig
from xlnet_jax.training import sharding
from xlnet_jax.training.hosts import Process

BLOCK = 16
"""Number of consecutive rows, keys or distances of one head to compare together, by root mean square: a few wrong rows
stand out, and rounding averages out."""

SMALLEST = 0.01
"""Blocks smaller than this share of the whole array's root mean square are compared with that share: the gradient of a
key to which hardly any row attends is only rounding."""

SCORES = 2**26
"""Number of scores that plain attention computes at a time: all of a long window would not fit in memory."""


Gradients = dict[str, jnp.ndarray]


def last_windows(config: Config, batches: BatchSource) -> DeviceBatch:
    """Return the last windows of two blocks, where memory is full. The second one gets half of its memory, and is read
    backwards if some windows are; ranks, segments and documents are those of a batch of the run."""
    mem_len = config.model.mem_len
    windows = batches.batch_at(batches.steps_per_block - 1, range(2))
    windows["is_reversed"] = np.array([False, config.data.bidirectional])
    windows["mem_filled"] = np.array([mem_len, mem_len // 2], np.int32)
    return {name: jnp.asarray(array) for name, array in windows.items()}


def two_texts(seq_len: int, mem_len: int) -> Inputs:
    """Return two texts as in finetuning: two segments in which all tokens attend to each other, with memory; the second
    text is padded."""
    at_BL = jnp.broadcast_to(jnp.arange(seq_len)[None], (2, seq_len))
    is_real_BL = at_BL >= jnp.array([[0], [seq_len // 4]])
    in_second_BL = (at_BL > seq_len // 2).astype(jnp.int32)
    return text_inputs(jnp.zeros_like(at_BL), is_real_BL.astype(jnp.int32), in_second_BL, mem_len)


def difference(model: ModelConfig, examples: Inputs, num_parts: int) -> tuple[float, str]:
    """Return the largest difference of the fused kernel from plain attention, as a share of the compared values, and
    the name of what differs.

    model: with the heads of one device; num_parts: devices that share a window (kernels/mesh.py).
    """
    shares = largest_shares(*compute_both(model, examples, num_parts))
    return max((float(share), name) for name, share in shares.items())


def compute_both(model: ModelConfig, examples: Inputs, num_parts: int) -> tuple[Gradients, Gradients]:
    """Return the output of an attention call and its gradients, by name, each float [.., N, rows, H]: those of the
    fused kernel, and those of plain attention in float32."""
    inputs = call_of(examples, model)
    batch, heads, keys, _ = inputs.key_BNKH.shape
    if model.attention_dropout:
        seed_BN = attention_seed_BN(jax.random.key(7), examples.example_B, heads)
        inputs = inputs._replace(dropout=AttentionDropout(model.attention_dropout, seed_BN))
    rows_at_once = max(1, SCORES // (batch * heads * (keys + examples.input_ids_BL.shape[1])))
    grad_BNTH = _normal(8, inputs.query_BNTH.shape, inputs.query_BNTH.dtype)
    fused = partial(attention_BNTH, implementation="fused")
    ours = _pulled_back(partial(_in_parts_BNTH, implementation=fused, count=num_parts), inputs, grad_BNTH)
    in_float32 = inputs._replace(**jax.tree.map(lambda x: x.astype(jnp.float32), numbers_of(inputs)))
    with jax.default_matmul_precision("highest"):
        plain_BNTH = partial(_plain_BNTH, rows_at_once=rows_at_once)
        reference = _pulled_back(plain_BNTH, in_float32, grad_BNTH.astype(jnp.float32))
    return ours, reference


@jax.jit
def largest_shares(ours: Gradients, reference: Gradients) -> dict[str, jnp.ndarray]:
    """Return how far each array of `compute_both` is from the reference in the block where it is farthest, as a share
    of the block's size."""
    least = {name: SMALLEST**2 * _squares_of_blocks(x).mean() for name, x in reference.items()}
    # A bias sums the gradients of all queries. If that sum is small by chance, mostly rounding is left.
    of_queries = reference["gradient of query_BNTH"]
    least["gradient of biases_3NH"] = jnp.square(of_queries).sum() / (16 * of_queries.shape[1])
    return {name: _share(ours[name], x, least[name]) for name, x in reference.items()}


def call_of(inputs: Inputs, model: ModelConfig) -> AttentionInputs:
    """Return the attention call of a layer on these inputs, with random numbers."""
    (batch, length), mem_len = inputs.input_ids_BL.shape, inputs.memory_BM.shape[1]
    heads, dtype = (model.num_heads, model.d_head), jnp.dtype(model.dtype)
    relations = inputs.relations if model.network == "bert" else relate(inputs, mem_len, model)
    biases_3NH = position_key_2NRH = segment_key_2NH = None
    if model.positions == "relative":
        biases_3NH = 0.5 * _normal(3, (3, *heads))
        position_key_2NRH = 0.5 * _normal(4, (2, model.num_heads, mem_len + 2 * length, model.d_head))
    if relations.row_segment_BT is not None:
        segment_key_2NH = 0.5 * _normal(5, (2, *heads), dtype)
    # Scores of all terms have a standard deviation of about 1: a row with one key of weight 1 would have no gradients.
    query, key, value = (
        _normal(i, (batch, model.num_heads, size, model.d_head), dtype)
        for i, size in enumerate((length + relations.num_targets, mem_len + length, mem_len + length))
    )
    return AttentionInputs(query, 0.5 * key, value, relations, biases_3NH, position_key_2NRH, segment_key_2NH)


def _normal(seed: int, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> jnp.ndarray:
    return jax.random.normal(jax.random.key(seed), shape, dtype)


# ---- both implementations --------------------------------------------------------------------------------------------


def _pulled_back(implementation: Implementation, inputs: AttentionInputs, grad_BNTH: jnp.ndarray) -> Gradients:
    @jax.jit
    def pull_back(numbers: Any, grad_BNTH: jnp.ndarray) -> Gradients:
        read_BNTH, pull = jax.vjp(lambda numbers: implementation(inputs._replace(**numbers)), numbers)
        (gradients,) = pull(grad_BNTH)
        for name in ("biases_3NH", "segment_key_2NH"):
            if name in gradients:
                gradients[name] = gradients[name][:, :, None]
        return {"output": read_BNTH} | {f"gradient of {name}": gradient for name, gradient in gradients.items()}

    return pull_back(numbers_of(inputs), grad_BNTH)


def _in_parts_BNTH(inputs: AttentionInputs, implementation: Implementation, count: int) -> jnp.ndarray:
    """Return the attention output of every row, from the calls of the devices that share a window, one by one."""
    if count == 1:
        return implementation(inputs)
    query_BNTH = inputs.query_BNTH
    content = query_BNTH.shape[2] - inputs.relations.num_targets
    in_parts_BNTH = join_parts(query_BNTH[:, :, :content], query_BNTH[:, :, content:], count, axis=2)
    by_part = jnp.stack(jnp.split(in_parts_BNTH, count, axis=2))

    def read_BNTH(part_and_query: tuple[jnp.ndarray, jnp.ndarray]) -> jnp.ndarray:
        part, own_BNTH = part_and_query
        return rows_of_part_BNTH(inputs._replace(query_BNTH=own_BNTH), implementation, part, count)

    read = _side_by_side_BNTH(jax.lax.map(read_BNTH, (jnp.arange(count), by_part)))
    return jnp.concatenate(split_parts(read, content, count, axis=2), axis=2)


def _plain_BNTH(inputs: AttentionInputs, rows_at_once: int) -> jnp.ndarray:
    """Return the attention output of every row from plain attention, a few rows at a time."""
    relations, rows = inputs.relations, inputs.query_BNTH.shape[2]
    if inputs.position_key_2NRH is not None:
        # All as query rows, which may be anywhere.
        batch, content = len(inputs.query_BNTH), rows - relations.num_targets
        position_BT = jnp.broadcast_to(jnp.arange(content)[None], (batch, content))
        if relations.query_position_BP is not None:
            position_BT = jnp.concatenate([position_BT, relations.query_position_BP], axis=1)
        relations = relations._replace(query_position_BP=position_BT)

    def read_BNTH(row_T: jnp.ndarray) -> jnp.ndarray:
        def take(x_BT: jnp.ndarray) -> jnp.ndarray:
            return x_BT[:, row_T]

        some = relations.of_rows(take)
        if some.query_position_BP is not None:
            some = some._replace(query_position_BP=take(some.query_position_BP))
        return plain.attention_BNTH(
            inputs._replace(
                query_BNTH=inputs.query_BNTH[:, :, row_T],
                relations=some,
                dropout=inputs.dropout and inputs.dropout._replace(row_T=row_T),
            )
        )

    count = -(-rows // rows_at_once)
    # The last call computes the last row several times.
    row_CT = jnp.minimum(jnp.arange(count * -(-rows // count)), rows - 1).reshape(count, -1)
    return _side_by_side_BNTH(jax.lax.map(jax.checkpoint(read_BNTH), row_CT))[:, :, :rows]


def _side_by_side_BNTH(by_call: jnp.ndarray) -> jnp.ndarray:
    """Return the rows of several calls (the first axis) in order."""
    calls, batch, heads, rows, width = by_call.shape
    return jnp.moveaxis(by_call, 0, 2).reshape(batch, heads, calls * rows, width)


def _share(ours: jnp.ndarray, reference: jnp.ndarray, least: jnp.ndarray) -> jnp.ndarray:
    """Return the largest difference of a block as a share of its size, both as root mean squares; infinite if something
    is not finite. least: lower bound of the squared size of a block."""
    difference, size = (_squares_of_blocks(x) for x in (ours.astype(jnp.float32) - reference, reference))
    share = jnp.sqrt(difference / jnp.maximum(jnp.maximum(size, least), jnp.finfo(jnp.float32).tiny)).max()
    return jnp.where(jnp.isfinite(share), share, jnp.inf)


def _squares_of_blocks(x_NTH: jnp.ndarray) -> jnp.ndarray:
    *lead, rows, _ = x_NTH.shape
    squares = jnp.pad(jnp.square(x_NTH).sum(-1), [(0, 0)] * len(lead) + [(0, -rows % BLOCK)])
    return squares.reshape(*lead, -1, BLOCK).sum(-1)


TOLERANCE = {"float32": 2e-2, "bfloat16": 4e-2}
"""Largest accepted difference from plain attention, as a share of the compared values. TPU kernels round float32
operands to bfloat16, so float32 is only as accurate as bfloat16."""


def choose_attention(config: RunConfig, mesh: Mesh) -> tuple[str, str]:
    """Return the attention implementation of a run, plain or fused, and the choice in words.

    Raises InputError if the settings ask for the fused kernel and there is none.
    """
    if config.model.attention == "plain":
        return "plain", "plain"
    with sharding.axes_of(mesh):
        reason = why_not_fused(jax.eval_shape(lambda: _call_shapes(config)))
        words = describe_fused()
    if reason is None:
        return "fused", words
    if config.model.attention == "fused":
        raise InputError(f"model.attention fused: {reason}; auto would take plain")
    return "plain", f"plain: {reason}"


def _call_shapes(config: RunConfig) -> AttentionInputs:
    """Return the part of the run's attention call that `why_not_fused` reads."""
    model, rows = config.model, config.data.seq_len
    keys = rows + model.mem_len
    is_dense = isinstance(config.data, DataConfig) and config.data.emit == "dense"
    query, key = (jnp.empty((1, model.num_heads, length, model.d_head), model.dtype) for length in (rows, keys))
    mask_BTK = jnp.empty((1, rows, keys), bool) if is_dense else None
    return AttentionInputs(query, key, key, Relations(mask_BTK=mask_BTK))


def check_attention(config: RunConfig, process: Process, sample: Callable[[], Inputs]) -> str:
    """Return the attention implementation for this run, and print it. The fused kernel is used only if it agrees with
    plain attention on the devices of all processes (`difference`).

    sample: returns two examples of the run. Raises InputError like `choose_attention`, and if the mesh does not fit.
    """
    mesh = sharding.make_mesh(config)
    attention, words = choose_attention(config, mesh)
    if attention == "fused":
        with jax.default_device(jax.local_devices()[0]):
            examples = sample()
            differences = [difference(model, examples, mesh.shape["context"]) for model in _on_one_device(config, mesh)]
        worst, what = max(process.gather("attention", max(differences)))
        if worst > TOLERANCE[config.model.dtype]:
            attention = "plain"
            words = f"plain: on this device the {what} by the fused kernel is off by {worst:.0%} of its size"
    process.console.print(f"attention   {words}")
    return attention


def _on_one_device(config: RunConfig, mesh: Mesh) -> list[ModelConfig]:
    """Return the networks of a run with the heads that one device computes."""
    networks = [replace(config.model, attention="fused")]
    if isinstance(config, Config) and objective_named(config.objective).judges_tokens:
        networks.append(config.rtd.generator_of(networks[0]))
    devices = mesh.shape["tensor"]
    return [
        replace(network, num_heads=network.num_heads // (1 if network.num_heads % devices else devices))
        for network in networks
    ]
