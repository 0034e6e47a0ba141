"""Train networks of SASRec's size on the sessions of Amazon Games, and rank the last item of each user.

    python -m benchmarks.sessions amazon_games.txt.gz [--contenders plm clm] [--dropout 0.2] [--seeds 0] [--jobs 2]
    python -m benchmarks.sessions amazon_games.txt.gz --collator [--jobs 2]
    python -m benchmarks.sessions --report

The file is that of SASRec's repository (Kang and McAuley 2018, commit e3738967): lines `user item`, in the order of
time. As in their protocol, the last item of a user is for the test, the one before for validation, and the network
learns from the others; at the test it reads all items before the last. Users with fewer than three items are left out.
The items of the vocabulary are those of the training part: other targets count as missed.

SETTINGS has the network: 2 layers of width 64 with one head, where SASRec's width is 50, and sequences of at most 50
items, the newest ones. The loss is the cross-entropy over all items; theirs has one negative item a target. An item
occurs ten times in the text, so its embedding needs larger steps than that of a word: Muon with a rate of 1.5e-2 or
3e-2 had learned more in 600 steps (8.63 and 8.61 nats per held-out item) than AdamW with 3e-3 and their dropout of 0.5
in 2,000 (8.95).

--collator compares three ways to draw targets and orders with the same network and number of steps: ours, in which
every item is a target; spans of a sixth of the items, as for prose; and transformers' collator, which also draws a
sixth (benchmarks/collator_plm.py).

Prints hit rate and NDCG at 10 among 100 sampled items, beside SASRec's published numbers, and among all items, beside
item-kNN and popularity: means and deviations over seeds, or the interval over users of one run. benchmarks/studies.py
explains how runs are stopped, resumed and recorded.
"""

import argparse
import fnmatch
import gzip
import itertools
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks import studies
from benchmarks.modern import flags
from benchmarks.results import keep_table
from benchmarks.studies import Job, Record, Study, run_module

NAME = "sessions"
OF_PAPER = {"100 sampled items": {"SASRec": (0.7410, 0.5360), "PopRec": (0.4724, 0.2779)}}
"""published numbers (Kang and McAuley 2018, table 3)"""
LONGEST = 50
WINDOW = LONGEST + 2
"""<s>, the items of a session, <eod>"""
STEPS, DROPOUT = 3_000, 0.2
SETTINGS = f"""--fields items:item --hold-out last --long cut
    --model.num-layers 2 --model.d-model 64 --model.num-heads 1 --model.d-head 64 --model.d-ff 64 --model.mem-len 0
    --data.seq-len {WINDOW} --data.batch-size 16
    --optimizer.learning-rate 2e-2 --optimizer.matrix-rate 1 --optimizer.warmup-steps 100
    --eval.every-steps 1500 --checkpoint.every-steps 1500 --checkpoint.keep 2""".split()
TARGETS = {
    "plm": ["--objective", "plm"],
    "plm-sixth": ["--objective", "plm", "--data.targets", "spans", "--data.num-predict", str(round(WINDOW / 6))],
    "collator": ["--objective", "plm"],
    "clm": ["--objective", "clm"],
}
"""settings of each contender: plm predicts every item of a session in a random order, clm from left to right"""
CONTENDERS = ("plm", "clm")
OF_COLLATOR = ("plm", "plm-sixth", "collator")
TABLES = {"100 sampled items": ("HR@10", "NDCG@10"), "all items": ("HR@10", "HR@20", "NDCG@10", "MRR@10")}


# ---- the text --------------------------------------------------------------------------------------------------------


def histories_of(file: Path) -> list[list[str]]:
    """Return the items of each user with at least three."""
    with gzip.open(file, "rt") as lines:
        rows = [line.split() for line in lines]
    histories = [[item for _, item in group] for _, group in itertools.groupby(rows, lambda row: row[0])]
    return [history for history in histories if len(history) >= 3]


def write_texts(file: Path, folder: Path) -> tuple[Path, Path]:
    """Write the histories without the last item, to train, and with it, to test. Return both paths."""
    paths = folder / "train.txt", folder / "test.txt"
    if not all(path.exists() for path in paths):
        folder.mkdir(parents=True, exist_ok=True)
        histories = histories_of(file)
        for path, end in zip(paths, (-1, None), strict=True):
            path.write_text("".join(f"{' '.join(history[:end])}\n" for history in histories))
    return paths


# ---- runs ------------------------------------------------------------------------------------------------------------


def job(contender: str, seed: int, steps: int, dropout: float, train: Path, test: Path) -> Job:
    """Return the training of a contender. Its record has the tables of the test."""
    of_run = {"model.dropout": dropout, "model.attention-dropout": dropout, "steps": steps, "seed": seed}
    settings = [*SETTINGS, *TARGETS[contender], *flags(of_run)]

    def command(workdir: Path) -> list[str]:
        module = "benchmarks.collator_plm" if contender == "collator" else "xlnet_jax.train"
        return [module, *settings, "--corpus", str(train), "--workdir", str(workdir)]

    def record(workdir: Path) -> Record:
        out = workdir / "next-items.json"  # by another process, which gives its memory back
        run_module("xlnet_jax.evaluate", workdir, "--next-item", "--text", test, "--out", out, "--overwrite")
        shown = studies.shown(command(workdir), workdir, TRAIN=str(train))
        return {"command": shown, **studies.time_of(workdir), **json.loads(out.read_text())}

    return Job(f"{contender}-{steps}-{dropout:g}-seed-{seed}", command, record)


def report(measured: dict[str, Record]) -> None:
    """Print the tables of the recorded runs."""
    groups = {name: [*runs] for name, runs in itertools.groupby(measured, lambda run: run.rpartition("-seed-")[0])}
    for table, metrics in TABLES.items():

        def row(
            name: str, runs: Sequence[str], who: str, table: str = table, metrics: Sequence[str] = metrics
        ) -> list[str]:
            return [name, *(_cell([measured[run][table][metric][who] for run in runs]) for metric in metrics)]

        rows = [
            row("{}, {} steps, dropout {}, ".format(*name.rsplit("-", 2)) + f"seeds: {len(runs)}", runs, "model")
            for name, runs in groups.items()
        ]
        rows += [row(who, [*measured][:1], who) for who in ("item-kNN", "popularity")]
        if table in OF_PAPER:
            rows += [[f"{name}, published", *map(str, values)] for name, values in OF_PAPER[table].items()]
        keep_table(f"sessions-{table.split()[0]}", [f"among {table}", *metrics], rows)


def _cell(of_runs: Sequence[Record]) -> str:
    """Return the mean of several runs and its deviation; or the value of one with its interval over users."""
    if len(of_runs) == 1:
        return "{value:.4f} ({low:.4f} to {high:.4f})".format(**of_runs[0])
    values = [run["value"] for run in of_runs]
    return f"{statistics.fmean(values):.4f} ± {statistics.stdev(values):.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", help="amazon_games.txt.gz")
    parser.add_argument("--contenders", nargs="+", default=CONTENDERS, choices=sorted(TARGETS))
    parser.add_argument(
        "--collator", action="store_true", help="compare with the collator: its contenders, three seeds"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--dropout", type=float, default=DROPOUT)
    parser.add_argument("--report", action="store_true", help="only print the tables of the recorded runs")
    studies.add_arguments(parser, NAME)
    given = parser.parse_args()
    study = Study(NAME, given.workdir, given.jobs)
    if not given.report:
        contenders, seeds = (OF_COLLATOR, range(3)) if given.collator else (given.contenders, given.seeds)
        texts = write_texts(given.file, given.workdir)
        jobs = [job(name, seed, given.steps, given.dropout, *texts) for seed in seeds for name in contenders]
        study.run(job for job in jobs if fnmatch.fnmatch(job.name, given.only))
    report(study.measured())


if __name__ == "__main__":
    main()
