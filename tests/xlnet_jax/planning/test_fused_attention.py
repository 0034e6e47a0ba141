"""Compile the fused attention kernels for TPUs that are not here, at the sizes of XLNet-Large."""

import importlib.util
import os
import subprocess
import sys

import pytest

from xlnet_jax.planning.topologies import ENVIRONMENT

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="the TPU compiler: pip install 'xlnet_jax[plan]'"
)

PROGRAM = """
import sys

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.xlnet_jax.kernels.test_fused import Case, inputs_of, pulled_back
from xlnet_jax.kernels.fused import call as fused
from xlnet_jax.planning.topologies import find_topology

mesh = Mesh(np.array(find_topology(sys.argv[1]).devices[:1]), ("data",))
inputs = inputs_of(Case(length=512, targets=85, memory=384, rate=0.1, dtype="bfloat16"))
grad = jax.ShapeDtypeStruct(inputs.query_BNTH.shape, "bfloat16", sharding=NamedSharding(mesh, PartitionSpec()))


def program(grad_BNTH):
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        assert fused.supports(inputs) is None
        return pulled_back(fused.attention_BNTH, inputs)(grad_BNTH)


text = jax.jit(program).lower(grad).compile().as_text()
print(*(f"fused_attention_{name}" in text for name in ("forward", "backward")))
"""


@pytest.mark.parametrize("topology", ["v3:2x2", "v4:2x2x1", "v5e:1x1"])
def test_both_kernels_compile(topology):
    """v3 and v4 have the least memory on the chip; v3 multiplies and permutes in other ways than the later ones."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, topology], env=os.environ | ENVIRONMENT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["True", "True"]
