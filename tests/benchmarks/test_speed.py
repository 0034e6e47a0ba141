"""The comparison of training steps on a GPU, in miniature on a CPU, where the kernel is interpreted."""

import os
import re
import subprocess
import sys

import pytest

from benchmarks import gpu
from benchmarks.train_step import Worker


@pytest.mark.parametrize(
    "sides",
    [("plain", "fused", "hf-eager"), pytest.param(("hf-compile",), marks=pytest.mark.long)],
    ids=" ".join,
)
def test_steps_are_timed_in_turns_without_tensorflow(tmp_path, sides):
    if any(side.startswith("hf") for side in sides):
        pytest.importorskip("transformers")
    (tmp_path / "tensorflow.py").write_text("raise ImportError('TensorFlow is imported')")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=1"
    words = f"--device cpu --sizes tiny --minutes 0 --steps 2 --sides {' '.join(sides)}"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *words.split()],
        env=os.environ | {"PYTHONPATH": path, "XLA_FLAGS": flags},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    rows = re.findall(r"^tiny +2 +(\S+) +(\S+) +(\S+) +- +(\S+) +(\d+)$", done.stdout, re.MULTILINE)
    assert [row[0] for row in rows] == list(sides), done.stdout + done.stderr[-2000:]
    # Two turns of two steps each.
    assert all(float(row[1]) > 0 and row[4] == "4" for row in rows)
    assert len(re.findall(r"^machine +\d+ cores, load", done.stdout, re.MULTILINE)) == 2  # before and after
    check = re.search(r"check +(.+): (\d+\.\d+)% from plain attention, 4% are accepted", done.stderr)
    assert (check is not None and 0 < float(check[2]) < 4) == ("fused" in sides), done.stderr[-2000:]


def test_a_side_that_ends_is_left_out(monkeypatch, capsys):
    """As one does for which the memory of the GPU is too small."""
    answering = "import sys\nfor _ in sys.stdin: print(0.5, 7, 100, flush=True)"

    def worker(arguments, environment):
        is_lost = "hf-eager" in arguments
        return Worker(["-c", "import sys; sys.stdin.readline()" if is_lost else answering], environment)

    monkeypatch.setattr(gpu, "Worker", worker)
    left = gpu.compare(["plain", "hf-eager"], "tiny", gpu.tiny(), "cpu", end=0, steps=3)
    assert {side: (worker.seconds, worker.peak) for side, worker in left.items()} == {"plain": ([0.5] * 6, 100)}
    assert capsys.readouterr().out == "ended       tiny, hf-eager: its error is above, or it compiled too long\n"


def test_a_side_that_compiles_too_long_is_ended():
    worker = Worker(["-c", "import time; time.sleep(600)"], {})
    worker.begin()
    with pytest.raises(ChildProcessError, match=r"ended$"):
        worker.finish(counts=False, until=0)
    worker.close()
    assert worker.process.returncode == -9
