"""Call fused relative attention on GPUs and compute its gradient.

Computes the attention of kernels/plain.py (XLNet, sections 2.3 to 2.5; Transformer-XL, section 3.3) in Pallas-Triton,
in tiles of rows and keys. Only two arrays as large as the scores go through the device's memory: the position scores by
distance and their gradient. XLA multiplies queries by position keys, and in the kernels each row reads the result at
its own offset.
"""

import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from xlnet_jax.kernels.arguments import AttentionInputs, find_obstacle, pad
from xlnet_jax.kernels.gpu.kernels import Residuals, backward, forward
from xlnet_jax.kernels.gpu.operands import GpuSizes, Vectors, operands_of, sizes_of, vectors_of
from xlnet_jax.kernels.mesh import interpret_argument

NAME = "fused (Pallas-Triton, deprecated by jax: up to jax 0.12)"
"""name of these kernels in messages; docs/kernels.md has the ways to replace them"""
OLDEST = 8.0  # compute capability: bfloat16 products
# Compute capabilities with 99 KiB of shared memory per block: A10, A40, RTX 30, L4, L40S, RTX 40 and RTX 50. The
# backward kernel needs 113 KiB for float32 heads wider than 64.
SMALL_SHARED_MEMORY = ("8.6", "8.9", "12.0", "12.1")


def why_unsupported(inputs: AttentionInputs) -> str | None:
    """Return a clause that says why the kernels do not support these inputs; None if they do."""
    if (reason := find_obstacle(inputs)) is not None:
        return reason
    if not (capability := _compute_capability())[0].isdigit() or float(capability) < OLDEST:
        return f"the device has compute capability {capability}, and the kernel needs {OLDEST}"
    width, dtype = inputs.query_BNTH.shape[-1], inputs.query_BNTH.dtype
    if capability in SMALL_SHARED_MEMORY and width > 64 and dtype == jnp.float32:
        has = f"the device has compute capability {capability}, with too little shared memory"
        return f"{has} for heads of {width} in float32"
    return None


def attention_BNTH(inputs: AttentionInputs) -> jnp.ndarray:
    """Return the attention output of every row in the type of the values, on one device; softmax in float32."""
    sizes = sizes_of(inputs)
    return _attend(sizes, bool(interpret_argument()), inputs._replace(dropout=None), vectors_of(sizes, inputs))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(sizes: GpuSizes, interpret: bool, inputs: AttentionInputs, vectors: Vectors) -> jnp.ndarray:
    return _forward(sizes, interpret, inputs, vectors)[0]


def _forward(sizes: GpuSizes, interpret: bool, inputs: AttentionInputs, vectors: Vectors) -> tuple[jnp.ndarray, tuple]:
    read_BNTH, *softmax = forward(sizes, operands_of(sizes, inputs), vectors, interpret)
    # Name the arrays that the backward pass needs: with a remat policy that saves them, the forward kernel runs once.
    read_BNTH = checkpoint_name(read_BNTH[:, :, : sizes.num_rows, : sizes.head_width], "read_BNTH")
    return read_BNTH, (inputs, vectors, read_BNTH, checkpoint_name(softmax, "softmax_BST"))


def _backward(sizes: GpuSizes, interpret: bool, saved: tuple, grad_BNTH: jnp.ndarray) -> tuple[AttentionInputs, None]:
    inputs, vectors, read_BNTH, softmax = saved
    # Position scores by distance are recomputed instead of saved.
    operands, pull = jax.vjp(functools.partial(operands_of, sizes), inputs)
    mean_BNT = (read_BNTH.astype(jnp.float32) * grad_BNTH.astype(jnp.float32)).sum(-1)
    padded_grad = pad(pad(grad_BNTH, 2, sizes.more_rows), 3, sizes.more_width)
    padded_mean = pad(mean_BNT, 2, sizes.more_rows)
    gradients = backward(sizes, operands, vectors, Residuals(padded_grad, padded_mean, *softmax), interpret)
    return (*pull(gradients), None)


_attend.defvjp(_forward, _backward)


def _compute_capability() -> str:
    """Return the compute capability of this process's devices, such as 9.0, or gfx942 on AMD. Without GPUs, the program
    is compiled for other devices, which are assumed to be capable."""
    return str(getattr(jax.local_devices()[0], "compute_capability", OLDEST))
