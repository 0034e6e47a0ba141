"""The attention call of every network, and the table of its implementations.

An implementation is a function of `AttentionInputs` in a file of `kernels/`, and a line of the table.
"""

import jax
import jax.numpy as jnp

from xlnet_jax.kernels import few_rows, for_device, over_mesh, parts, plain
from xlnet_jax.kernels.arguments import AttentionInputs, Implementation

IMPLEMENTATIONS: dict[str, Implementation] = {
    "plain": plain.attention_BNTH,
    "few_rows": few_rows.attention_BNTH,
    "fused": for_device.attention_BNTH,
    "auto": for_device.attention_BNTH,
}
"""Name -> function; all compute the numbers of kernels/plain.py. Where the fused kernel of the device cannot compute a
call, as one with a dense mask, the plain implementation does."""


@jax.named_scope("attention_scores")
def attention_BNTH(inputs: AttentionInputs, implementation: str = "auto") -> jnp.ndarray:
    """Return the attention output of every row, in the type of the values.

    Where a mesh divides the sequence, rows and keys lie in parts (kernels/parts.py), and each device computes its own.
    """
    compute = IMPLEMENTATIONS[implementation]
    return compute(inputs) if parts.number() == 1 else over_mesh.attention_BNTH(inputs, compute)
