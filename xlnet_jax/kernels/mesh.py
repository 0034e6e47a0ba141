"""Find the devices that a program is traced for, and divide attention over them.

Each device computes its own examples, heads and rows. If the mesh divides the sequence, two sequences (content and
query rows, or memory and text) share one axis in n parts: part i is the i-th part of the first sequence, then the i-th
part of the second. Joining them moves no data between devices. A device gathers the keys and values of the whole window
and calls the implementation twice, for its content rows and for its query rows. The transpose of the gather sums the
gradients of keys and values and leaves each device its own part. All other arguments are small and are replicated.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from xlnet_jax.costs import chip_of
from xlnet_jax.kernels.arguments import AttentionInputs, Implementation, Relations

CPU, GPU, TPU = "cpu", "gpu", "tpu"


_INTERPRETED: ContextVar[tuple[str, Any] | None] = ContextVar("interpreted", default=None)
"""Arguments of `interpret_kernels`."""


@contextmanager
def interpret_kernels(device: str = "v5e", interpret: Any = True) -> Iterator[None]:
    """Interpret the kernels of calls traced inside as a device would compute them, for tests without that device.

    device: a generation of TPUs, or "gpu"; interpret: argument of `pallas_call`: True = fast, `pltpu.InterpretParams` =
    simulate the memories of a TPU.
    """
    token = _INTERPRETED.set((device, interpret))
    try:
        yield
    finally:
        _INTERPRETED.reset(token)


def interpret_argument() -> Any:
    """Return the argument `interpret` of `pallas_call`; False = kernels run on their device."""
    interpreted = _INTERPRETED.get()
    return interpreted is not None and interpreted[1]


def kernel_device() -> str:
    """Return the device that kernels are traced for: cpu, gpu, or a generation of TPUs such as v5e."""
    if (interpreted := _INTERPRETED.get()) is not None:
        return interpreted[0]
    chip = chip_of(device_kind()) if platform() == TPU else None
    return platform() if chip is None else chip.name


def device_kind() -> str:
    """Return the kind of the devices, such as cpu, TPU v4 or NVIDIA H200."""
    return _device().device_kind


def platform() -> str:
    """Return the platform of the devices: cpu, gpu or tpu."""
    return "gpu" if _device().platform == "cuda" else _device().platform


def _device() -> Any:
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.devices()[0] if device is None else device


def mesh_axes(logical_axis: str) -> tuple[str, ...]:
    """Return the axes of the current mesh that divide a logical axis; none without a mesh or inside a `shard_map`."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.manual_axes:
        return ()
    (names,) = nn.logical_to_mesh_axes((logical_axis,)) or (None,)
    return names if isinstance(names, tuple) else (names,) if names else ()


def count_parts() -> int:
    """Return the number of parts that the current mesh divides a sequence into; 1 without a mesh."""
    return count_devices(mesh_axes("length"))


def count_devices(axes: tuple[str, ...]) -> int:
    """Return the number of devices along axes of the current mesh."""
    shape = jax.sharding.get_abstract_mesh().shape
    return math.prod(shape[name] for name in axes)


def join_parts(first: jnp.ndarray, second: jnp.ndarray, parts: int, axis: int = 1) -> jnp.ndarray:
    """Return two sequences joined on one axis, in parts. Both lengths are multiples of `parts`."""
    if parts == 1:
        return jnp.concatenate([first, second], axis=axis)
    both = jnp.concatenate([_cut(first, parts, axis), _cut(second, parts, axis)], axis=axis + 1)
    return _merge(both, axis)


def split_parts(both: jnp.ndarray, length: int, parts: int, axis: int = 1) -> tuple[jnp.ndarray, jnp.ndarray]:
    """Return the two sequences that `join_parts` joined. length: of the first sequence."""
    if parts == 1:
        first, second = jnp.split(both, [length], axis=axis)
        return first, second
    first, second = jnp.split(_cut(both, parts, axis), [length // parts], axis=axis + 1)
    return _merge(first, axis), _merge(second, axis)


def _cut(x: jnp.ndarray, parts: int, axis: int) -> jnp.ndarray:
    return x.reshape(*x.shape[:axis], parts, x.shape[axis] // parts, *x.shape[axis + 1 :])


def _merge(x: jnp.ndarray, axis: int) -> jnp.ndarray:
    return x.reshape(*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :])


Axes: TypeAlias = tuple[str, ...]  # of the mesh


def divide_attention_BNTH(inputs: AttentionInputs, implementation: Implementation) -> jnp.ndarray:
    """Return the attention output of every row. implementation: computes the call on one device.

    Without a mesh, or inside a `shard_map`, the implementation computes everything.
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
            inputs = inputs._replace(dropout=dropout._replace(seed_BN=seed_BN))
        return _own_rows_BNTH(inputs, implementation, length) if length else implementation(inputs)

    # The transpose of shard_map sums the gradients of biases, position keys and segment keys over the devices that
    # share batch and rows.
    over_devices = jax.shard_map(
        on_device_BNTH,
        in_specs=(_specs(inputs, batch, heads, length), PartitionSpec(batch, heads)),
        out_specs=PartitionSpec(batch, heads, length),
        check_vma=False,
    )
    return over_devices(inputs, None if dropout is None else dropout.seed_BN)


def _axes_that_divide(logical_axis: str, size: int) -> Axes:
    """Return the axes of the mesh that divide a logical axis; none if they do not divide this size."""
    names = mesh_axes(logical_axis)
    return names if size % count_devices(names) == 0 else ()


def _specs(inputs: AttentionInputs, batch: Axes, heads: Axes, length: Axes) -> AttentionInputs:
    """Return the partition of each array of a call, from the dimension letters of its name."""

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
    """Return the attention output of this device's content rows, then of its query rows, with a call for each. axes: of
    the mesh, those that divide the sequence."""
    count, part = jax.lax.axis_size(axes), jax.lax.axis_index(axes)
    targets = inputs.relations.num_targets // count
    content = inputs.query_BNTH.shape[2] - targets
    memory = count * (inputs.key_BNKH.shape[2] - content)

    def gather(own_BNKH: jnp.ndarray) -> jnp.ndarray:
        in_parts_BNKH = jax.lax.all_gather(own_BNKH, axes, axis=2, tiled=True)
        if not memory:
            return in_parts_BNKH
        return jnp.concatenate(split_parts(in_parts_BNKH, memory, count, axis=2), axis=2)

    inputs = inputs._replace(key_BNKH=gather(inputs.key_BNKH), value_BNKH=gather(inputs.value_BNKH))
    content_BNLH, query_BNPH = jnp.split(inputs.query_BNTH, [content], axis=2)
    of_content = _take_rows(inputs, content_BNLH, part * content, None)
    if inputs.position_key_2NRH is not None:
        first, num_keys = (count - 1 - part) * content, inputs.key_BNKH.shape[2]
        key_2NRH = _slice(inputs.position_key_2NRH, first, num_keys + content, axis=2)
        of_content = of_content._replace(position_key_2NRH=key_2NRH)
    if not targets:
        return implementation(of_content)
    query_BP = _slice(inputs.relations.query_position_BP, part * targets, targets)
    of_query = _take_rows(inputs, query_BNPH, count * content + part * targets, query_BP)
    return jnp.concatenate([implementation(of_content), implementation(of_query)], axis=2)


def _take_rows(
    inputs: AttentionInputs, query_BNTH: jnp.ndarray, first: jnp.ndarray, query_position_BP: jnp.ndarray | None
) -> AttentionInputs:
    """Return the call for only these rows, numbered from `first`."""
    relations = inputs.relations.of_rows(partial(_slice, first=first, size=query_BNTH.shape[2]))
    dropout = inputs.dropout
    if dropout is not None:
        dropout = dropout._replace(row_T=first + jnp.arange(query_BNTH.shape[2]))
    relations = relations._replace(query_position_BP=query_position_BP)
    return inputs._replace(query_BNTH=query_BNTH, relations=relations, dropout=dropout)


def _slice(x: jnp.ndarray, first: jnp.ndarray, size: int, axis: int = 1) -> jnp.ndarray:
    return jax.lax.dynamic_slice_in_dim(x, first, size, axis)
