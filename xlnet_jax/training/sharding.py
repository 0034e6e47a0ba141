"""Where everything lives: one table from logical axes to mesh axes, and the shardings that follow from it."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from flax.core import meta
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from xlnet_jax.config import InputError, MeshConfig

MESH_AXES = ("data",)
LOGICAL_TO_MESH: tuple[tuple[str, str | None], ...] = (
    ("batch", "data"),
    ("layers", None),
    ("vocab", None),
    ("embed", None),
    ("heads", None),
    ("head_dim", None),
    ("mlp", None),
)


def make_mesh(config: MeshConfig, batch_size: int) -> Mesh:
    """A mesh of all devices. InputError where it does not divide the devices, or they the batch."""
    devices = jax.device_count()
    data = devices if config.data == -1 else config.data
    if data != devices:
        raise InputError(f"mesh.data {data} does not use the {devices} devices that are here: give {devices} or -1")
    if batch_size % data:
        lower, upper = batch_size // data * data, -(-batch_size // data) * data
        fitting = " or ".join(str(n) for n in dict.fromkeys((lower, upper)) if n)
        raise InputError(f"data.batch-size {batch_size} cannot be divided over mesh.data {data}: {fitting} could")
    return jax.make_mesh((data,), MESH_AXES, axis_types=(AxisType.Auto,))


def over_batch(mesh: Mesh, batch_axis: int = 0) -> NamedSharding:
    """Arrays whose `batch_axis` is the batch."""
    axes = dict(LOGICAL_TO_MESH)
    return NamedSharding(mesh, PartitionSpec(*[None] * batch_axis, axes["batch"]))


def replicated(mesh: Mesh) -> NamedSharding:
    """Arrays that every device holds whole."""
    return NamedSharding(mesh, PartitionSpec())


def of_boxed(abstract: Any, mesh: Mesh) -> Any:
    """Shardings of a tree whose parameters carry logical axis names; the boxes are gone in the result."""
    return nn.logical_to_mesh_sharding(nn.get_partition_spec(abstract), mesh, LOGICAL_TO_MESH)


def unboxed(tree: Any) -> Any:
    """The tree without its boxes of axis names: plain nested dicts of arrays."""
    return meta.unbox(tree)


def process_rows(mesh: Mesh, batch_size: int) -> range:
    """The rows of the global batch whose devices belong to this process."""
    indices = over_batch(mesh).addressable_devices_indices_map((batch_size,)).values()
    spans = [index[0].indices(batch_size) for index in indices if index is not None]
    return range(min(s[0] for s in spans), max(s[1] for s in spans))


def batch_to_mesh(mesh: Mesh, batch_size: int) -> Callable[[dict[str, np.ndarray]], dict[str, jax.Array]]:
    """A function that lays this process's rows of a batch onto the mesh."""
    sharding = over_batch(mesh)

    def put(batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        return {
            k: jax.make_array_from_process_local_data(sharding, v, (batch_size, *v.shape[1:])) for k, v in batch.items()
        }

    return put
