"""The attention implementation of a run: chosen for its devices, and compared with plain attention on this process's
first device before the run uses it. The comparison is one attention call with random numbers, of the lengths, masks,
segments, directions, dropout, type and head width of the run, and in the parts of a window that the run gives one
device: so the kernel cuts it into the same tiles and blocks as in the run. Its output and its gradients by queries,
keys, values, position keys, biases and segment keys are each compared with those of plain attention in float32,
block by block.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from data_pipelines.batches import BatchSource
from xlnet_jax.errors import InputError
from xlnet_jax.kernels import plain
from xlnet_jax.kernels.arguments import AttentionInputs, Implementation, Relations, numbers_of
from xlnet_jax.kernels.dropout import AttentionDropout, attention_seed_BN
from xlnet_jax.kernels.implementations import attention_BNTH, why_not_fused
from xlnet_jax.kernels.mesh import join_parts, rows_of_part_BNTH, split_parts
from xlnet_jax.models.inputs import Inputs, text_inputs
from xlnet_jax.models.xlnet import relate
from xlnet_jax.objectives.language_model import inputs_of
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.objectives.traced import DeviceBatch
from xlnet_jax.settings.config import Config, DataConfig, ModelConfig, RunConfig
from xlnet_jax.training import sharding
from xlnet_jax.training.hosts import Process

Sample: TypeAlias = Callable[[], Inputs]
"""Function that returns two examples as the run has them."""

BLOCK = 16
"""Consecutive rows, keys or distances of one head that are compared together, by the root of the mean square: a few
wrong rows stand out, and rounding averages out."""

SMALLEST = 0.01
"""Blocks smaller than this share of the whole array's root mean square are compared with that share: the gradient by
a key that hardly any row sees is rounding alone."""

SCORES = 2**25
"""Scores that plain attention computes at a time: those of a long window would not fit in memory."""
TOGETHER = 2**28
"""Scores up to which both examples are compared in one call; above, in one call each."""

QUERIES, BIASES = "gradient of the queries", "gradient of the biases"
WORDS = {
    "query_BNTH": QUERIES,
    "key_BNKH": "gradient of the keys",
    "value_BNKH": "gradient of the values",
    "biases_3NH": BIASES,
    "position_key_2NRH": "gradient of the position keys",
    "segment_key_2NH": "gradient of the segment keys",
}


@dataclass(frozen=True, eq=False)
class Windows:
    """Sample of pretraining: the last windows of two blocks, where memory is full. The second one has half of its
    memory, and reads backwards where some windows do."""

    config: Config
    batches: BatchSource

    def __call__(self) -> Inputs:
        """Return them; ranks, segments and documents are those of a batch of the run."""
        return inputs_of(self.batch(), self.config)[0]

    def batch(self) -> DeviceBatch:
        """Return the batch that they are read from."""
        mem_len = self.config.model.mem_len
        windows = self.batches.batch_at(self.batches.steps_per_block - 1, range(2))
        windows["is_reversed"] = np.array([False, self.config.data.bidirectional])
        windows["mem_filled"] = np.array([mem_len, mem_len // 2], np.int32)
        return {name: jnp.asarray(array) for name, array in windows.items()}


@dataclass(frozen=True)
class Texts:
    """Sample of finetuning: texts of two segments in which every token sees every other; the second one is padded."""

    seq_len: int
    mem_len: int

    def __call__(self) -> Inputs:
        """Return them; memory is in use."""
        at_BL = jnp.broadcast_to(jnp.arange(self.seq_len)[None], (2, self.seq_len))
        is_real_BL = at_BL >= jnp.array([[0], [self.seq_len // 4]])
        in_second_BL = (at_BL > self.seq_len // 2).astype(jnp.int32)
        return text_inputs(jnp.zeros_like(at_BL), is_real_BL.astype(jnp.int32), in_second_BL, self.mem_len)


@lru_cache(maxsize=2)  # runs of finetuning differ in their seed alone
def difference(model: ModelConfig, sample: Sample, num_parts: int) -> tuple[float, str]:
    """Return how far the fused kernel is from plain attention at most, as a share of the size of what differs, and the
    name of what differs.

    model: with the heads of one device; num_parts: devices that share a window (kernels/mesh.py).
    """
    found: dict[str, float] = {}
    with jax.default_device(jax.local_devices()[0]):
        examples = sample()
        scores_of_row = model.num_heads * (2 * examples.input_ids_BL.shape[1] + examples.memory_BM.shape[1])
        shares = partial(_shares, rate=model.attention_dropout, num_parts=num_parts)
        compare = jax.jit(partial(shares, rows_at_once=max(1, SCORES // scores_of_row)))
        for some in _divided(examples, scores_of_row):
            inputs = call_of(some, model)
            seed_BN = attention_seed_BN(jax.random.key(7), some.example_B, model.num_heads)
            grad_BNTH = _normal(8, inputs.query_BNTH.shape, inputs.query_BNTH.dtype)
            for name, share in jax.device_get(compare(inputs, seed_BN, grad_BNTH)).items():
                found[name] = max(float(share), found.get(name, 0.0))
    worst = max(found, key=lambda name: found[name])
    return found[worst], worst


def _divided(examples: Inputs, scores_of_row: int) -> list[Inputs]:
    """Return the examples of each call: all, or one, where the scores of all are too many."""
    rows = examples.input_ids_BL.shape[1]
    if examples.target_positions_BP is not None:
        rows += examples.target_positions_BP.shape[1]
    batch = len(examples.input_ids_BL)
    if batch * rows * scores_of_row <= TOGETHER:
        return [examples]
    return [jax.tree.map(lambda x, i=i: x[i : i + 1], examples) for i in range(batch)]


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


def _shares(
    inputs: AttentionInputs,
    seed_BN: jnp.ndarray,
    grad_BNTH: jnp.ndarray,
    *,
    rate: float,
    num_parts: int,
    rows_at_once: int,
) -> dict[str, jnp.ndarray]:
    """Return, by name, how far output and gradients of the fused kernel are from those of plain attention."""
    if rate:
        inputs = inputs._replace(dropout=AttentionDropout(rate, seed_BN))
    fused = partial(attention_BNTH, implementation="fused")
    ours = _pulled_back(partial(_in_parts_BNTH, implementation=fused, count=num_parts), inputs, grad_BNTH)
    numbers = jax.tree.map(lambda x: x.astype(jnp.float32), numbers_of(inputs))
    in_float32 = inputs._replace(**numbers)
    with jax.default_matmul_precision("highest"):
        plain_BNTH = partial(_plain_BNTH, rows_at_once=rows_at_once)
        reference = _pulled_back(plain_BNTH, in_float32, grad_BNTH.astype(jnp.float32))
    least = {name: SMALLEST**2 * _squares_of_blocks(x).mean() for name, x in reference.items()}
    # A bias sums the gradients of all queries. Where that sum is small by chance, rounding is left.
    least[BIASES] = jnp.square(reference[QUERIES]).sum() / (16 * inputs.query_BNTH.shape[1])
    return {name: _share(ours[name], x, least[name]) for name, x in reference.items()}


def _pulled_back(
    implementation: Implementation, inputs: AttentionInputs, grad_BNTH: jnp.ndarray
) -> dict[str, jnp.ndarray]:
    """Return the output of a call, and its gradients, by name, each float [.., N, rows, H]."""
    read_BNTH, pull = jax.vjp(lambda numbers: implementation(inputs._replace(**numbers)), numbers_of(inputs))
    (gradients,) = pull(grad_BNTH)
    for name in ("biases_3NH", "segment_key_2NH"):
        if name in gradients:
            gradients[name] = gradients[name][:, :, None]
    return {"output": read_BNTH} | {WORDS[name]: gradient for name, gradient in gradients.items()}


def _in_parts_BNTH(inputs: AttentionInputs, implementation: Implementation, count: int) -> jnp.ndarray:
    """Return the attention output of every row, by the calls of devices that share a window, one after the other."""
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
    """Return the attention output of every row by plain attention, some rows after the others."""
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
    """Return the rows of several calls, whose number is the first axis, in order."""
    calls, batch, heads, rows, width = by_call.shape
    return jnp.moveaxis(by_call, 0, 2).reshape(batch, heads, calls * rows, width)


def _share(ours: jnp.ndarray, reference: jnp.ndarray, least: jnp.ndarray) -> jnp.ndarray:
    """Return the largest difference of a block as a share of its size, both as root mean squares; infinite where
    something is not finite. least: squared size of a block, if it is smaller."""
    difference, size = (_squares_of_blocks(x) for x in (ours.astype(jnp.float32) - reference, reference))
    share = jnp.sqrt(difference / jnp.maximum(jnp.maximum(size, least), jnp.finfo(jnp.float32).tiny)).max()
    return jnp.where(jnp.isfinite(share), share, jnp.inf)


def _squares_of_blocks(x_NTH: jnp.ndarray) -> jnp.ndarray:
    *lead, rows, _ = x_NTH.shape
    squares = jnp.pad(jnp.square(x_NTH).sum(-1), [(0, 0)] * len(lead) + [(0, -rows % BLOCK)])
    return squares.reshape(*lead, -1, BLOCK).sum(-1)


TOLERANCE = {"float32": 2e-2, "bfloat16": 4e-2}
"""Largest difference from plain attention, as a share of the size of what is compared. On a TPU kernels round float32
operands to bfloat16, so float32 has the accuracy of bfloat16 operands."""


def unsupported(config: RunConfig, mesh: Mesh) -> str | None:
    """Return why there is no fused kernel for this run on the devices of a mesh, in a clause; None = there is."""
    with sharding.axes_of(mesh):
        return why_not_fused(_shapes(config))


def _shapes(config: RunConfig) -> Any:
    """Return the arguments of the run's attention calls, as far as `why_not_fused` reads them: shapes, not arrays."""
    model, rows = config.model, config.data.seq_len
    keys = rows + model.mem_len

    def of(*shape: int, dtype: str = model.dtype) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))

    is_dense = isinstance(config.data, DataConfig) and config.data.emit == "dense"
    relations = Relations(mask_BTK=of(1, rows, keys, dtype="bool") if is_dense else None)
    query, key, value = (of(1, model.num_heads, length, model.d_head) for length in (rows, keys, keys))
    return AttentionInputs(query, key, value, relations)


def choose_attention(config: RunConfig, mesh: Mesh) -> tuple[str, str]:
    """Return the attention implementation of a run, plain or fused, and the choice in words.

    Raises InputError where the settings ask for the fused kernel and there is none.
    """
    if config.model.attention == "plain":
        return "plain", "plain"
    reason = unsupported(config, mesh)
    if reason is None:
        return "fused", "fused"
    if config.model.attention == "fused":
        raise InputError(f"model.attention fused: {reason}; auto would take plain")
    return "plain", f"plain: {reason}"


def check_attention(config: RunConfig, process: Process, sample: Sample) -> str:
    """Return the attention implementation that this run uses, and print it: the fused kernel only where it computes
    what plain attention does on the devices of every process (`difference`).

    sample: examples of the run. Raises InputError as `choose_attention` does, and where the mesh does not fit.
    """
    mesh = sharding.make_mesh(config)
    attention, words = choose_attention(config, mesh)
    if attention == "fused":
        networks = _networks_of_one_device(config, mesh)
        here = max(difference(network, sample, mesh.shape["context"]) for network in networks)
        worst, what = max(process.hosts.gather("attention", here))
        if worst > TOLERANCE[config.model.dtype]:
            attention = "plain"
            words = f"plain: on this device the {what} by the fused kernel is off by {worst:.0%} of its size"
    process.console.print(f"attention   {words}")
    return attention


def _networks_of_one_device(config: RunConfig, mesh: Mesh) -> list[ModelConfig]:
    """Return the networks of a run with the heads that one device computes."""
    networks = [replace(config.model, attention="fused")]
    if isinstance(config, Config) and objective_named(config.objective).judges_tokens:
        networks.append(config.rtd.generator_of(networks[0]))
    devices = mesh.shape["tensor"]
    return [
        replace(network, num_heads=network.num_heads // (1 if network.num_heads % devices else devices))
        for network in networks
    ]
