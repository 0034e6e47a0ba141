"""Divide an attention call over the devices of a mesh: each computes its own examples and heads, and its own rows.

Where the mesh divides the sequence, queries, keys and values are in parts (kernels/parts.py). A device gathers the keys
and values of the whole window, and calls the implementation for its content rows and for its query rows. The transpose
of the gather sums the gradients of keys and values, and leaves each device those of its own. All other arguments are
small; every device holds them whole, in order.
"""

from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from xlnet_jax.kernels.arguments import AttentionInputs, Implementation, Relations
from xlnet_jax.kernels.dropout import AttentionDropout
from xlnet_jax.kernels.parts import count_devices, count_parts, mesh_axes, split_parts

Axes: TypeAlias = tuple[str, ...]  # of the mesh


def divide_attention_BNTH(inputs: AttentionInputs, implementation: Implementation) -> jnp.ndarray:
    """Return the attention output of every row. implementation: computes a call of one device.

    Without a mesh, and inside of a `shard_map`, the implementation computes all of it.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.manual_axes:
        return implementation(inputs)
    batch, heads = (
        _axes_that_divide(name, size)
        for name, size in zip(("batch", "heads"), inputs.query_BNTH.shape[:2], strict=True)
    )
    length = mesh_axes("length") if count_parts() > 1 else ()
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


def _axes_that_divide(logical_axis: str, size: int) -> Axes:
    """Return the axes of the mesh that divide a logical axis; none where they do not divide this size."""
    names = mesh_axes(logical_axis)
    return names if size % count_devices(names) == 0 else ()


def _specs(inputs: AttentionInputs, batch: Axes, heads: Axes, length: Axes) -> AttentionInputs:
    """Return how the arrays of a call are divided, by the dimension letters of their names."""

    def specs_of(arrays: AttentionInputs | Relations) -> dict[str, PartitionSpec]:
        by_name = {}
        for name, array in arrays._asdict().items():
            letters = name.rpartition("_")[2]
            if array is None or isinstance(array, Relations):
                continue
            if letters.startswith("BN"):
                by_name[name] = PartitionSpec(batch, heads, length)
            else:
                by_name[name] = PartitionSpec(batch) if letters.startswith("B") else PartitionSpec(None, heads)
        return by_name

    return AttentionInputs(**specs_of(inputs), relations=Relations(**specs_of(inputs.relations)))  # type: ignore[arg-type]


def _own_rows_BNTH(inputs: AttentionInputs, implementation: Implementation, axes: Axes) -> jnp.ndarray:
    """Return the attention output of this device's content rows, then of its query rows. axes: those of the mesh that
    divide the sequence."""
    count, part = jax.lax.axis_size(axes), jax.lax.axis_index(axes)
    content = inputs.query_BNTH.shape[2] - inputs.relations.num_targets // count
    memory = count * (inputs.key_BNKH.shape[2] - content)

    def gather(own_BNKH: jnp.ndarray) -> jnp.ndarray:
        in_parts_BNKH = jax.lax.all_gather(own_BNKH, axes, axis=2, tiled=True)
        if not memory:
            return in_parts_BNKH
        return jnp.concatenate(split_parts(in_parts_BNKH, memory, count, axis=2), axis=2)

    inputs = inputs._replace(key_BNKH=gather(inputs.key_BNKH), value_BNKH=gather(inputs.value_BNKH))
    return rows_of_part_BNTH(inputs, implementation, part, count)


def rows_of_part_BNTH(
    inputs: AttentionInputs, implementation: Implementation, part: jnp.ndarray, count: int
) -> jnp.ndarray:
    """Return the attention output of one part's content rows, then of its query rows, by a call for each.

    inputs: queries of this part of `count`; everything else is of the whole window.
    """
    query_BP = inputs.relations.query_position_BP
    targets = inputs.relations.num_targets // count
    content = inputs.query_BNTH.shape[2] - targets
    content_BNLH, query_BNPH = jnp.split(inputs.query_BNTH, [content], axis=2)
    of_content = _take_rows(inputs, content_BNLH, part * content, None)
    if inputs.position_key_2NRH is not None:
        first, num_keys = (count - 1 - part) * content, inputs.key_BNKH.shape[2]
        key_2NRH = _slice(inputs.position_key_2NRH, first, num_keys + content, axis=2)
        of_content = of_content._replace(position_key_2NRH=key_2NRH)
    if not targets:
        return implementation(of_content)
    query_BP = _slice(query_BP, part * targets, targets)
    of_query = _take_rows(inputs, query_BNPH, count * content + part * targets, query_BP)
    return jnp.concatenate([implementation(of_content), implementation(of_query)], axis=2)


def _take_rows(
    inputs: AttentionInputs, query_BNTH: jnp.ndarray, first: jnp.ndarray, query_position_BP: jnp.ndarray | None
) -> AttentionInputs:
    """Return a call with these rows of a call alone, which it numbers from `first` on."""
    relations = inputs.relations.of_rows(partial(_slice, first=first, size=query_BNTH.shape[2]))
    dropout = inputs.dropout
    if dropout is not None:
        dropout = dropout._replace(row_T=first + jnp.arange(query_BNTH.shape[2]))
    relations = relations._replace(query_position_BP=query_position_BP)
    return inputs._replace(query_BNTH=query_BNTH, relations=relations, dropout=dropout)


def _slice(x: jnp.ndarray, first: jnp.ndarray, size: int, axis: int = 1) -> jnp.ndarray:
    return jax.lax.dynamic_slice_in_dim(x, first, size, axis)
