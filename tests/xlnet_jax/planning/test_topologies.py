"""Find TPU slices and GPUs by their public names."""

import re

import pytest

from tests.xlnet_jax.planning.compilers import has_gpu_compiler
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.costs import chip_named
from xlnet_jax.errors import InputError
from xlnet_jax.planning.topologies import GPUS, SLICES, describe_gpu, find_topology, parse_gpus, parse_slice

plan = COMMANDS["plan"]


@pytest.mark.parametrize(
    ("name", "generation", "shape"),
    [
        ("v5litepod-256", "v5e", (16, 16)),
        ("v3-1024", "v3", (16, 32)),
        ("v5p-1024", "v5p", (8, 8, 8)),
        ("v5p:4x4x12", "v5p", (4, 4, 12)),
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
    assert line.startswith(f"`topology` {name}: no such slice; known slices")
    assert "\n" not in line
    assert all(f"{generation}:{shapes[0]}" in line for generation, shapes in SLICES.items())


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("", "--topology is missing: give a TPU slice"),
        ("--topology v3:2x2 --utilization 40", "--utilization 40.0 must be in (0, 1]"),
        ("--topology v3:2x2 v3:4x4 --search", "--search accepts only one --topology"),
        (
            "--topology h100-1 --batch-per-device 8 --data.batch-size 8",
            "--batch-per-device and --data.batch-size both set",
        ),
        ("--topology v3:2x2 --init runs/x", "--init: a plan reads no files"),
        ("--topolgy v3:2x2", "unknown setting --topolgy: did you mean --topology?"),
        ("--topology v3:2x2 --data.perm-size 48", "--data.perm-size 48 must divide both parts"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_compiled(argv, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        plan.main(argv.split())


# ---- GPUs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("h200-1", ("h200", 1)),
        ("A100-64", ("a100", 64)),
        ("h100-12", None),
        ("h100-0", None),
        ("v5e-1", None),
    ],
)
def test_a_name_says_the_kind_and_the_number(name, expected):
    assert parse_gpus(name) == expected


@pytest.mark.parametrize(
    ("name", "slices", "line"),
    [
        ("h100-12", 1, r"`topology` h100-12: no such slice; .* \(h100-8\): l4 a6000 a100 h100 h200$"),
        ("h100-8", 2, r"^`mesh.dcn_data` 2: GPUs have no slices; give their total number, h100-16$"),
        pytest.param(
            "h200-1", 1, r"pip install -e '\.\[plan-gpu\]' in the clone, in a separate environment$",
            marks=pytest.mark.skipif(has_gpu_compiler, reason="the compiler is here"),
        ),
    ],
)  # fmt: skip
def test_gpus_that_cannot_be_had_are_refused(name, slices, line):
    with pytest.raises(InputError, match=line):
        find_topology(name, slices)


@pytest.mark.parametrize("kind", GPUS)
def test_devices_are_known_by_the_name_that_the_description_gives(kind):
    chip, text = chip_named(GPUS[kind].chip), describe_gpu(kind)
    assert f'device_description_str: "{chip.device_kinds[0]}"' in text
    assert f"memory_bandwidth: {chip.memory_bandwidth:.0f}\n" in text
