"""Divide an attention call over the devices of a mesh: each computes its own examples and heads, and its own rows.

Where the mesh divides the sequence, queries, keys and values lie in parts (kernels/parts.py). A device gathers the keys
and values of the whole window, and calls the implementation for its content rows and for its query rows. The transpose
of the gather sums the gradients of keys and values, and leaves each device those of its own. All other arguments are
small; every device holds them whole, in order.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from xlnet_jax.kernels import parts
from xlnet_jax.kernels.arguments import AttentionInputs, Implementation
from xlnet_jax.kernels.dropout import AttentionDropout

Axes = tuple[str, ...]  # of the mesh


def attention_BNTH(inputs: AttentionInputs, implementation: Implementation) -> jnp.ndarray:
    """Return the attention output of every row. implementation: computes a call of one device.

    Without a mesh, and inside of a `shard_map`, the implementation computes all of it.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.manual_axes:
        return implementation(inputs)
    batch, heads = (
        _dividing(name, size) for name, size in zip(("batch", "heads"), inputs.query_BNTH.shape[:2], strict=True)
    )
    length = parts.mesh_axes("length") if parts.number() > 1 else ()
    dropout, inputs = inputs.dropout, inputs._replace(dropout=None)

    def on_device_BNTH(inputs: AttentionInputs, seed_BN: jnp.ndarray | None) -> jnp.ndarray:
        if dropout is not None and seed_BN is not None:
            inputs = inputs._replace(dropout=AttentionDropout(dropout.rate, seed_BN))
        return _own_rows_BNTH(inputs, implementation, length) if length else implementation(inputs)

    # The transpose of shard_map sums the gradients of biases, position keys and segment keys over the devices that
    # divide batch and rows.
    over_devices = jax.shard_map(
        on_device_BNTH,
        in_specs=(_specs(inputs, batch, heads, length), PartitionSpec(batch, heads)),
        out_specs=PartitionSpec(batch, heads, length),
        check_vma=False,
    )
    return over_devices(inputs, None if dropout is None else dropout.seed_BN)


def _dividing(logical_axis: str, size: int) -> Axes:
    """Return the axes of the mesh that divide a logical axis; none where they do not divide this size."""
    names = parts.mesh_axes(logical_axis)
    return names if size % parts.devices_along(names) == 0 else ()


def _specs(inputs: AttentionInputs, batch: Axes, heads: Axes, length: Axes) -> AttentionInputs:
    """Return how the arrays of a call are divided, by the first letters of their shapes."""
    by_shape: dict[str, Any] = {
        "BNT": PartitionSpec(batch, heads, length),
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
        query_BNTH=of(inputs.query_BNTH, "BNT"),
        key_BNKH=of(inputs.key_BNKH, "BNT"),
        value_BNKH=of(inputs.value_BNKH, "BNT"),
        visibility=of(inputs.visibility, "B"),
        biases_3NH=of(inputs.biases_3NH, "N"),
        positions=positions,
        segments=segments,
    )


def _own_rows_BNTH(inputs: AttentionInputs, implementation: Implementation, axes: Axes) -> jnp.ndarray:
    """Return the attention output of this device's content rows, then of its query rows. axes: those of the mesh that
    divide the sequence."""
    count, part = jax.lax.axis_size(axes), jax.lax.axis_index(axes)
    targets = 0 if inputs.positions is None else inputs.positions.query_BP.shape[1] // count
    content = inputs.query_BNTH.shape[2] - targets
    memory = count * (inputs.key_BNKH.shape[2] - content)

    def of_all(own_BNKH: jnp.ndarray) -> jnp.ndarray:
        in_parts_BNKH = jax.lax.all_gather(own_BNKH, axes, axis=2, tiled=True)
        return jnp.concatenate(parts.apart(in_parts_BNKH, memory, count, axis=2), axis=2) if memory else in_parts_BNKH

    inputs = inputs._replace(key_BNKH=of_all(inputs.key_BNKH), value_BNKH=of_all(inputs.value_BNKH))
    return rows_of_part_BNTH(inputs, implementation, part, count)


def rows_of_part_BNTH(
    inputs: AttentionInputs, implementation: Implementation, part: jnp.ndarray, count: int
) -> jnp.ndarray:
    """Return the attention output of one part's content rows, then of its query rows, by a call for each.

    inputs: queries of this part of `count`; everything else is of the whole window.
    """
    positions = inputs.positions
    targets = 0 if positions is None else positions.query_BP.shape[1] // count
    content = inputs.query_BNTH.shape[2] - targets
    content_BNLH, query_BNPH = jnp.split(inputs.query_BNTH, [content], axis=2)
    of_content = _of_rows(inputs, content_BNLH, part * content)
    if positions is None:
        return implementation(of_content)
    num_keys = inputs.key_BNKH.shape[2]
    key_2NRH = _slice(positions.key_2NRH, (count - 1 - part) * content, num_keys + content, axis=2)
    of_content = of_content._replace(
        positions=positions._replace(key_2NRH=key_2NRH, query_BP=positions.query_BP[:, :0])
    )
    if not targets:
        return implementation(of_content)
    of_query = _of_rows(inputs, query_BNPH, count * content + part * targets)
    of_query = of_query._replace(
        positions=positions._replace(query_BP=_slice(positions.query_BP, part * targets, targets))
    )
    return jnp.concatenate([implementation(of_content), implementation(of_query)], axis=2)


def _of_rows(inputs: AttentionInputs, query_BNTH: jnp.ndarray, first: jnp.ndarray) -> AttentionInputs:
    """Return a call with these rows of a call alone, which it numbers from `first` on, but for their positions."""

    def rows_of(x_BT: jnp.ndarray) -> jnp.ndarray:
        return _slice(x_BT, first, query_BNTH.shape[2])

    (ranks, span, mask_BTK), segments, dropout = inputs.visibility, inputs.segments, inputs.dropout
    visibility = inputs.visibility
    if ranks is not None:
        visibility = visibility._replace(ranks=ranks._replace(row_BT=rows_of(ranks.row_BT)))
    if span is not None:
        span = span._replace(first_BT=rows_of(span.first_BT), last_BT=rows_of(span.last_BT))
        visibility = visibility._replace(span=span)
    if mask_BTK is not None:
        visibility = visibility._replace(mask_BTK=rows_of(mask_BTK))
    if segments is not None:
        segments = segments._replace(row_BT=rows_of(segments.row_BT))
    if dropout is not None:
        dropout = dropout._replace(row_T=first + jnp.arange(query_BNTH.shape[2]))
    return inputs._replace(query_BNTH=query_BNTH, visibility=visibility, segments=segments, dropout=dropout)


def _slice(x: jnp.ndarray, first: jnp.ndarray, size: int, axis: int = 1) -> jnp.ndarray:
    return jax.lax.dynamic_slice_in_dim(x, first, size, axis)
