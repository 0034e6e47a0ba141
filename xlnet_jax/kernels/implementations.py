"""The attention call of every network: plain, or by the fused kernel of the devices that a program is traced for.

An implementation is a function of `AttentionInputs`, and a line of the table.
"""

from types import ModuleType

import jax
import jax.numpy as jnp

from xlnet_jax.kernels import plain
from xlnet_jax.kernels.arguments import AttentionInputs, Implementation
from xlnet_jax.kernels.mesh import CPU, GPU, count_parts, device_kind, divide_attention_BNTH, interpretation, platform


def why_not_fused(inputs: AttentionInputs) -> str | None:
    """Return why no kernel can compute these inputs on the device, in a clause; None where one can."""
    kernel = _kernel()
    if kernel is None:
        return f"the device is {device_kind()}, and there is no kernel for it"
    return kernel.why_unsupported(inputs)


def fused_attention_BNTH(inputs: AttentionInputs) -> jnp.ndarray:
    """Return the attention output of every row in the type of the values, by the kernel of the device; softmax in
    float32.

    Under a mesh each device computes its own examples and heads. Where there is no kernel, plain computes it.
    """
    kernel = _kernel()
    if kernel is None or kernel.why_unsupported(inputs) is not None:
        return plain.attention_BNTH(inputs)
    return divide_attention_BNTH(inputs, kernel.attention_BNTH)


def _kernel() -> ModuleType | None:
    """Return the module of the device's kernel, imported when it is needed; None for a CPU."""
    here = interpretation()
    device = platform() if here is None else here.device
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
    "auto": fused_attention_BNTH,
}
"""Name -> function; all compute the numbers of kernels/plain.py. Where the fused kernel of the device cannot compute a
call, as one with a dense mask, the plain implementation does."""


@jax.named_scope("attention_scores")
def attention_BNTH(inputs: AttentionInputs, implementation: str = "auto") -> jnp.ndarray:
    """Return the attention output of every row, in the type of the values.

    Where a mesh divides the sequence, rows and keys are in parts (kernels/mesh.py), and each device computes its own.
    """
    compute = IMPLEMENTATIONS[implementation]
    return compute(inputs) if count_parts() == 1 else divide_attention_BNTH(inputs, compute)
