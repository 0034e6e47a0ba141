"""Repeat Table 6 of the paper at a small scale: seven contenders with equal FLOPs and five seeds, with intervals.

    python -m benchmarks.table6 CORPUS DATA [--only 'plm-*'] [--jobs 2]
    python -m benchmarks.table6 --report

CORPUS is a folder of data_pipelines.prepare. For the recorded runs it was made from the text and tokenizer of
benchmarks/chinese.py, in which each character is a piece, by

    python -m data_pipelines.prepare --source runs/zh-text.txt --tokenizer runs/zh/tokenizer --block-len 1152 \\
        --validation-fraction 0.02 --out CORPUS

DATA has chnsenticorp (train.tsv, dev.tsv). Each contender is finetuned on its first EXAMPLES reviews: with so few,
minutes of pretraining make a difference.

xlnet_jax.compare pretrains a contender with each seed. The score of a seed is the mean of FINETUNINGS finetuning runs,
which reduces their noise. Seeds are paired: for seed n, all contenders read the same blocks of text, and finetune on
the same order of examples. Random weights of the same sizes are finetuned too, to show what pretraining is worth.
benchmarks/studies.py explains how runs are stopped, resumed and recorded.
"""

import argparse
import fnmatch
import itertools
import json
import shutil
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import optimize, stats

from benchmarks import studies
from benchmarks.results import keep_table
from benchmarks.studies import MEASURED, Job, Record, Study

NAME = "table6"
BASELINE = "plm"
CONTENDERS = (
    BASELINE, "plm-no-memory", "plm-no-spans", "plm-no-bidirectional", "dae-transformer-xl", "bert", "clm",
)  # fmt: skip
RANDOM = "random weights"
TUNED = "-finetuned"
"""suffix of the names of finetuning runs"""
SEEDS = range(5)
FLOPS = 2.2e13
NETWORK = """--preset demo --optimizer.method adamw
    --model.num-layers 2 --model.d-model 96 --model.num-heads 3 --model.d-head 32
    --model.d-ff 384 --model.init-std 0.0924 --data.num-predict 32 --optimizer.learning-rate 4e-3
    --optimizer.matrix-rate 0.6667 --optimizer.warmup-steps 100 --eval.every-steps 1000 --eval.max-windows 512
    --checkpoint.every-steps 1000""".split()
FOLDER, EXAMPLES = "chnsenticorp", 2_000
TASK, METRIC, FINETUNINGS = "classification", "accuracy", 4
FINETUNE = """--columns.text text_a --columns.label label --head.summary mean --model.dropout 0
    --model.attention-dropout 0 --optimizer.learning-rate 1e-3 --data.batch-size 16 --data.seq-len 128 --steps 250
    --selection.every-steps 250 --log.every-steps 50""".split()
POWER, CONFIDENCE = 0.8, 0.95
DRAWS = 10_000


# ---- running ---------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="?")
    parser.add_argument("data", nargs="?", type=Path)
    studies.add_arguments(parser, NAME)
    parser.add_argument("--report", action="store_true", help="print the table of recorded runs, and exit")
    given = parser.parse_args()
    if not given.report:
        if given.data is None:
            parser.error("give CORPUS and DATA, or --report")
        study, examples = Study(NAME, given.workdir, given.jobs), few_examples(given.data, given.workdir / "data")
        study.run_chains(
            [
                pretraining(contender, seed, given.corpus),
                *(finetuning(of, seed, given.workdir, examples) for of in _finetuned(contender)),
            ]
            for seed, contender in itertools.product(SEEDS, fnmatch.filter(CONTENDERS, given.only))
        )
    report(studies.read(MEASURED / NAME))


def few_examples(data: Path, folder: Path) -> Path:
    """Return a folder with the first training examples and all development examples."""
    folder.mkdir(parents=True, exist_ok=True)
    header, *rows = (data / FOLDER / "train.tsv").read_text().splitlines(keepends=True)
    (folder / "train.tsv").write_text(header + "".join(rows[:EXAMPLES]))
    shutil.copy(data / FOLDER / "dev.tsv", folder)
    return folder


def pretraining(contender: str, seed: int, corpus: str) -> Job:
    """Return the pretraining run of a contender with a seed."""

    def command(workdir: Path) -> list[str]:
        return [
            "xlnet_jax.compare", "--objectives", contender, "--seeds", str(seed), "--equal", "operations",
            "--budget", f"{FLOPS:g}", *NETWORK, "--corpus", corpus, "--workdir", str(workdir),
        ]  # fmt: skip

    def record(workdir: Path) -> Record:
        results = json.loads((workdir / "results.json").read_text())["contenders"][contender]
        return {
            "command": studies.shown(command(workdir), workdir, CORPUS=corpus),
            "steps": results["updates"],
            "tokens": results["tokens"],
            "loss": results["held_out_loss"]["mean"],
            **studies.time_of(workdir),
        }

    return Job(_name(contender, seed), command, record)


def finetuning(contender: str, seed: int, workdirs: Path, examples: Path) -> Job:
    """Return the finetuning runs of a contender pretrained with a seed, or of random weights."""
    pretrained = workdirs / _name(BASELINE if contender == RANDOM else contender, seed)
    seeds = range(FINETUNINGS * seed, FINETUNINGS * (seed + 1))

    def command(workdir: Path) -> list[str]:
        if not (init := next(pretrained.glob("*/seed-*/pretrained"), None)):
            sys.exit(f"{pretrained} is gone: remove {MEASURED / NAME / pretrained.name}.json to pretrain it again")
        return [
            "xlnet_jax.finetune", "--task", TASK, "--init", str(init),
            *(["--reinitialize"] if contender == RANDOM else []), *FINETUNE, "--seeds", *map(str, seeds),
            "--train", str(examples / "train.tsv"), "--eval", str(examples / "dev.tsv"), "--workdir", str(workdir),
        ]  # fmt: skip

    def record(workdir: Path) -> Record:
        found = json.loads((workdir / "results.json").read_text())["seeds"]
        return {
            "command": studies.shown(command(workdir), workdir, PRETRAINED=str(pretrained), EXAMPLES=str(examples)),
            "scores": [of_seed["metrics"][METRIC] for of_seed in found.values()],
            **studies.time_of(workdir),
        }

    return Job(f"{_name(contender, seed)}{TUNED}", command, record)


def _finetuned(contender: str) -> tuple[str, ...]:
    """Return what is finetuned after pretraining a contender: the contender and, for the baseline, random weights."""
    return (contender, RANDOM) if contender == BASELINE else (contender,)


def _name(contender: str, seed: int) -> str:
    return f"{contender.replace(' ', '-')}-seed-{seed}"


# ---- the tables ------------------------------------------------------------------------------------------------------


def report(measured: dict[str, Record]) -> None:
    """Print losses and scores of the contenders, and differences from the baseline with intervals."""
    scores = {contender: scores_of(measured, contender) for contender in (*CONTENDERS, RANDOM)}
    if len(scores[BASELINE]) < len(SEEDS):
        return
    rows = []
    for contender, found in scores.items():
        if len(found) < len(SEEDS):
            continue
        pretrained = [measured[_name(contender, seed)] for seed in SEEDS if contender != RANDOM]
        cells = [contender, *_learned(pretrained), f"{statistics.mean(found):.2f} ± {statistics.stdev(found):.2f}"]
        if contender == BASELINE:
            cells += ["", "", ""]
        else:
            differences = np.subtract(found, scores[BASELINE])
            low, high = interval(differences)
            cells += [
                f"{differences.mean():+.2f}", f"{low:+.2f} to {high:+.2f}", f"{smallest_detectable(differences):.2f}",
            ]  # fmt: skip
        rows.append(cells)
    head = (
        "contender",
        "steps",
        "held-out loss",
        METRIC,
        f"difference to {BASELINE}",
        f"{CONFIDENCE:.0%} interval",
        "detectable",
    )
    keep_table("table6", head, rows)
    print(f"\n{sum(run['seconds'] for run in measured.values()) / 3600:.1f} CPU hours")


def _learned(pretrained: Sequence[Record]) -> tuple[str, str]:
    """Return the steps of pretraining and the mean held-out loss."""
    if not pretrained:
        return "0", ""
    return f"{pretrained[0]['steps']:,}", f"{statistics.mean(run['loss'] for run in pretrained):.3f}"


def scores_of(measured: dict[str, Record], contender: str) -> list[float]:
    """Return the score of each recorded seed of a contender, in percent: the mean of its finetuning runs."""
    names = (f"{_name(contender, seed)}{TUNED}" for seed in SEEDS)
    return [100 * statistics.mean(measured[name]["scores"]) for name in names if name in measured]


def interval(differences: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Return the bootstrap interval of the mean of paired differences: quantiles of means of pairs drawn with
    replacement (Efron & Tibshirani 1993, section 13.3)."""
    drawn = np.random.default_rng(0).choice(differences, (DRAWS, len(differences)))
    low, high = np.quantile(drawn.mean(1), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def smallest_detectable(differences: Sequence[float] | np.ndarray) -> float:
    """Return the smallest true difference that a paired t-test detects with probability POWER at a level of 1 -
    CONFIDENCE, given the number and deviation of these differences."""
    count = len(differences)
    error = statistics.stdev(map(float, differences)) / count**0.5
    critical = stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)
    # The other tail can be ignored: its probability is below 0.001 at this power.
    return error * optimize.brentq(lambda shift: stats.nct.sf(critical, count - 1, shift) - POWER, 0, 4 * critical)


if __name__ == "__main__":
    main()
