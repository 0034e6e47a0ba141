"""Count the cycles of a tile of the fused TPU kernels, from the instructions that libtpu schedules.

    python -m benchmarks.kernel_cycles            # all chips, about two minutes each
    python -m benchmarks.kernel_cycles v3 v5e     # these, and keep what the file says of the others

Compiles attention with the windows of XLNet-Large for a chip that is not here, and has libtpu write the schedule of the
kernels: bundles of instructions that are issued together, and cycles that wait for results. Prints both and writes
kernel_cycles.json, which xlnet_jax/planning/step_cost.py reads, with a hash of the kernels' source.
Needs `pip install -e '.[plan]'`.
"""

import argparse
import ast
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import xlnet_jax
from xlnet_jax.planning.step_cost import KERNEL_CYCLES
from xlnet_jax.planning.topologies import ENVIRONMENT

TOPOLOGIES = {"v3": "v3:1x1", "v5e": "v5e:1x1", "v5p": "v5p:1x1x1", "v6e": "v6e:1x1"}
KERNELS = ("fused_attention_forward", "fused_attention_backward")
SOURCES = (
    "dropout.py",
    *(f"tpu/{name}.py" for name in ("backward", "forward", "grid", "operands", "scores", "shift", "tiles")),
)
LIBTPU_ARGUMENTS = (
    "--xla_jf_dump_to={} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex=packed-bundles-post-ra"
)
WINDOW = ("512", "384", "64", "bfloat16")
"""length, memory, head width and type of numbers that are compiled"""
COMPILE = """
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from xlnet_jax.kernels.arguments import AttentionInputs, Relations, numbers_of
from xlnet_jax.kernels.dropout import AttentionDropout
from xlnet_jax.kernels.implementations import fused_attention_BNTH, why_not_fused
from xlnet_jax.planning.topologies import find_topology

B, N, P = 2, 4, 85
L, M, H = map(int, sys.argv[2:5])
K, T = M + L, L + P
mesh = Mesh(np.array(find_topology(sys.argv[1]).devices[:1]), ("data",))


def integers(*shape):
    return jnp.zeros(shape, jnp.int32)


def numbers(*shape, dtype=sys.argv[5]):
    return jnp.zeros(shape, dtype)


relations = Relations(
    key_position_BK=integers(B, K),
    row_rank_BT=integers(B, T),
    key_rank_BK=integers(B, K),
    row_segment_BT=integers(B, T),
    key_segment_BK=integers(B, K),
    query_position_BP=integers(B, P),
    is_reversed_B=integers(B) > 0,
)
inputs = AttentionInputs(
    numbers(B, N, T, H), numbers(B, N, K, H), numbers(B, N, K, H), relations, numbers(3, N, H, dtype=jnp.float32),
    numbers(2, N, K + L, H, dtype=jnp.float32), numbers(2, N, H), AttentionDropout(0.1, jnp.zeros((B, N), jnp.uint32)),
)


def pull(numbers, seed_BN, grad_BNTH):
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        drawn = inputs._replace(dropout=inputs.dropout._replace(seed_BN=seed_BN))
        assert why_not_fused(drawn) is None
        read_BNTH, pull_back = jax.vjp(lambda n: fused_attention_BNTH(drawn._replace(**n)), numbers)
        return read_BNTH, pull_back(grad_BNTH)


arguments = (numbers_of(inputs), inputs.dropout.seed_BN, inputs.query_BNTH)
here = NamedSharding(mesh, PartitionSpec())
shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=here), arguments)
text = jax.jit(pull).lower(*shapes).compile().as_text()
calls = [line for line in text.splitlines() if "tpu_custom_call" in line or "__gpu$xla.gpu.triton" in line]
for name in ("forward", "backward", "backward_keys"):
    print(sum(f"fused_attention_{name}/pallas_call" in line for line in calls))
"""
"""program of (topology, *WINDOW) that compiles attention and prints how many calls it has of each kernel"""


class Cycles(NamedTuple):
    """Cycles of one tile."""

    cycles: int
    bundles: int  # the cycles in which instructions are issued


# ---- schedules -------------------------------------------------------------------------------------------------------

_BUNDLE = re.compile(r"\s*(?:0x[0-9a-f]+|0)\s+(LB|PF|..)?\s*:\s*(>*)\s*\{(.*)\}")
_WAIT = re.compile(r"vdelay (\d+)")
_LAST_TURN = re.compile(r"scmp\.ge\.s32\.totalorder \S+, (\d+) /\* loop exit test")


def tiles(schedule: str) -> list[Cycles]:
    """Return the cycles of a tile of content rows and of one of query rows, from the text of a kernel's schedule.

    The kernel is a loop over the grid. Its two longest branches compute the two kinds of tiles. A loop inside a branch
    counts once for each turn. A chip without interlocks waits by an instruction, the others by empty bundles.
    """
    branches, loop, turns, depth = [Cycles(0, 0)], Cycles(0, 0), 1, 1
    for mark, nesting, text in (match.groups() for match in map(_BUNDLE.match, schedule.splitlines()) if match):
        is_issued = bool(text.strip())
        depth = len(nesting) if is_issued else depth  # an empty bundle has no marks
        if depth <= 1 or mark == "LB":
            branches[-1] = Cycles(*(all_ + turns * one for all_, one in zip(branches[-1], loop, strict=True)))
            loop, turns = Cycles(0, 0), 1
        if mark == "PF" and depth <= 1:
            branches.append(Cycles(0, 0))
        loop = Cycles(loop.cycles + 1 + sum(map(int, _WAIT.findall(text))), loop.bundles + is_issued)
        if depth > 1 and (last := _LAST_TURN.search(text)):
            turns = int(last[1])
    longest = sorted(sorted(range(len(branches)), key=lambda i: branches[i].cycles)[-2:])
    return [branches[i] for i in longest]


def measure(chip: str) -> dict[str, Any]:
    """Return the cycles of the kernels on a chip: {kernel: {kind of tile: numbers of `Cycles`}}, and "source"."""
    found: dict[str, Any] = {"source": source_hash()}
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | ENVIRONMENT | {"LIBTPU_INIT_ARGS": LIBTPU_ARGUMENTS.format(folder)}
        environment.pop("JAX_COMPILATION_CACHE_DIR", None)  # only what is compiled is written
        program = [sys.executable, "-c", COMPILE, TOPOLOGIES[chip], *WINDOW]
        subprocess.run(program, env=environment, check=True, stdout=subprocess.DEVNULL)
        for kernel in KERNELS:
            (file,) = Path(folder).glob(f"*-{kernel}.*-[0-9][0-9]-packed-bundles-post-ra.txt")
            content, query = tiles(file.read_text())
            found[kernel] = {"content": content._asdict(), "query": query._asdict()}
    return found


def source_hash() -> str:
    """Return a hash of the kernels' source without comments and docstrings."""
    digest = hashlib.sha256()
    for name in SOURCES:
        tree = ast.parse((Path(xlnet_jax.__file__).parent / "kernels" / name).read_text())
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list):
                node.body = [  # type: ignore[attr-defined]
                    s for s in body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
                ] or [ast.Pass()]
        digest.update(ast.unparse(tree).encode())
    return digest.hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chips", nargs="*", choices=[*TOPOLOGIES, []], help="default: all")
    chips = parser.parse_args().chips or list(TOPOLOGIES)
    table = json.loads(KERNEL_CYCLES.read_text()) if KERNEL_CYCLES.exists() else {}
    print(f"{'':6}{'forward':>30}{'backward':>30}")
    print(f"{'':6}{'content':>15}{'query':>15}{'content':>15}{'query':>15}   cycles (bundles)")
    for chip in chips:
        table[chip] = measure(chip)
        numbers = [table[chip][kernel][kind] for kernel in KERNELS for kind in ("content", "query")]
        print(f"{chip:6}" + "".join(f"{n['cycles']:8,} ({n['bundles']:,})".rjust(15) for n in numbers), flush=True)
        KERNEL_CYCLES.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
