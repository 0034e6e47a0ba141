"""Fused relative attention for TPUs: the call, its layout and its gradient.

Nothing of [T, K] is ever in the memory of the device: scores, masks, segment comparisons and dropout masks exist for a
tile of rows on the chip. Both streams run through one kernel, content rows before query rows. It is the attention of
kernels/plain.py (XLNet, sections 2.3 to 2.5; Transformer-XL, section 3.3), forward and backward.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from xlnet_jax.costs.chips import chip_of
from xlnet_jax.kernels import over_mesh, plain
from xlnet_jax.kernels.arguments import AttentionInputs, unsupported
from xlnet_jax.kernels.devices import device_kind
from xlnet_jax.kernels.fused import long
from xlnet_jax.kernels.fused.backward import Saved, backward
from xlnet_jax.kernels.fused.forward import forward
from xlnet_jax.kernels.fused.operands import Operands, heads_apart_BNTH, operands_of, real_rows, sizes_of
from xlnet_jax.kernels.fused.tiles import GENERATIONS, LANES, Sizes

_INTERPRETED: ContextVar[tuple[str, Any] | None] = ContextVar("interpreted", default=None)


@contextmanager
def interpreted(generation: str = "v5e", interpret: Any = True) -> Iterator[None]:
    """Interpret the kernels of calls traced inside, as a generation of TPUs would compute them: tests without a TPU.

    interpret: argument of `pallas_call`; True = quickly, `pltpu.InterpretParams` = with the memories of a TPU.
    """
    token = _INTERPRETED.set((generation, interpret))
    try:
        yield
    finally:
        _INTERPRETED.reset(token)


def supports(inputs: AttentionInputs) -> str | None:
    """Return why the kernel cannot compute these inputs, in a clause; None where it can."""
    if (reason := unsupported(inputs, LANES)) is not None:
        return reason
    if _generation_name() not in GENERATIONS:
        return f"the device is {device_kind()}, and there is no kernel for it"
    return None


def attention_BNTH(inputs: AttentionInputs) -> jnp.ndarray:
    """Return the attention output of every row in the type of the values; softmax in float32.

    Under a mesh each device computes its own examples and heads. Where `supports` gives a reason, plain computes it.
    """
    if supports(inputs) is not None:
        return plain.attention_BNTH(inputs)
    return over_mesh.attention_BNTH(inputs, _on_one_device_BNTH)


def _on_one_device_BNTH(inputs: AttentionInputs) -> jnp.ndarray:
    generation, interpret = GENERATIONS[_generation_name()], False
    if (interpretation := _INTERPRETED.get()) is not None:
        generation = generation._replace(unrolls=False)  # the interpreter compiles loops sooner
        interpret = interpretation[1]
    sizes = sizes_of(inputs, generation)
    read_BTH = _attend(sizes, interpret, operands_of(inputs, sizes))
    return heads_apart_BNTH(real_rows(read_BTH, sizes), sizes)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(sizes: Sizes, interpret: Any, operands: Operands) -> jnp.ndarray:
    return _forward(sizes, interpret, operands)[0]


def _forward(sizes: Sizes, interpret: Any, operands: Operands) -> tuple[jnp.ndarray, tuple]:
    # Position keys come in float32, so that their gradients leave in float32: every example adds to them.
    if operands.position_2RH is not None:
        operands = operands._replace(position_2RH=operands.position_2RH.astype(operands.query_BTH.dtype))
    read_BTH, softmax_BST = (forward if sizes.fits else long.forward)(sizes, operands, interpret)
    # Name the arrays that the backward pass needs: a remat policy that saves them runs the forward kernel once.
    read_BTH = checkpoint_name(read_BTH, "read_BNTH")
    softmax_BST = checkpoint_name(softmax_BST, "softmax_BST")
    return read_BTH, (operands, read_BTH, softmax_BST)


def _backward(sizes: Sizes, interpret: Any, saved: tuple, grad_BTH: jnp.ndarray) -> tuple[Operands]:
    operands, read_BTH, softmax_BST = saved
    differentiate = backward if sizes.fits else long.backward
    gradients = differentiate(sizes, operands, Saved(read_BTH, softmax_BST, grad_BTH), interpret)
    return (Operands(*gradients, rows_B8T=None, keys_B8K=None, is_reversed_B=None, seed_BN=None),)


_attend.defvjp(_forward, _backward)


def _generation_name() -> str:
    """Return the name of the generation of TPUs that a program is traced for; empty for other devices."""
    if (interpretation := _INTERPRETED.get()) is not None:
        return interpretation[0]
    chip = chip_of(device_kind())
    return "" if chip is None else chip.name
