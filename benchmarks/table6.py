"""Table 6 of the paper at a small scale: seven contenders that spend equal FLOPs, by five seeds, with their intervals.

    python -m benchmarks.table6 CORPUS DATA [--only 'plm-*'] [--jobs 2]
    python -m benchmarks.table6 --report

CORPUS is a folder of data_pipelines.prepare. DATA has glue/SST-2 and glue/CoLA as GLUE publishes them. Each job is
xlnet_jax.compare with one contender and one seed; benchmarks/studies.py says how jobs are stopped, resumed and
recorded. Seeds are paired: seed n draws the same blocks of text and the same order of examples for every contender.
"""

import argparse
import fnmatch
import itertools
import json
import statistics
from collections.abc import Iterator, Sequence
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
SEEDS = range(5)
FLOPS = 4e12
NETWORK = """--preset demo --model.num-layers 2 --model.d-model 96 --model.num-heads 3 --model.d-head 32
    --model.d-ff 384 --model.init-std 0.0924 --optimizer.learning-rate 4e-3 --optimizer.matrix-rate 0.6667
    --optimizer.warmup-steps 100 --eval.every-steps 1000 --eval.max-windows 512 --checkpoint.every-steps 500""".split()
TASKS = {"sst-2": ("glue/SST-2", "accuracy"), "cola": ("glue/CoLA", "mcc")}
"""name -> folder in DATA, metric"""
FINETUNE = """model.dropout=0 model.attention-dropout=0 optimizer.learning-rate=1e-3 head.summary=mean
    data.batch-size=32 steps=500 selection.every-steps=500
    sst-2.data.seq-len=48 cola.data.seq-len=32""".split()
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
        Study(NAME, given.workdir, given.jobs).run(
            _job(contender, seed, given.corpus, given.data)
            for seed, contender in itertools.product(SEEDS, CONTENDERS)
            if fnmatch.fnmatch(contender, given.only)
        )
    report(studies.read(MEASURED / NAME))


def command(contender: str, seed: int, corpus: str, data: Path, workdir: Path) -> list[str]:
    """Return module and arguments of one contender with one seed."""
    return [
        "xlnet_jax.compare", "--objectives", contender, "--seeds", str(seed), "--equal", "operations",
        "--budget", f"{FLOPS:g}", *NETWORK, "--corpus", corpus,
        "--tasks", *(f"{task}={data / folder}" for task, (folder, _) in TASKS.items()),
        "--finetune", *FINETUNE, "--workdir", str(workdir),
    ]  # fmt: skip


def _job(contender: str, seed: int, corpus: str, data: Path) -> Job:
    words = partial(command, contender, seed, corpus, data)

    def record(workdir: Path) -> Record:
        return {
            "command": studies.shown(words(workdir), workdir, CORPUS=corpus, DATA=str(data)),
            "results": json.loads((workdir / "results.json").read_text()),
            **studies.time_of(workdir),
        }

    return Job(f"{contender}-seed-{seed}", words, record)


# ---- the tables ------------------------------------------------------------------------------------------------------


def report(measured: dict[str, Record]) -> None:
    """Print scores by contender, and differences to the baseline with their intervals."""
    for task, (_, metric) in TASKS.items():
        scores = {contender: list(_scores(measured, contender, task)) for contender in CONTENDERS}
        complete = {contender: found for contender, found in scores.items() if len(found) == len(SEEDS)}
        if BASELINE not in complete:
            continue
        print(f"\n{task}, {metric}\n")
        print(f"| contender | mean | difference to {BASELINE} | {CONFIDENCE:.0%} interval | could have been seen |")
        print("|---|---|---|---|---|")
        for contender, found in complete.items():
            mean = f"{statistics.mean(found):.2f} ± {statistics.stdev(found):.2f}"
            if contender == BASELINE:
                print(f"| {contender} | {mean} | | | |")
                continue
            differences = np.subtract(found, complete[BASELINE])
            low, high = interval(differences)
            print(
                f"| {contender} | {mean} | {differences.mean():+.2f} | {low:+.2f} to {high:+.2f} | "
                f"{smallest_detectable(differences):.2f} |"
            )
    print(f"\n{sum(run['seconds'] for run in measured.values()) / 3600:.1f} CPU hours")


def _scores(measured: dict[str, Record], contender: str, task: str) -> Iterator[float]:
    for seed in SEEDS:
        if run := measured.get(f"{contender}-seed-{seed}"):
            score = run["results"]["contenders"][contender][task]["seeds"][str(seed)]
            yield 100 * score


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
