"""Call fused relative attention on TPUs and compute its gradient.

No array of shape [T, K] is in the device's memory: scores, masks, segment comparisons and dropout masks exist only on
the chip, for one tile of rows at a time. One kernel computes both streams, content rows before query rows. It computes
the attention of kernels/plain.py (XLNet, sections 2.3 to 2.5; Transformer-XL, section 3.3), forward and backward.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from xlnet_jax.kernels.arguments import AttentionInputs, find_obstacle
from xlnet_jax.kernels.mesh import device_kind, interpret_argument, kernel_device
from xlnet_jax.kernels.tpu.backward import backward
from xlnet_jax.kernels.tpu.forward import forward
from xlnet_jax.kernels.tpu.operands import TpuOperands, operands_of, sizes_of, split_heads_BNTH, unpad_rows
from xlnet_jax.kernels.tpu.tiles import GENERATIONS, TpuSizes

NAME = "fused"
"""name of these kernels in messages"""


def why_unsupported(inputs: AttentionInputs) -> str | None:
    """Return a clause that says why the kernel does not support these inputs; None if it does."""
    if (reason := find_obstacle(inputs)) is not None:
        return reason
    if kernel_device() not in GENERATIONS:
        return f"the device is {device_kind()}, and there is no kernel for it"
    return None


def attention_BNTH(inputs: AttentionInputs) -> jnp.ndarray:
    """Return the attention output of every row in the type of the values, on one device; softmax in float32."""
    generation, interpret = GENERATIONS[kernel_device()], interpret_argument()
    if interpret:
        generation = generation._replace(unrolls=False)  # the interpreter compiles loops faster
    sizes = sizes_of(inputs, generation)
    read_BTH = _attend(sizes, interpret, operands_of(inputs, sizes))
    return split_heads_BNTH(unpad_rows(read_BTH, sizes), sizes)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(sizes: TpuSizes, interpret: Any, operands: TpuOperands) -> jnp.ndarray:
    return _forward(sizes, interpret, operands)[0]


def _forward(sizes: TpuSizes, interpret: Any, operands: TpuOperands) -> tuple[jnp.ndarray, TpuOperands]:
    dtype = operands.query_BTH.dtype
    # Position keys are float32 outside, so that their gradients, sums over examples, are float32.
    if operands.position_2HR is not None:
        operands = operands._replace(position_2HR=operands.position_2HR.astype(dtype))
    read_BTH, softmax_BST = forward(sizes, _readable(sizes, operands), interpret)
    # Name the arrays that the backward pass needs: with a remat policy that saves them, the forward kernel runs once.
    read_BTH = checkpoint_name(read_BTH.astype(dtype), "read_BNTH")
    softmax_BST = checkpoint_name(softmax_BST, "softmax_BST")
    return read_BTH, operands._replace(read_BTH=read_BTH, softmax_BST=softmax_BST)


def _backward(sizes: TpuSizes, interpret: Any, saved: TpuOperands, grad_BTH: jnp.ndarray) -> tuple[TpuOperands]:
    gradients = backward(sizes, _readable(sizes, saved._replace(grad_BTH=grad_BTH)), interpret)
    narrow = {name: getattr(gradients, name).astype(saved.query_BTH.dtype) for name in gradients._fields[:3]}
    return (gradients._replace(**narrow),)


_attend.defvjp(_forward, _backward)


def _readable(sizes: TpuSizes, operands: TpuOperands) -> TpuOperands:
    """Convert what the kernels read to float32 if the chip cannot multiply bfloat16. XLA does it once; a kernel would
    for each tile, which takes it as long as all products."""
    if sizes.generation.multiplies_bfloat16:
        return operands
    return jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x, operands)
