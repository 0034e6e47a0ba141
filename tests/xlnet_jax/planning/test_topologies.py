"""Find TPU slices by their public names."""

import re

import pytest

from xlnet_jax import plan
from xlnet_jax.errors import InputError
from xlnet_jax.planning.topologies import GENERATIONS, parse_slice


@pytest.mark.parametrize(
    ("name", "generation", "shape"),
    [
        ("v5litepod-256", "v5e", (16, 16)),
        ("v3-1024", "v3", (16, 32)),
        ("v5p-1024", "v5p", (8, 8, 8)),
        ("v5p:4x4x12", "v5p", (4, 4, 12)),
        ("V6E:16x16", "v6e", (16, 16)),
        ("tpu7x:2x2x1", "v7", (2, 2, 1)),
    ],
)
def test_a_slice_has_the_chips_that_its_name_says(name, generation, shape):
    assert parse_slice(name) == (generation, shape)


@pytest.mark.parametrize("name", ["v9:2x2", "v3", "v3-7", "v5e:32x32", "v5p:8x8", "v3:0x4", "l4-1", ""])
def test_a_slice_that_there_is_not_is_refused_with_those_that_there_are(name):
    with pytest.raises(InputError) as mistake:
        parse_slice(name)
    line = str(mistake.value)
    assert line.startswith(f"`topology` {name}: there is no such slice")
    assert "\n" not in line
    assert all(f"{generation}:{g.shapes[0]}" in line for generation, g in GENERATIONS.items())


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("", "--topology is missing: name a TPU slice"),
        ("--topology v3:2x2 --utilization 40", "--utilization 40.0 must be in (0, 1]"),
        ("--topology v3:2x2 v3:4x4 --search", "--search takes one --topology"),
        ("--topology h100-1 --batch-per-device 8 --batch 8", "--batch, --batch-per-device and --data.batch-size say"),
        ("--topology v3:2x2 --init runs/x", "--init: a plan reads no files"),
        ("--topolgy v3:2x2", "unknown setting --topolgy: did you mean --topology?"),
        ("--topology v3:2x2 --data.perm-size 48", "data.perm-size 48 must divide both parts"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_compiled(argv, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        plan.main(argv.split())
