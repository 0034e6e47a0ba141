"""Recall over long distances, with and without memory: values that a text tells once, asked for windows later.

    python -m benchmarks.long_recall [--only seed-0] [--jobs 2]
    python -m benchmarks.long_recall --report

The texts are made up: a document gives every key a value, and mentions "key value" again and again. A network can
predict a value that was told before if it reads so far back. Each seed is trained twice by the ordinary command: first
on keys that come again within a window, so that it learns to look them up; then, with one length of memory or another
and all else equal, on keys many of which come again after a quarter of a window to ten windows. From these alone,
networks of this size learn no lookup within 4,000 steps.

Then each network reads, window by window, a text that tells a needle once and asks for its value DISTANCES later. The
table has the share of values that are recalled; a guess has one in VALUES.
"""

import argparse
import fnmatch
import itertools
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import studies
from benchmarks.studies import MEASURED, Job, Record, Study
from xlnet_jax import load
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.inference.query_stream import CONTEXT
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
KEYS, VALUES = 16, 32
RECENT, SHARE_RECENT = 4, 0.8
"""keys that were mentioned last, and the share of pairs that mention one of them again: the others can rest longer"""
DOCUMENTS, PAIRS = 400, 1_500
"""number of documents, and of pairs in each"""
NEEDLES = 512
NEAR = "near"
"""name of the first training, with a memory of a window"""
STEPS = {"near": 6000, "far": 2000}
NETWORK = """--data.token-level word --model.vocab-size 100 --data.normalization none --model.num-layers 3
    --model.d-model 96 --model.num-heads 3 --model.d-head 32 --model.d-ff 384 --model.init-std 0.0924""".split()
SETTINGS = f"""--preset demo --data.seq-len {WINDOW} --data.reuse-len {REUSED} --data.perm-size {REUSED}
    --data.num-predict 16 --data.no-bidirectional --data.windows-per-block 32 --optimizer.learning-rate 3e-3
    --optimizer.warmup-steps 400 --eval.every-steps 1000 --eval.max-windows 512 --log.every-steps 100
    --checkpoint.every-steps 1000 --checkpoint.keep 1""".split()


# ---- the text --------------------------------------------------------------------------------------------------------


def near_document(draw: np.random.Generator, pairs: int) -> list[str]:
    """Return words: pairs of a key and its value, the keys in a random order."""
    value_of = draw.integers(VALUES, size=KEYS)
    return [word for key in draw.integers(KEYS, size=pairs) for word in (f"k{key}", f"v{value_of[key]}")]


def far_document(draw: np.random.Generator, pairs: int, left_out: int | None = None) -> list[str]:
    """Return words: pairs of a key and its value.

    A share of SHARE_RECENT of the pairs mention one of the RECENT keys of the last pairs. Of the others, the distance
    to the last mention of the key is drawn from a quarter of a window to ten windows, evenly on a logarithmic scale.
    left_out: key that is never mentioned.
    """
    value_of = draw.integers(VALUES, size=KEYS)
    words: list[str] = []
    nearest, farthest = np.log(WINDOW / 4), np.log(10 * WINDOW)
    last = -np.exp(draw.uniform(nearest, farthest, size=KEYS))  # as if the document had begun before
    may_be_said = np.arange(KEYS) != left_out
    recent = draw.random(pairs) < SHARE_RECENT
    for wanted, is_recent in zip(draw.uniform(nearest, farthest, size=pairs), recent, strict=True):
        if is_recent:
            key = int(draw.choice(np.argsort(np.where(may_be_said, -last, np.inf))[:RECENT]))
        else:
            key = int(np.where(may_be_said, np.abs(np.log(len(words) - last) - wanted), np.inf).argmin())
        last[key] = len(words)
        words += [f"k{key}", f"v{value_of[key]}"]
    return words


def needle_text(draw: np.random.Generator, distance: int, length: int) -> tuple[list[str], str]:
    """Return a text whose last word but one is a key that was told once, `distance` words before, and the value that
    was told. The last word is that value."""
    key, value = int(draw.integers(KEYS)), f"v{draw.integers(VALUES)}"
    words = far_document(draw, length // 2, left_out=key)
    for begin in (length - 2, length - 2 - distance):
        words[begin : begin + 2] = [f"k{key}", value]
    return words, value


# ---- reading window by window ----------------------------------------------------------------------------------------


def recalled(pretrained: Pretrained, distance: int) -> float:
    """Return the share of needles whose value is the likeliest, after their texts were read window by window."""
    tokenizer = pretrained.tokenizer
    assert tokenizer
    draw, windows = np.random.default_rng(distance), (max(DISTANCES) + 2) * WINDOW // REUSED
    length = (int(windows) - 1) * REUSED + WINDOW
    texts = [needle_text(draw, distance, length) for _ in range(NEEDLES)]
    ids_BT = np.stack(tokenizer.encode_lines([" ".join(words) for words, _ in texts]))
    assert ids_BT.shape == (NEEDLES, length), "a word is one piece"
    values_V = np.array([tokenizer.encode_lines([f"v{n}"])[0][0] for n in range(VALUES)])
    mems_ZBMD = jnp.zeros((pretrained.model.num_layers, NEEDLES, pretrained.model.mem_len, pretrained.model.d_model))
    logits_BV = None
    for number in range(int(windows)):
        begin, filled = number * REUSED, jnp.full(NEEDLES, number * REUSED)
        ids_BL = jnp.asarray(ids_BT[:, begin : begin + WINDOW])
        logits_BV, mems_ZBMD = _read(pretrained.model, pretrained.params, ids_BL, mems_ZBMD, filled)
    assert logits_BV is not None
    return float((values_V[np.asarray(logits_BV)[:, values_V].argmax(-1)] == ids_BT[:, -1]).mean())


@partial(jax.jit, static_argnums=0)
def _read(
    config: ModelConfig, params: Any, ids_BL: jax.Array, mems_ZBMD: jax.Array, filled_B: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the logits of the last piece of a window, which sees all others, [B, V], and the memory of the next
    window."""
    rank_BL = jnp.full_like(ids_BL, CONTEXT).at[:, -1].set(0)
    memory_BM = memory_in_use_BM(jnp.minimum(filled_B, config.mem_len), config.mem_len)
    at_BP = jnp.full((len(ids_BL), 1), WINDOW - 1)
    reversed_B = jnp.zeros(len(ids_BL), bool)
    inputs = compact_inputs(ids_BL, jnp.zeros_like(ids_BL), rank_BL, at_BP, reversed_B, memory_BM)
    network = cast(Any, build_model(config, None))
    logits_BPV, outputs = network.apply({"params": params}, inputs, mems_ZBMD, reuse_len=REUSED)
    return logits_BPV[:, 0], outputs.new_mems_ZBMD


# ---- running ---------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    studies.add_arguments(parser, NAME)
    parser.add_argument("--report", action="store_true", help="print the table of what has been measured, and end")
    given = parser.parse_args()
    if not given.report:
        texts = {name: given.workdir / f"{name}.txt" for name in STEPS}
        for name, make in ((NEAR, near_document), ("far", far_document)):
            if not texts[name].exists():
                write_text(texts[name], make)
        study = Study(NAME, given.workdir, given.jobs)
        chosen = [seed for seed in SEEDS if fnmatch.fnmatch(f"seed-{seed}", given.only)]
        study.run(near(seed, texts[NEAR]) for seed in chosen)
        study.run(far(m, seed, texts, given.workdir) for seed, m in itertools.product(chosen, MEMORIES))
    report(studies.read(MEASURED / NAME))


def write_text(file: Path, make: Callable[[np.random.Generator, int], list[str]]) -> None:
    draw = np.random.default_rng(0)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n\n".join(" ".join(make(draw, PAIRS)) for _ in range(DOCUMENTS)) + "\n")


def near(seed: int, text: Path) -> Job:
    """Return the training in which keys come again within a window."""
    return _job(f"{NEAR}-seed-{seed}", WINDOW, seed, text, NETWORK)


def far(memory: int, seed: int, texts: dict[str, Path], workdirs: Path) -> Job:
    """Return the training that goes on with keys that come again after windows."""
    start = ["--init", str(workdirs / f"{NEAR}-seed-{seed}")]
    return _job(f"memory-{memory}-seed-{seed}", memory, seed, texts["far"], start)


def _job(name: str, memory: int, seed: int, text: Path, start: list[str]) -> Job:
    def command(workdir: Path) -> list[str]:
        own = {"steps": STEPS[text.stem], "model.mem-len": memory, "seed": seed, "corpus": text, "workdir": workdir}
        words = (word for setting, value in own.items() for word in (f"--{setting}", str(value)))
        return ["xlnet_jax.train", *SETTINGS, *start, *words]

    def record(workdir: Path) -> Record:
        pretrained, folders = load(workdir), {"TEXT": str(text)}
        if start[0] == "--init":
            folders["NEAR"] = start[1]
        return {
            "command": studies.shown(command(workdir), workdir, **folders),
            "memory": memory,
            "text": text.stem,
            "recalled": {str(windows): recalled(pretrained, int(windows * WINDOW)) for windows in DISTANCES},
            "loss": studies.rows_of(workdir, "validation")[-1]["loss"],
            **studies.time_of(workdir),
        }

    return Job(name, command, record)


def report(measured: dict[str, Record]) -> None:
    """Print the share of needles that are recalled, by memory and distance."""
    head = ("memory, in windows", *(f"{distance:g} windows" for distance in DISTANCES), "held-out loss", "seeds")
    print(f"| {' | '.join(head)} |\n{'|---' * len(head)}|")
    for memory in MEMORIES:
        runs = [run for run in measured.values() if (run["text"], run["memory"]) == ("far", memory)]
        if not runs:
            continue
        shares = [list(_shares(runs, distance)) for distance in DISTANCES]
        cells = [f"{statistics.mean(found):.0%} ({min(found):.0%} to {max(found):.0%})" for found in shares]
        loss = f"{statistics.mean(run['loss'] for run in runs):.3f}"
        print(f"| {' | '.join((f'{memory / WINDOW:g}', *cells, loss, str(len(runs))))} |")
    print(f"\n{sum(run['seconds'] for run in measured.values()) / 3600:.1f} CPU hours")


def _shares(runs: list[Record], distance: float) -> Iterator[float]:
    return (run["recalled"][str(distance)] for run in runs)


if __name__ == "__main__":
    main()
