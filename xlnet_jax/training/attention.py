"""The attention implementation of a run: chosen for its devices, and compared with the plain one before it is used."""

import functools
from dataclasses import replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from xlnet_jax.errors import InputError
from xlnet_jax.kernels.arguments import AttentionInputs, Positions, Visibility
from xlnet_jax.kernels.for_device import supports
from xlnet_jax.models.encoder import build_encoder
from xlnet_jax.models.inputs import Inputs, compact_inputs
from xlnet_jax.objectives.base import BatchDropout, apply
from xlnet_jax.settings.config import DataConfig, ModelConfig, RunConfig
from xlnet_jax.training import sharding
from xlnet_jax.training.run.process import Process

TOLERANCE = {"float32": 2e-2, "bfloat16": 4e-2}
"""Largest difference between two implementations, as a share of the largest number. On a TPU einsums round float32
operands to bfloat16 unless asked not to, so float32 has the accuracy of bfloat16 operands."""

ROWS, TARGETS, MEMORY = 48, 8, 16  # sizes of the comparison


def unsupported(config: RunConfig, mesh: Mesh) -> str | None:
    """Return why there is no fused kernel for this run on the devices of a mesh, in a clause; None = there is."""
    with sharding.axes_of(mesh):
        return supports(_shapes(config))


def _shapes(config: RunConfig) -> Any:
    """Return the arguments of the run's attention calls, as far as `supports` reads them: shapes in place of arrays."""
    model, rows = config.model, config.data.seq_len
    keys = rows + model.mem_len

    def of(*shape: int, dtype: str = model.dtype) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))

    is_dense = isinstance(config.data, DataConfig) and config.data.emit == "dense"
    visibility = Visibility(mask_BTK=of(1, rows, keys, dtype="bool") if is_dense else None)
    heads = (1, model.num_heads)
    positions = None
    if model.positions == "relative":
        table = of(2, model.num_heads, rows + keys, model.d_head, dtype="float32")
        positions = Positions(table, None, of(1, 0, dtype="int32"), of(1, keys, dtype="int32"))
    query, key, value = (of(*heads, length, model.d_head) for length in (rows, keys, keys))
    return AttentionInputs(query, key, value, visibility, positions=positions)


def chosen(config: RunConfig, mesh: Mesh) -> tuple[ModelConfig, str]:
    """Return the network with its attention implementation, plain or fused, and the choice in words.

    Raises InputError where the settings ask for the fused kernel and there is none.
    """
    model = config.model
    if model.attention == "plain":
        return model, "plain"
    reason = unsupported(config, mesh)
    if reason is None:
        return replace(model, attention="fused"), "fused"
    if model.attention == "fused":
        raise InputError(f"model.attention fused: {reason}; auto would take plain")
    return replace(model, attention="plain"), f"plain: {reason}"


C = TypeVar("C", bound=RunConfig)


def settled(config: C, name: str, process: Process) -> C:
    """Return the settings with the attention implementation that this run will use, and print which.

    All processes use the fused kernel, or none: `difference` must be small on the devices of each. name: of the run,
    for the exchange between processes. Raises InputError as `chosen` does, and where the mesh does not fit.
    """
    model, words = chosen(config, sharding.make_mesh(config))
    if model.attention == "fused":
        worst, allowed = max(process.hosts.gather(f"attention of {name}", difference(model))), TOLERANCE[model.dtype]
        if worst > allowed:
            model = replace(model, attention="plain")
            words = f"plain: on this device the fused kernel differs from it by {worst:.2g} of the largest number"
    process.console.print(f"attention   {words}")
    return replace(config, model=model)


@functools.cache
def difference(model: ModelConfig) -> float:
    """Return how far the first layer with fused attention is from the one with plain attention on this process's first
    device: the largest difference of its hidden states as a share of the largest of them, or of its gradients likewise.

    The layer has random weights and reads a small window, with memory, segments, both directions and dropout, as far
    as the network has them.
    """
    ours, reference = (_first_layer(replace(model, attention=name, num_layers=1)) for name in ("fused", "plain"))
    # Of all gradients together: that of a bias on keys is 0 but for rounding.
    return max(_share(a, b) for a, b in zip(ours, reference, strict=True))


def _share(ours: Any, reference: Any) -> float:
    flat, expected = (np.concatenate([np.ravel(a) for a in jax.tree.leaves(tree)]) for tree in (ours, reference))
    share = np.abs(flat - expected).max() / np.abs(expected).max()
    return float(share) if np.isfinite(share) else float("inf")


def _first_layer(model: ModelConfig) -> tuple[Any, Any]:
    """Return the gradients of a random projection of the hidden states of both streams, and these, in float32."""
    model = replace(model, vocab_size=64, mem_len=MEMORY if model.mem_len else 0, max_positions=2 * ROWS)
    network, inputs = build_encoder(model), _inputs(model)
    with jax.default_device(jax.local_devices()[0]):
        key = jax.random.key(0)
        mems_ZBMD = jax.random.normal(key, (1, 2, model.mem_len, model.d_model))
        params = sharding.unboxed(jax.jit(network.init)(key, inputs, mems_ZBMD))["params"]

        def total(params: Any) -> tuple[jax.Array, Any]:
            outputs = apply(network, params, BatchDropout(key, jnp.arange(2)), inputs, mems_ZBMD)
            hidden = [h.astype(jnp.float32) for h in outputs[:2] if h is not None]
            weights = [jax.random.normal(key, h.shape) for h in hidden]
            return sum((h * w).sum() for h, w in zip(hidden, weights, strict=True)), hidden

        return jax.device_get(jax.jit(jax.grad(total, has_aux=True))(params))


def _inputs(model: ModelConfig) -> Inputs:
    ids_BL = jnp.arange(2 * ROWS).reshape(2, ROWS) % 61
    targets_BP = jnp.arange(TARGETS)[None] * 5 + jnp.array([[3], [7]])
    return compact_inputs(
        ids_BL,
        (ids_BL > 30).astype(jnp.int32) if model.num_segments else None,
        (ids_BL * 37) % 53,
        targets_BP if model.positions == "relative" and not model.is_causal else None,
        jnp.array([False, True]) if model.positions == "relative" else jnp.zeros(2, bool),
        jnp.ones((2, model.mem_len), bool),
    )
