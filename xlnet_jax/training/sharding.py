"""Sharding: one table from logical axes to mesh axes, and the shardings that follow from it."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from flax.core import meta
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from xlnet_jax.errors import InputError
from xlnet_jax.settings.config import DataConfig, MeshConfig, RunConfig

MESH_AXES = ("data", "fsdp", "context", "tensor")
LOGICAL_TO_MESH: tuple[tuple[str, str | tuple[str, ...] | None], ...] = (
    ("batch", ("data", "fsdp")),
    ("layers", None),
    ("layers_apart", ("fsdp", "context")),
    ("vocab", "tensor"),
    ("embed", ("fsdp", "context")),
    ("heads", "tensor"),
    ("head_dim", None),
    ("mlp", "tensor"),
    ("length", "context"),
    ("width", None),
)
"""Parameters use all but the last two; hidden states are [batch, length, width], memory [layers, batch, length, width].
"""


def make_mesh(config: RunConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Arrange devices (None = all) as [data, fsdp, context, tensor]; each TPU slice is a contiguous part of data.

    Raises InputError, with sizes that work, if the mesh does not divide the devices, the network, the batch or the
    window.
    """
    devices = jax.devices() if devices is None else devices
    mesh = config.mesh
    shape = _shape(mesh, len(devices))
    _require_divisible(config, shape)
    # For jax every host of GPUs or CPUs is a slice. In the order of jax.devices(), neighbors share a host.
    slices = {getattr(d, "slice_index", 0) for d in devices if d.platform == "tpu"}
    in_slice = (shape[0] // mesh.dcn_data, *shape[1:])
    if not slices:
        arranged = np.asarray(devices).reshape(shape)
    elif len(slices) != mesh.dcn_data:
        raise InputError("mesh.dcn_data", mesh.dcn_data, f": there are {len(slices)} slices: give that number")
    elif len(slices) > 1:
        arranged = mesh_utils.create_hybrid_device_mesh(
            in_slice, (mesh.dcn_data, 1, 1, 1), devices, allow_split_physical_axes=True
        )
    else:
        arranged = mesh_utils.create_device_mesh(in_slice, devices, allow_split_physical_axes=True)
    return Mesh(arranged, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def _shape(mesh: MeshConfig, devices: int) -> tuple[int, int, int, int]:
    """Return [data, fsdp, context, tensor], data over all slices."""
    others = mesh.fsdp * mesh.context * mesh.tensor * mesh.dcn_data
    context = f"x `mesh.context` {mesh.context} " if mesh.context > 1 else ""
    named = f"{context}x `mesh.tensor` {mesh.tensor} x `mesh.dcn_data` {mesh.dcn_data} = {others}"
    if devices % others:
        why = f"{named} does not divide the {devices} devices: {_divisors(devices)} would"
        raise InputError("mesh.fsdp", mesh.fsdp, why)
    return mesh.dcn_data * (devices // others), mesh.fsdp, mesh.context, mesh.tensor


def _require_divisible(config: RunConfig, shape: tuple[int, int, int, int]) -> None:
    data, fsdp, context, tensor = shape
    model, accumulate = config.model, config.optimizer.accumulate
    targets = config.data.num_slots if isinstance(config.data, DataConfig) else 0
    for axis, size, name, length in (
        ("tensor", tensor, "model.num_heads", model.num_heads),
        ("tensor", tensor, "model.d_ff", model.d_ff),
        ("fsdp", fsdp, "model.d_model", model.d_model),
        ("context", context, "data.seq_len", config.data.seq_len),
        ("context", context, "data.num_predict", targets),
        ("context", context, "model.mem_len", model.mem_len),
    ):
        if length % size:
            raise InputError(f"mesh.{axis}", size, f"does not divide `{name}` {length}: {_divisors(length)} would")
    parts, batch = data * fsdp * accumulate, config.data.batch_size
    if batch % parts:
        lower, upper = batch // parts * parts, -(-batch // parts) * parts
        fitting = " or ".join(str(n) for n in dict.fromkeys((lower, upper)) if n)
        over = f"the {data * fsdp} devices along the batch" + (
            f" x `optimizer.accumulate` {accumulate}" if accumulate > 1 else ""
        )
        raise InputError("data.batch_size", batch, f"cannot be divided over {over}: {fitting} could")


def _divisors(n: int) -> str:
    *others, last = (str(d) for d in range(1, n + 1) if n % d == 0)
    return f"{', '.join(others)} or {last}" if others else last


def over_batch(mesh: Mesh) -> NamedSharding:
    """Return the sharding of arrays whose first axis is the batch."""
    return NamedSharding(mesh, PartitionSpec(dict(LOGICAL_TO_MESH)["batch"]))


def over_memory(mesh: Mesh) -> NamedSharding:
    """Return the sharding of memory, [Z, B, M, D]."""
    return nn.logical_to_mesh_sharding(PartitionSpec(None, "batch", "length"), mesh, LOGICAL_TO_MESH)


@contextmanager
def axes_of(mesh: Mesh) -> Iterator[None]:
    """Map the logical axis names of a model traced inside to this mesh; elsewhere the names have no effect."""
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh), nn.logical_axis_rules(LOGICAL_TO_MESH):
        yield


def batch_shards(mesh: Mesh) -> int:
    """Return the number of parts that the mesh divides the batch into."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def replicated(mesh: Mesh) -> NamedSharding:
    """Return the sharding of arrays that are replicated on every device."""
    return NamedSharding(mesh, PartitionSpec())


def of_boxed(abstract: Any, mesh: Mesh) -> Any:
    """Return the shardings of a tree whose parameters are boxed with logical axis names; the result has no boxes.

    An axis that the mesh does not divide is not sharded, as a vocabulary may have any size. A width that fsdp and
    context together do not divide is divided only by fsdp.
    """
    shardings = nn.logical_to_mesh_sharding(nn.get_partition_spec(abstract), mesh, LOGICAL_TO_MESH)
    return jax.tree.map(_divided, unboxed(abstract), shardings)


def _divided(array: jax.ShapeDtypeStruct, sharding: NamedSharding) -> NamedSharding:
    axes = [_dividing(size, axes, sharding.mesh) for size, axes in zip(array.shape, sharding.spec, strict=False)]
    return NamedSharding(sharding.mesh, PartitionSpec(*axes))


def _dividing(size: int, axes: str | tuple[str, ...] | None, mesh: Mesh | AbstractMesh) -> str | tuple[str, ...] | None:
    """Return the mesh axes among these that have several devices, as long as their product divides the size."""
    dividing: tuple[str, ...] = ()
    for axis in axes if isinstance(axes, tuple) else (axes,) if axes else ():
        if mesh.shape[axis] > 1 and size % math.prod(mesh.shape[name] for name in (*dividing, axis)) == 0:
            dividing = (*dividing, axis)
    return dividing[0] if len(dividing) == 1 else dividing or None


def unboxed(tree: Any) -> Any:
    """Return the tree without its boxes of axis names: plain nested dicts of arrays."""
    return meta.unbox(tree)


def shardings_of(tree: Any) -> Any:
    """Return the shardings of a tree of arrays, or of shapes with shardings."""
    return jax.tree.map(lambda array: array.sharding, tree)


def bytes_on_device(abstract: Any) -> int:
    """Return the bytes of arrays, or of shapes with shardings, on one device."""
    return sum(math.prod(a.sharding.shard_shape(a.shape)) * a.dtype.itemsize for a in jax.tree.leaves(abstract))


def from_host(tree: Any, shardings: Any) -> Any:
    """Put arrays on the devices. Every process has the whole arrays in host memory.

    `jax.device_put` would send each array between the processes to check that they are equal.
    """

    def laid_out(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    return jax.tree.map(laid_out, tree, shardings)


def process_rows(mesh: Mesh, batch_size: int) -> np.ndarray:
    """Return the rows of the global batch on the devices of this process: int64, ascending.

    They need not be contiguous, as the devices of a TPU host are a square of the torus.
    """
    indices = over_batch(mesh).addressable_devices_indices_map((batch_size,)).values()
    rows = np.arange(batch_size)
    return np.unique(np.concatenate([rows[index] for index in indices if index is not None]))


def batch_to_mesh(mesh: Mesh, batch_size: int) -> Callable[[dict[str, np.ndarray]], dict[str, jax.Array]]:
    """Return a function that puts this process's rows of a batch (`process_rows`) onto the mesh."""
    sharding = over_batch(mesh)

    def put(batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        shapes = {name: (batch_size, *rows.shape[1:]) for name, rows in batch.items()}
        on_mesh: dict[str, jax.Array] = jax.make_array_from_process_local_data(sharding, batch, shapes)
        return on_mesh

    return put
