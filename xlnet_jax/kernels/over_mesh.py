"""Fused attention on several devices: each computes its own examples and heads."""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from xlnet_jax.kernels.arguments import AttentionInputs, Implementation
from xlnet_jax.kernels.dropout import AttentionDropout


def over_mesh_BNTH(on_one_device_BNTH: Implementation, inputs: AttentionInputs) -> jnp.ndarray:
    """Return the attention output that each device of the mesh computes of its part; without a mesh, of everything."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.manual_axes:
        return on_one_device_BNTH(inputs)
    batch, heads = (
        _dividing(mesh, name, size) for name, size in zip(("batch", "heads"), inputs.query_BNTH.shape[:2], strict=True)
    )
    dropout, inputs = inputs.dropout, inputs._replace(dropout=None)

    def on_device_BNTH(inputs: AttentionInputs, seed_BN: jnp.ndarray | None) -> jnp.ndarray:
        if dropout is not None and seed_BN is not None:
            inputs = inputs._replace(dropout=AttentionDropout(dropout.rate, seed_BN))
        return on_one_device_BNTH(inputs)

    # The transpose of shard_map sums the gradients of biases, position keys and segment keys over the batch's devices.
    over_devices = jax.shard_map(
        on_device_BNTH,
        in_specs=(_specs(inputs, batch, heads), PartitionSpec(batch, heads)),
        out_specs=PartitionSpec(batch, heads),
        check_vma=False,
    )
    return over_devices(inputs, None if dropout is None else dropout.seed_BN)


def _dividing(mesh: jax.sharding.AbstractMesh, logical_axis: str, size: int) -> tuple[str, ...]:
    """Return the axes of a mesh that a logical axis of this size is divided over; none where they do not divide it."""
    (names,) = nn.logical_to_mesh_axes((logical_axis,)) or (None,)
    names = names if isinstance(names, tuple) else (names,) if names else ()
    return names if size % math.prod(mesh.shape[name] for name in names) == 0 else ()


def _specs(inputs: AttentionInputs, batch: tuple[str, ...], heads: tuple[str, ...]) -> AttentionInputs:
    """Return how the arrays of a call are divided, by the first two letters of their shapes."""
    by_shape: dict[str, Any] = {
        "BN": PartitionSpec(batch, heads),
        "B": PartitionSpec(batch),
        "N": PartitionSpec(None, heads),
    }

    def of(tree: Any, shape: str) -> Any:
        return jax.tree.map(lambda _: by_shape[shape], tree)

    positions, segments = inputs.positions, inputs.segments
    if positions is not None:
        positions = of(positions, "B")._replace(key_2NRH=by_shape["N"])
    if segments is not None:
        segments = of(segments, "B")._replace(key_2NH=by_shape["N"])
    return AttentionInputs(
        query_BNTH=of(inputs.query_BNTH, "BN"),
        key_BNKH=of(inputs.key_BNKH, "BN"),
        value_BNKH=of(inputs.value_BNKH, "BN"),
        visibility=of(inputs.visibility, "B"),
        biases_3NH=of(inputs.biases_3NH, "N"),
        positions=positions,
        segments=segments,
    )
