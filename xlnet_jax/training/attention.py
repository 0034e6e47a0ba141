"""Choose the attention implementation of a run for its devices, and compare it with plain attention before use.

The comparison computes one call of a fixed size, with every term that a kernel has, in the number format and the head
width of the run, on the first device of each process. Output and gradients are compared with plain attention in
float32, block by block. `tests/xlnet_jax/kernels` compares other calls, with kernels interpreted on a CPU.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from xlnet_jax.errors import InputError
from xlnet_jax.kernels import plain
from xlnet_jax.kernels.arguments import AttentionInputs, Implementation, Relations, numbers_of
from xlnet_jax.kernels.dropout import AttentionDropout, attention_seed_BN
from xlnet_jax.kernels.implementations import attention_BNTH, describe_fused, why_not_fused
from xlnet_jax.models.inputs import compact_inputs
from xlnet_jax.models.masks import memory_in_use_BM
from xlnet_jax.models.xlnet import relate
from xlnet_jax.settings.config import DataConfig, ModelConfig, RunConfig
from xlnet_jax.training import sharding
from xlnet_jax.training.hosts import Process

TOLERANCE = {"float32": 2e-2, "bfloat16": 4e-2}
"""Largest accepted difference from plain attention, as a share of the compared values. TPU kernels round float32
operands to bfloat16, so float32 is only as accurate as bfloat16."""


def choose_attention(config: RunConfig, mesh: Mesh) -> tuple[str, str]:
    """Return the attention implementation of a run, and the choice in words.

    Raises InputError if the settings ask for the fused kernel and there is none.
    """
    if config.model.attention not in ("auto", "fused"):
        return config.model.attention, config.model.attention
    with sharding.axes_of(mesh):
        reason = why_not_fused(jax.eval_shape(lambda: _call_shapes(config)))
        words = describe_fused()
    if reason is None:
        return "fused", words
    if config.model.attention == "fused":
        raise InputError("model.attention", "fused", f": {reason}; auto would take plain")
    return "plain", f"plain: {reason}"


def _call_shapes(config: RunConfig) -> AttentionInputs:
    """Return the part of the run's attention call that `why_not_fused` reads."""
    model, rows = config.model, config.data.seq_len
    keys = rows + model.mem_len
    is_dense = isinstance(config.data, DataConfig) and config.data.emit == "dense"
    query, key = (jnp.empty((1, model.num_heads, length, model.d_head), model.dtype) for length in (rows, keys))
    mask_BTK = jnp.empty((1, rows, keys), bool) if is_dense else None
    return AttentionInputs(query, key, key, Relations(mask_BTK=mask_BTK))


def check_attention(config: RunConfig, process: Process) -> str:
    """Return the attention implementation for this run, and print it. The fused kernel is used only if it agrees with
    plain attention on the devices of all processes (`difference`). Raises InputError like `choose_attention`, and if
    the mesh does not fit."""
    attention, words = choose_attention(config, sharding.make_mesh(config))
    if attention == "fused":
        with jax.default_device(jax.local_devices()[0]):
            found = difference(config.model)
        worst, what = max(process.gather("attention", found))
        if worst > TOLERANCE[config.model.dtype]:
            attention = "plain"
            words = f"plain: on this device the {what} by the fused kernel is off by {worst:.0%} of its size"
    process.console.print(f"attention   {words}")
    return attention


# ---- the comparison --------------------------------------------------------------------------------------------------

LENGTH, MEMORY, HEADS = 160, 96, 2
"""Sizes of the compared call: tokens, positions of memory, heads. Rows and keys fill several tiles of a GPU, and the
rows two of a TPU; the last ones hold padding."""

BLOCK = 16
"""Number of consecutive rows, keys or distances of one head to compare together, by root mean square: a few wrong rows
stand out, and rounding averages out."""

SMALLEST = 0.01
"""Blocks smaller than this share of the whole array's root mean square are compared with that share: the gradient of a
key to which hardly any row attends is only rounding."""

Gradients = dict[str, jnp.ndarray]


def difference(model: ModelConfig) -> tuple[float, str]:
    """Return the largest difference of the fused kernel from plain attention, as a share of the compared values, and
    the name of what differs. model: gives the head width and the number format."""
    shares = largest_shares(*compute_both(model))
    return max((float(share), name) for name, share in shares.items())


def compute_both(model: ModelConfig) -> tuple[Gradients, Gradients]:
    """Return the output of the compared call and its gradients, by name, each float [.., N, rows, H]: those of the
    fused kernel, and those of plain attention in float32."""
    inputs = compared_call(model)
    grad_BNTH = _normal(8, inputs.query_BNTH.shape, inputs.query_BNTH.dtype)
    in_float32 = inputs._replace(**jax.tree.map(lambda x: x.astype(jnp.float32), numbers_of(inputs)))
    with jax.default_matmul_precision("highest"):
        reference = _pull_back(plain.attention_BNTH, in_float32, grad_BNTH.astype(jnp.float32))
    return _pull_back(partial(attention_BNTH, implementation="fused"), inputs, grad_BNTH), reference


@jax.jit
def largest_shares(ours: Gradients, reference: Gradients) -> dict[str, jnp.ndarray]:
    """Return how far each array of `compute_both` is from the reference in the block where it is farthest, as a share
    of the block's size."""
    least = {name: SMALLEST**2 * _squares_of_blocks(x).mean() for name, x in reference.items()}
    # A bias sums the gradients of all queries. If that sum is small by chance, mostly rounding is left.
    of_queries = reference["gradient of query_BNTH"]
    least["gradient of biases_3NH"] = jnp.square(of_queries).sum() / (16 * of_queries.shape[1])
    return {name: _share(ours[name], x, least[name]) for name, x in reference.items()}


def compared_call(model: ModelConfig) -> AttentionInputs:
    """Return an attention call with random numbers and all terms: two windows of permutation language modeling. The
    second one is read backwards and has half of its memory; a document of the first one begins in the middle."""
    place_L, dtype = jnp.arange(LENGTH), jnp.dtype(model.dtype)
    target_P = place_L[4::5]
    order_BP = jnp.stack([jax.random.permutation(jax.random.key(seed), len(target_P)) for seed in (9, 10)])
    inputs = compact_inputs(
        jnp.zeros((2, LENGTH), jnp.int32),
        segment_ids_BL=jnp.tile((place_L >= LENGTH // 4).astype(jnp.int32), (2, 1)),
        perm_rank_BL=jnp.full((2, LENGTH), -1).at[:, target_P].set(order_BP),
        target_positions_BP=jnp.tile(target_P, (2, 1)),
        is_reversed_B=jnp.array([False, True]),
        memory_BM=memory_in_use_BM(jnp.array([MEMORY, MEMORY // 2]), MEMORY),
        document_start_BL=jnp.stack(
            [jnp.where(place_L < LENGTH // 2, -MEMORY, LENGTH // 2), jnp.full(LENGTH, -MEMORY)]
        ),
    )
    keys, heads = MEMORY + LENGTH, (HEADS, model.d_head)
    # Scores of all terms have a standard deviation of about 1: a row with one key of weight 1 would have no gradients.
    return AttentionInputs(
        _normal(0, (2, HEADS, LENGTH + len(target_P), model.d_head), dtype),
        0.5 * _normal(1, (2, HEADS, keys, model.d_head), dtype),
        _normal(2, (2, HEADS, keys, model.d_head), dtype),
        relate(inputs, MEMORY, ModelConfig()),
        0.5 * _normal(3, (3, *heads)),
        0.5 * _normal(4, (2, HEADS, keys + LENGTH, model.d_head)),
        0.5 * _normal(5, (2, *heads), dtype),
        AttentionDropout(0.1, attention_seed_BN(jax.random.key(7), jnp.arange(2), HEADS)),
    )


def _normal(seed: int, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> jnp.ndarray:
    return jax.random.normal(jax.random.key(seed), shape, dtype)


def _pull_back(implementation: Implementation, inputs: AttentionInputs, grad_BNTH: jnp.ndarray) -> Gradients:
    @jax.jit
    def pull_back(numbers: Gradients, grad_BNTH: jnp.ndarray) -> Gradients:
        read_BNTH, pull = jax.vjp(lambda numbers: implementation(inputs._replace(**numbers)), numbers)
        (gradients,) = pull(grad_BNTH)
        for name in ("biases_3NH", "segment_key_2NH"):
            gradients[name] = gradients[name][:, :, None]
        return {"output": read_BNTH} | {f"gradient of {name}": gradient for name, gradient in gradients.items()}

    return pull_back(numbers_of(inputs), grad_BNTH)


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
