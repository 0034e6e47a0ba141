"""Kernels that must run: a test of fused attention fails where plain attention computes in its place."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from xlnet_jax.kernels.gpu import call as for_gpus
from xlnet_jax.kernels.mesh import interpret_kernels
from xlnet_jax.kernels.tpu import call as for_tpus


@contextlib.contextmanager
def running_kernels(device: str = "v5e", interpret: Any = True) -> Iterator[None]:
    """Interpret the kernels as `interpret_kernels` does. Fails if the body traces no kernel, or an attention call that
    the kernel does not support."""
    kernel, calls, obstacles = for_gpus if device == "gpu" else for_tpus, [], []
    compute, why_unsupported = kernel.attention_BNTH, kernel.why_unsupported

    def counted(inputs):
        calls.append(inputs.query_BNTH.shape)
        return compute(inputs)

    def noted(inputs):
        obstacles.append(why_unsupported(inputs))
        return obstacles[-1]

    with pytest.MonkeyPatch.context() as patch, interpret_kernels(device, interpret):
        patch.setattr(kernel, "attention_BNTH", counted)
        patch.setattr(kernel, "why_unsupported", noted)
        yield
    found = {obstacle for obstacle in obstacles if obstacle}
    assert not found, f"plain attention ran: {found}"
    assert calls, "no kernel was traced"
