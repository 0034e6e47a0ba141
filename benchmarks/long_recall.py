"""Measure recall over long distances with and without memory, of values that a text mentions once.

    python -m benchmarks.long_recall [--only 'memory-512-*'] [--jobs 2]
    python -m benchmarks.long_recall --report

The training text consists of words of tiny's vocabulary. In a document each key has a value, and "key value" is
repeated many times, so a network can predict a value if it sees an earlier mention. Each run is a normal train command
that continues tiny. The runs differ only in the length of memory. tiny can already copy from its context: from random
weights, networks do not learn it from such texts within 4,000 steps.

Then each network reads, window by window, texts that mention a pair (the needle) once and ask for its value DISTANCES
later. The table has the share of values that are recalled. A guess is right one time in VALUES.
"""

import argparse
import fnmatch
import itertools
import re
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import studies
from benchmarks.results import keep_table
from benchmarks.studies import MEASURED, Job, Record, Study
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax import load
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.inference.log_probs import CONTEXT
from xlnet_jax.models.heads import build_model
from xlnet_jax.models.inputs import compact_inputs
from xlnet_jax.models.masks import memory_in_use_BM
from xlnet_jax.settings.config import ModelConfig

NAME = "long_recall"
WINDOW, REUSED = 64, 32
"""tokens of a window, and of its first part, which becomes memory"""
MEMORIES = (0, 128, 512)
SEEDS = range(3)
DISTANCES = (0.5, 1, 2, 4, 8)
"""windows between needle and question"""
KEYS, VALUES = 56, 56
RECENT, SHARE_RECENT = 8, 0.5
"""number of recent keys, and the share of pairs that repeat one of them, so that other keys can pause longer"""
DOCUMENTS, PAIRS = 300, 1_500
"""number of documents, and of pairs in a document"""
NEEDLES = 512
SETTINGS = f"""--preset demo --optimizer.method adamw
    --init tiny --steps 1000 --data.seq-len {WINDOW} --data.reuse-len {REUSED}
    --data.perm-size {REUSED} --data.num-predict 16 --data.no-bidirectional --data.windows-per-block 32
    --optimizer.learning-rate 2e-3 --optimizer.matrix-rate 0.5 --optimizer.warmup-steps 100 --eval.every-steps 500
    --eval.max-windows 512 --log.every-steps 50 --checkpoint.every-steps 500 --checkpoint.keep 1""".split()


# ---- the text --------------------------------------------------------------------------------------------------------


def words_of(tokenizer: Tokenizer) -> tuple[list[str], list[str]]:
    """Return the words that are keys and those that are values. Each is one piece."""
    words = [piece[1:] for piece in tokenizer.pieces if re.fullmatch("▁[a-z]{4,}", piece)]
    drawn = [words[n] for n in np.random.default_rng(0).permutation(len(words))[: KEYS + VALUES]]
    return drawn[:KEYS], drawn[KEYS:]


def document(draw: np.random.Generator, pairs: int, left_out: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of the key and the value of each pair: [pairs], [pairs].

    A share SHARE_RECENT of the pairs repeat one of the RECENT last keys. For the others, the distance to the last
    mention of the key is drawn from a quarter of a window to ten windows, uniformly on a logarithmic scale. left_out:
    key that is never mentioned.
    """
    value_of = draw.integers(VALUES, size=KEYS)
    keys: list[int] = []
    nearest, farthest = np.log(WINDOW / 4), np.log(10 * WINDOW)
    last = -np.exp(draw.uniform(nearest, farthest, size=KEYS))  # as if the document had begun earlier
    may_be_said = np.arange(KEYS) != left_out
    recent = draw.random(pairs) < SHARE_RECENT
    for wanted, is_recent in zip(draw.uniform(nearest, farthest, size=pairs), recent, strict=True):
        if is_recent:
            key = int(draw.choice(np.argsort(np.where(may_be_said, -last, np.inf))[:RECENT]))
        else:
            key = int(np.where(may_be_said, np.abs(np.log(2 * len(keys) - last) - wanted), np.inf).argmin())
        last[key] = 2 * len(keys)
        keys.append(key)
    return np.array(keys), value_of[keys]


def needle(draw: np.random.Generator, distance: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return keys and values of a document of `length` words. Its last pair was mentioned once before, `distance` words
    ago."""
    key, value = draw.integers(KEYS), draw.integers(VALUES)
    keys, values = document(draw, length // 2, left_out=int(key))
    at = [-1, -1 - distance // 2]
    keys[at], values[at] = key, value
    return keys, values


# ---- reading window by window ----------------------------------------------------------------------------------------


def recalled(pretrained: Pretrained, distance: int) -> float:
    """Return the share of needles whose value gets the highest probability after reading their texts."""
    assert pretrained.tokenizer
    keys_K, values_V = (_pieces(pretrained.tokenizer, words) for words in words_of(pretrained.tokenizer))
    draw, windows = np.random.default_rng(distance), (max(DISTANCES) + 2) * WINDOW // REUSED
    length = (int(windows) - 1) * REUSED + WINDOW
    texts = [needle(draw, distance, length) for _ in range(NEEDLES)]
    ids_BT = np.stack([np.stack([keys_K[keys], values_V[values]], 1).reshape(length) for keys, values in texts])
    mems_ZBMD = jnp.zeros((pretrained.model.num_layers, NEEDLES, pretrained.model.mem_len, pretrained.model.d_model))
    logits_BV = None
    for number in range(int(windows)):
        begin, filled = number * REUSED, jnp.full(NEEDLES, number * REUSED)
        ids_BL = jnp.asarray(ids_BT[:, begin : begin + WINDOW])
        logits_BV, mems_ZBMD = _read(pretrained.model, pretrained.params, ids_BL, mems_ZBMD, filled)
    assert logits_BV is not None
    return float((values_V[np.asarray(logits_BV)[:, values_V].argmax(-1)] == ids_BT[:, -1]).mean())


def _pieces(tokenizer: Tokenizer, words: Sequence[str]) -> np.ndarray:
    return np.concatenate(tokenizer.encode_lines(list(words)))


@partial(jax.jit, static_argnums=0)
def _read(
    config: ModelConfig, params: Any, ids_BL: jax.Array, mems_ZBMD: jax.Array, filled_B: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the logits [B, V] of the last piece of a window, which sees all others, and the memory of the next
    window."""
    rank_BL = jnp.full_like(ids_BL, CONTEXT).at[:, -1].set(0)
    memory_BM = memory_in_use_BM(jnp.minimum(filled_B, config.mem_len), config.mem_len)
    at_BP = jnp.full((len(ids_BL), 1), WINDOW - 1)
    inputs = compact_inputs(
        ids_BL,
        segment_ids_BL=jnp.zeros_like(ids_BL),
        perm_rank_BL=rank_BL,
        target_positions_BP=at_BP,
        memory_BM=memory_BM,
    )
    network = cast(Any, build_model(config, None))
    logits_BPV, outputs = network.apply({"params": params}, inputs, mems_ZBMD, reuse_len=REUSED)
    return logits_BPV[:, 0], outputs.new_mems_ZBMD


# ---- running ---------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    studies.add_arguments(parser, NAME)
    parser.add_argument("--report", action="store_true", help="print the table of recorded runs, and exit")
    given = parser.parse_args()
    if not given.report:
        text = given.workdir / "needles.txt"
        if not text.exists():
            write_text(text)
        jobs = (job(memory, seed, text) for seed, memory in itertools.product(SEEDS, MEMORIES))
        Study(NAME, given.workdir, given.jobs).run(job for job in jobs if fnmatch.fnmatch(job.name, given.only))
    report(studies.read(MEASURED / NAME))


def write_text(file: Path) -> None:
    draw, (keys, values) = np.random.default_rng(0), words_of(Tokenizer.load("tiny"))
    file.parent.mkdir(parents=True, exist_ok=True)
    documents = (zip(*document(draw, PAIRS), strict=True) for _ in range(DOCUMENTS))
    file.write_text("\n\n".join(" ".join(f"{keys[k]} {values[v]}" for k, v in pairs) for pairs in documents) + "\n")


def job(memory: int, seed: int, text: Path) -> Job:
    """Return the training run for a length of memory and a seed."""

    def command(workdir: Path) -> list[str]:
        own = ("--model.mem-len", str(memory), "--seed", str(seed), "--corpus", str(text), "--workdir", str(workdir))
        return ["xlnet_jax.train", *SETTINGS, *own]

    def record(workdir: Path) -> Record:
        pretrained = load(workdir)
        return {
            "command": studies.shown(command(workdir), workdir, NEEDLES=str(text)),
            "memory": memory,
            "recalled": {str(windows): recalled(pretrained, int(windows * WINDOW)) for windows in DISTANCES},
            "loss": studies.rows_of(workdir, "validation")[-1]["loss"],
            **studies.time_of(workdir),
        }

    return Job(f"memory-{memory}-seed-{seed}", command, record)


def report(measured: dict[str, Record]) -> None:
    """Print the share of recalled needles by memory and distance."""
    rows = []
    for memory in MEMORIES:
        runs = [run for run in measured.values() if run["memory"] == memory]
        if not runs:
            continue
        shares = [list(_shares(runs, distance)) for distance in DISTANCES]
        cells = [f"{statistics.mean(found):.0%} ({min(found):.0%} to {max(found):.0%})" for found in shares]
        loss = f"{statistics.mean(run['loss'] for run in runs):.3f}"
        rows.append((f"{memory / WINDOW:g}", *cells, loss, str(len(runs))))
    head = ("memory, in windows", *(f"{distance:g} windows" for distance in DISTANCES), "held-out loss", "seeds")
    keep_table("long-recall", head, rows)
    print(f"\n{sum(run['seconds'] for run in measured.values()) / 3600:.1f} CPU hours")


def _shares(runs: list[Record], distance: float) -> Iterator[float]:
    return (run["recalled"][str(distance)] for run in runs)


if __name__ == "__main__":
    main()
