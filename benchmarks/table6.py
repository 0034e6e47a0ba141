"""Table 6 of the paper at a small scale: seven contenders that spend equal FLOPs, by five seeds, with their intervals.

    python -m benchmarks.table6 CORPUS DATA [--only 'plm-*'] [--jobs 2]
    python -m benchmarks.table6 --report

CORPUS is a folder of data_pipelines.prepare. That of the recorded runs was made of the text and the tokenizer of
benchmarks/chinese.py, a character a piece, by

    python -m data_pipelines.prepare --source runs/zh-text.txt --tokenizer runs/zh/tokenizer --block-len 1152 \\
        --validation-fraction 0.02 --out CORPUS

DATA has chnsenticorp (train.tsv, dev.tsv). Each contender is finetuned on its first EXAMPLES reviews: with all of them,
a network of this size learns most of what pretraining has taught from the labels. Each job is xlnet_jax.compare with
one contender and one seed; benchmarks/studies.py says how jobs are stopped, resumed and recorded. Seeds are paired:
seed n draws the same blocks of text and the same order of examples for every contender. Random weights of the same
sizes, finetuned alike, show what pretraining is worth.
"""

import argparse
import fnmatch
import itertools
import json
import shutil
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from scipy import optimize, stats

from benchmarks import studies
from benchmarks.studies import MEASURED, Job, Record, Study

NAME = "table6"
BASELINE = "plm"
CONTENDERS = (
    BASELINE, "plm-no-memory", "plm-no-spans", "plm-no-bidirectional", "dae-transformer-xl", "bert", "clm",
)  # fmt: skip
RANDOM = "random weights"
SEEDS = range(5)
FLOPS = 1.5e13
NETWORK = """--preset demo --model.num-layers 2 --model.d-model 96 --model.num-heads 3 --model.d-head 32
    --model.d-ff 384 --model.init-std 0.0924 --data.num-predict 32 --optimizer.learning-rate 4e-3
    --optimizer.matrix-rate 0.6667 --optimizer.warmup-steps 100 --eval.every-steps 1000 --eval.max-windows 512
    --checkpoint.every-steps 1000""".split()
FOLDER, EXAMPLES = "chnsenticorp", 2_000
TASK, METRIC = "classification", "accuracy"
FINETUNE = {
    "columns.text": "text_a", "columns.label": "label", "head.summary": "mean", "model.dropout": "0",
    "model.attention-dropout": "0", "optimizer.learning-rate": "1e-3", "data.batch-size": "16", "data.seq-len": "128",
    "steps": "250", "selection.every-steps": "250",
}  # fmt: skip
POWER, CONFIDENCE = 0.8, 0.95
DRAWS = 10_000


# ---- running ---------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="?")
    parser.add_argument("data", nargs="?", type=Path)
    studies.add_arguments(parser, NAME)
    parser.add_argument("--report", action="store_true", help="print the tables of what has been measured, and end")
    given = parser.parse_args()
    if not given.report:
        if given.data is None:
            parser.error("give CORPUS and DATA, or --report")
        study, examples = Study(NAME, given.workdir, given.jobs), few_examples(given.data, given.workdir / "data")
        study.run(
            _job(contender, seed, given.corpus, examples)
            for seed, contender in itertools.product(SEEDS, CONTENDERS)
            if fnmatch.fnmatch(contender, given.only)
        )
        study.run([random_weights(given.workdir, examples)])
    report(studies.read(MEASURED / NAME))


def few_examples(data: Path, folder: Path) -> Path:
    """Return a folder with the first of the examples to learn from, and with all that are held out."""
    folder.mkdir(parents=True, exist_ok=True)
    header, *rows = (data / FOLDER / "train.tsv").read_text().splitlines(keepends=True)
    (folder / "train.tsv").write_text(header + "".join(rows[:EXAMPLES]))
    shutil.copy(data / FOLDER / "dev.tsv", folder)
    return folder


def command(contender: str, seed: int, corpus: str, examples: Path, workdir: Path) -> list[str]:
    """Return module and arguments of one contender with one seed."""
    return [
        "xlnet_jax.compare", "--objectives", contender, "--seeds", str(seed), "--equal", "operations",
        "--budget", f"{FLOPS:g}", *NETWORK, "--corpus", corpus, "--tasks", f"{TASK}={examples}",
        "--finetune", *(f"{name}={value}" for name, value in FINETUNE.items()), "--workdir", str(workdir),
    ]  # fmt: skip


def _job(contender: str, seed: int, corpus: str, examples: Path) -> Job:
    words = partial(command, contender, seed, corpus, examples)

    def record(workdir: Path) -> Record:
        results = json.loads((workdir / "results.json").read_text())["contenders"][contender]
        return {
            "command": studies.shown(words(workdir), workdir, CORPUS=corpus, EXAMPLES=str(examples)),
            "scores": {str(seed): results[TASK]["seeds"][str(seed)]},
            "results": results,
            **studies.time_of(workdir),
        }

    return Job(f"{contender}-seed-{seed}", words, record)


def random_weights(workdirs: Path, examples: Path) -> Job:
    """Return the finetuning of random weights, as large as the baseline's."""
    init = next((workdirs / f"{BASELINE}-seed-{SEEDS[0]}").glob("**/pretrained"))

    def words(workdir: Path) -> list[str]:
        settings = (word for name, value in FINETUNE.items() for word in (f"--{name}", value))
        return [
            "xlnet_jax.finetune", "--task", TASK, "--init", str(init), "--reinitialize", *settings,
            "--seeds", *map(str, SEEDS), "--train", str(examples / "train.tsv"), "--eval", str(examples / "dev.tsv"),
            "--workdir", str(workdir),
        ]  # fmt: skip

    def record(workdir: Path) -> Record:
        seeds = json.loads((workdir / "results.json").read_text())["seeds"]
        return {
            "command": studies.shown(words(workdir), workdir, PLM=str(init), EXAMPLES=str(examples)),
            "scores": {seed: of_seed["metrics"][METRIC] for seed, of_seed in seeds.items()},
            **studies.time_of(workdir),
        }

    return Job(RANDOM.replace(" ", "-"), words, record)


# ---- the tables ------------------------------------------------------------------------------------------------------


def report(measured: dict[str, Record]) -> None:
    """Print scores by contender, and differences to the baseline with their intervals."""
    scores = {contender: scores_of(measured, contender) for contender in (*CONTENDERS, RANDOM)}
    if len(scores[BASELINE]) < len(SEEDS):
        return
    print(f"| contender | steps | {METRIC} | difference to {BASELINE} | {CONFIDENCE:.0%} interval | could be seen |")
    print("|---|---|---|---|---|---|")
    for contender, found in scores.items():
        if len(found) < len(SEEDS):
            continue
        steps = measured[f"{contender}-seed-{SEEDS[0]}"]["results"]["steps"] if contender != RANDOM else 0
        cells = [contender, f"{steps:,}", f"{statistics.mean(found):.2f} ± {statistics.stdev(found):.2f}"]
        if contender == BASELINE:
            cells += ["", "", ""]
        else:
            differences = np.subtract(found, scores[BASELINE])
            low, high = interval(differences)
            cells += [
                f"{differences.mean():+.2f}", f"{low:+.2f} to {high:+.2f}", f"{smallest_detectable(differences):.2f}",
            ]  # fmt: skip
        print(f"| {' | '.join(cells)} |")
    print(f"\n{sum(run['seconds'] for run in measured.values()) / 3600:.1f} CPU hours")


def scores_of(measured: dict[str, Record], contender: str) -> list[float]:
    """Return the scores of a contender's seeds that have been measured, in percent."""
    runs = [run for name, run in measured.items() if name.partition("-seed-")[0] == contender.replace(" ", "-")]
    by_seed = {int(seed): 100 * score for run in runs for seed, score in run["scores"].items()}
    return [by_seed[seed] for seed in sorted(by_seed)]


def interval(differences: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Return the bootstrap interval of the mean of paired differences: quantiles of the means of pairs drawn with
    replacement (Efron & Tibshirani 1993, section 13.3)."""
    drawn = np.random.default_rng(0).choice(differences, (DRAWS, len(differences)))
    low, high = np.quantile(drawn.mean(1), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def smallest_detectable(differences: Sequence[float] | np.ndarray) -> float:
    """Return the smallest true difference that a paired t-test with as many seeds and the deviation of these
    differences finds with a probability of POWER, at a level of 1 - CONFIDENCE."""
    count = len(differences)
    error = statistics.stdev(map(float, differences)) / count**0.5
    critical = stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)
    # The test's other side is missed by far: below 0.001 at this power.
    return error * optimize.brentq(lambda shift: stats.nct.sf(critical, count - 1, shift) - POWER, 0, 4 * critical)


if __name__ == "__main__":
    main()
