"""Call attention, plain or with the fused kernel for the devices that a program is traced for.

To add an implementation, write a function of `AttentionInputs` and add a line to the table.
"""

from types import ModuleType

import jax
import jax.numpy as jnp

from xlnet_jax.kernels import plain
from xlnet_jax.kernels.arguments import AttentionInputs, Implementation
from xlnet_jax.kernels.mesh import CPU, GPU, count_parts, device_kind, divide_attention_BNTH, kernel_device
from xlnet_jax.printing import tell


def why_not_fused(inputs: AttentionInputs) -> str | None:
    """Return a clause that says why no kernel supports these inputs on the device; None if one does."""
    kernel = _kernel()
    if kernel is None:
        return f"the device is {device_kind()}, and there is no kernel for it"
    return kernel.why_unsupported(inputs)


def describe_fused() -> str:
    """Return the fused kernel of the device in words."""
    kernel = _kernel()
    return "fused" if kernel is None else kernel.NAME


def fused_attention_BNTH(inputs: AttentionInputs) -> jnp.ndarray:
    """Return the attention output of every row in the type of the values, by the device's kernel; softmax in float32.

    Under a mesh each device computes its own examples and heads. If no kernel supports the inputs, says why and uses
    plain attention.
    """
    kernel, reason = _kernel(), why_not_fused(inputs)
    if kernel is None or reason is not None:
        tell(f"attention is plain, not fused: {reason}")
        return plain.attention_BNTH(inputs)
    return divide_attention_BNTH(inputs, kernel.attention_BNTH)


def fastest_attention_BNTH(inputs: AttentionInputs) -> jnp.ndarray:
    """Return what `fused_attention_BNTH` returns. On a device without a kernel, uses plain attention and says
    nothing."""
    return plain.attention_BNTH(inputs) if _kernel() is None else fused_attention_BNTH(inputs)


def _kernel() -> ModuleType | None:
    """Import and return the module of the device's kernel; None for a CPU."""
    device = kernel_device()
    if device == CPU:
        return None
    if device == GPU:
        from xlnet_jax.kernels.gpu import call as for_gpus

        return for_gpus
    from xlnet_jax.kernels.tpu import call as for_tpus

    return for_tpus


IMPLEMENTATIONS: dict[str, Implementation] = {
    "plain": plain.attention_BNTH,
    "fused": fused_attention_BNTH,
    "auto": fastest_attention_BNTH,
}
"""Function by name; all compute the same numbers as kernels/plain.py. Calls that the fused kernel does not support,
such as those with a dense mask, use plain attention and print why, once."""


@jax.named_scope("attention_scores")
def attention_BNTH(inputs: AttentionInputs, implementation: str = "auto") -> jnp.ndarray:
    """Return the attention output of every row, in the type of the values.

    If the mesh divides the sequence, rows and keys are in parts (kernels/mesh.py), and each device computes its own.
    """
    compute = IMPLEMENTATIONS[implementation]
    return compute(inputs) if count_parts() == 1 else divide_attention_BNTH(inputs, compute)
