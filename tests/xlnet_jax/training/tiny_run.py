"""Tiny run of the train command: its arguments, its state and its records."""

import json
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp

TINY = """--preset demo --steps 12 --model.vocab-size 400 --model.num-layers 1 --model.d-model 16 --model.num-heads 1
    --model.d-head 16 --model.d-ff 16 --model.mem-len 16 --data.batch-size 8 --data.seq-len 32 --data.reuse-len 16
    --data.perm-size 16 --data.num-predict 6 --data.windows-per-block 4 --optimizer.warmup-steps 2 --log.every-steps 3
    --eval.every-steps 6 --eval.max-windows 32 --checkpoint.every-steps 4 --eval.no-samples""".split()
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
