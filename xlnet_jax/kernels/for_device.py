"""The fused kernel of the devices that a program is traced for: those of fused/ for TPUs, those of triton/ for GPUs."""

from types import ModuleType

import jax.numpy as jnp

from xlnet_jax.kernels.arguments import AttentionInputs
from xlnet_jax.kernels.fused import call as for_tpus
from xlnet_jax.kernels.triton import call as for_gpus


def supports(inputs: AttentionInputs) -> str | None:
    """Return why no kernel can compute these inputs on the device, in a clause; None where one can."""
    return _kernel().supports(inputs)


def attention_BNTH(inputs: AttentionInputs) -> jnp.ndarray:
    """Return the attention output of every row by the kernel of the device; without one, by plain attention."""
    return _kernel().attention_BNTH(inputs)


def _kernel() -> ModuleType:
    return for_gpus if for_gpus.is_for_this_device() else for_tpus
