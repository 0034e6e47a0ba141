"""Layout of two sequences on one axis that the devices of a mesh divide: content rows and query rows, memory and text.

In n parts, part i holds the i-th part of the first sequence, then the i-th part of the second. So each device holds its
own share of both, and to join them moves nothing between devices. In one part, they follow one another.
"""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp


def mesh_axes(logical_axis: str) -> tuple[str, ...]:
    """Return the axes of the mesh of a program traced here that divide a logical axis; none without a mesh, and inside
    of a `shard_map`."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.manual_axes:
        return ()
    (names,) = nn.logical_to_mesh_axes((logical_axis,)) or (None,)
    return names if isinstance(names, tuple) else (names,) if names else ()


def count_parts() -> int:
    """Return the number of parts that the mesh of a program traced here divides a sequence into; 1 without a mesh."""
    return count_devices(mesh_axes("length"))


def count_devices(axes: tuple[str, ...]) -> int:
    """Return the number of devices along axes of the mesh of a program traced here."""
    shape = jax.sharding.get_abstract_mesh().shape
    return math.prod(shape[name] for name in axes)


def join_parts(first: jnp.ndarray, second: jnp.ndarray, parts: int, axis: int = 1) -> jnp.ndarray:
    """Return two sequences on one axis, in parts. Both lengths are multiples of their number."""
    if parts == 1:
        return jnp.concatenate([first, second], axis=axis)
    both = jnp.concatenate([_cut(first, parts, axis), _cut(second, parts, axis)], axis=axis + 1)
    return _merge(both, axis)


def split_parts(both: jnp.ndarray, length: int, parts: int, axis: int = 1) -> tuple[jnp.ndarray, jnp.ndarray]:
    """Return the two sequences that `join_parts` has put on one axis. length: that of the first."""
    if parts == 1:
        first, second = jnp.split(both, [length], axis=axis)
        return first, second
    first, second = jnp.split(_cut(both, parts, axis), [length // parts], axis=axis + 1)
    return _merge(first, axis), _merge(second, axis)


def _cut(x: jnp.ndarray, parts: int, axis: int) -> jnp.ndarray:
    return x.reshape(*x.shape[:axis], parts, x.shape[axis] // parts, *x.shape[axis + 1 :])


def _merge(x: jnp.ndarray, axis: int) -> jnp.ndarray:
    return x.reshape(*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :])
