"""The attention implementation of a run: chosen for its devices, and compared with the plain one before it is used."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from xlnet_jax.errors import InputError
from xlnet_jax.kernels.arguments import AttentionInputs, Relations
from xlnet_jax.kernels.for_device import why_not_fused
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.settings.config import Config, DataConfig, ModelConfig, RunConfig
from xlnet_jax.training import sharding
from xlnet_jax.training.kernel_check import Sample, difference
from xlnet_jax.training.run.process import Process

TOLERANCE = {"float32": 2e-2, "bfloat16": 4e-2}
"""Largest difference from plain attention, as a share of the size of what is compared. On a TPU kernels round float32
operands to bfloat16, so float32 has the accuracy of bfloat16 operands."""


def unsupported(config: RunConfig, mesh: Mesh) -> str | None:
    """Return why there is no fused kernel for this run on the devices of a mesh, in a clause; None = there is."""
    with sharding.axes_of(mesh):
        return why_not_fused(_shapes(config))


def _shapes(config: RunConfig) -> Any:
    """Return the arguments of the run's attention calls, as far as `why_not_fused` reads them: shapes, not arrays."""
    model, rows = config.model, config.data.seq_len
    keys = rows + model.mem_len

    def of(*shape: int, dtype: str = model.dtype) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))

    is_dense = isinstance(config.data, DataConfig) and config.data.emit == "dense"
    relations = Relations(mask_BTK=of(1, rows, keys, dtype="bool") if is_dense else None)
    query, key, value = (of(1, model.num_heads, length, model.d_head) for length in (rows, keys, keys))
    return AttentionInputs(query, key, value, relations)


def choose_attention(config: RunConfig, mesh: Mesh) -> tuple[str, str]:
    """Return the attention implementation of a run, plain or fused, and the choice in words.

    Raises InputError where the settings ask for the fused kernel and there is none.
    """
    if config.model.attention == "plain":
        return "plain", "plain"
    reason = unsupported(config, mesh)
    if reason is None:
        return "fused", "fused"
    if config.model.attention == "fused":
        raise InputError(f"model.attention fused: {reason}; auto would take plain")
    return "plain", f"plain: {reason}"


def check_attention(config: RunConfig, process: Process, sample: Sample) -> str:
    """Return the attention implementation that this run uses, and print it: the fused kernel only where it computes
    what plain attention does on the devices of every process (`difference`).

    sample: examples of the run. Raises InputError as `choose_attention` does, and where the mesh does not fit.
    """
    mesh = sharding.make_mesh(config)
    attention, words = choose_attention(config, mesh)
    if attention == "fused":
        networks = _networks_of_one_device(config, mesh)
        here = max(difference(network, sample, mesh.shape["context"]) for network in networks)
        worst, what = max(process.hosts.gather("attention", here))
        if worst > TOLERANCE[config.model.dtype]:
            attention = "plain"
            words = f"plain: on this device the {what} by the fused kernel is off by {worst:.0%} of its size"
    process.console.print(f"attention   {words}")
    return attention


def _networks_of_one_device(config: RunConfig, mesh: Mesh) -> list[ModelConfig]:
    """Return the networks of a run with the heads that one device computes."""
    networks = [replace(config.model, attention="fused")]
    if isinstance(config, Config) and objective_named(config.objective).judges_tokens:
        networks.append(config.rtd.generator_of(networks[0]))
    devices = mesh.shape["tensor"]
    return [
        replace(network, num_heads=network.num_heads // (1 if network.num_heads % devices else devices))
        for network in networks
    ]
