"""Tiny run of the train command: its arguments, its process, its state and its records."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp

TINY = """--preset demo --steps 12 --model.vocab-size 400 --model.num-layers 1 --model.d-model 16 --model.num-heads 1
    --model.d-head 16 --model.d-ff 16 --model.mem-len 16 --data.batch-size 8 --data.seq-len 32 --data.reuse-len 16
    --data.perm-size 16 --data.num-predict 6 --data.windows-per-block 4 --optimizer.warmup-steps 2 --log.every-steps 3
    --eval.every-steps 6 --eval.max-windows 32 --checkpoint.every-steps 4""".split()
LEARNED = ("step", "split", "loss", "gradient_norm", "parameter_norm", "learning_rate", "skipped", "unigram")


def arguments(text, workdir, *more):
    return [*TINY, "--corpus", str(text), "--workdir", str(workdir), *more]


def state_of(workdir, step=12):
    """Return parameters and optimizer state."""
    folder = (Path(workdir) / "checkpoints" / str(step)).absolute()
    return [ocp.StandardCheckpointer().restore(folder / item) for item in ("params", "optimizer")]


def assert_same(ours, theirs):
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def records_of(workdir):
    """Return the records of a run, without the numbers that depend on the clock."""
    lines = map(json.loads, (Path(workdir) / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in r.items() if k in LEARNED} for r in lines if r["split"] in ("train", "validation")]


class Process:
    """Command in a process of its own, on as many simulated devices as the tests have."""

    def __init__(self, text, workdir, *more):
        environment = os.environ | {"JAX_PLATFORMS": "cpu"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "xlnet_jax.train", *arguments(text, workdir, *more)],
            env=environment,
            cwd=Path(__file__).parents[3],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    def running(self):
        return self.process.poll() is None

    def wait_for(self, words):
        """Return the first line with these words; None where the command ends without them."""
        return next((line for line in self.process.stdout if words in line), None)

    def end(self, signum=None):
        """Return (exit code, output since)."""
        if signum:
            self.process.send_signal(signum)
        out, _ = self.process.communicate(timeout=300)
        return self.process.returncode, out
