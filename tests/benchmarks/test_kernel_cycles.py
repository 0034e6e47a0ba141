"""The counted cycles of the fused TPU kernels, which plans use."""

import json

from benchmarks import kernel_cycles
from benchmarks.kernel_cycles import Cycles
from xlnet_jax.planning.step_cost import KERNEL_CYCLES, measured_shares

SCHEDULE = """
     0   :  { %0 = sfence }
   0x1 LB: > { %1 = sld }
   0x2 PF: > { %2 = vld  ;;  %3 = vld }
   0x3   :  {}
   0x4 LB: >> { %4 = vadd }
   0x5   :  {}
   0x6   : >> { %5 = scmp.ge.s32.totalorder %s1, 8 /* loop exit test */ }
   0x7   : > { %6 = vst }
   0x8 PF: > { %7 = vld }
   0x9   : > { %8 = vadd ;; %9 = vdelay 7 }
   0xa PF: > { %10 = sadd }
"""


def test_every_turn_of_a_loop_and_every_wait_counts():
    assert kernel_cycles.tiles(SCHEDULE) == [Cycles(3 + 8 * 3, 2 + 8 * 2), Cycles(2 + 7, 2)]


def test_the_table_is_that_of_the_kernels_as_they_are():
    """If it fails: python -m benchmarks.kernel_cycles."""
    table = json.loads(KERNEL_CYCLES.read_text())
    assert table
    assert table.keys() <= kernel_cycles.TOPOLOGIES.keys()
    assert {chip["source"] for chip in table.values()} == {kernel_cycles.source_hash()}


def test_comments_do_not_change_the_hash_and_code_does(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_cycles.xlnet_jax, "__file__", str(tmp_path / "__init__.py"))
    monkeypatch.setattr(kernel_cycles, "SOURCES", ("a.py",))
    (tmp_path / "kernels").mkdir()
    hashes = []
    for text in ('"""One."""\nx = 1  # one\n', "x = 1\n", "x = 2\n"):
        (tmp_path / "kernels" / "a.py").write_text(text)
        hashes.append(kernel_cycles.source_hash())
    assert hashes[0] == hashes[1] != hashes[2]


def test_no_kernel_exceeds_the_peak_of_its_chip():
    assert all(0.01 < share < 1 for share in measured_shares().values())
