"""Measure what each part of finetune's settings for narrow networks gains over the settings of the task.

    python -m benchmarks.narrow_start DATA [--only 'sts-b*'] [--jobs 2]
    python -m benchmarks.narrow_start --report

DATA is as for benchmarks/eight_tasks.py. tiny is finetuned with three seeds on its training examples, and evaluated on
the part of them that is set aside. benchmarks/studies.py explains how runs are stopped, resumed and recorded.
"""

import argparse
import fnmatch
import json
import statistics
from pathlib import Path

from benchmarks import studies
from benchmarks.eight_tasks import TASKS, Task, parts_of
from benchmarks.results import keep_table
from benchmarks.studies import MEASURED, Job, Record, Study

NAME = "narrow_start"
NAMES = ("sts-b", "rte", "cola", "sst-2", "squad")
SEEDS = range(3)
_RATE, _DROPOUT, _SUMMARY = (
    ("--optimizer.learning-rate", "1e-3"),
    ("--model.dropout", "0", "--model.attention-dropout", "0"),
    ("--head.summary", "mean"),
)
_TASKS_OWN = ("--no-narrow-start",)
STARTS: dict[str, tuple[str, ...]] = {
    "own": _TASKS_OWN,
    "rate": _TASKS_OWN + _RATE,
    "rate and dropout": _TASKS_OWN + _RATE + _DROPOUT,
    "rate and summary": _TASKS_OWN + _RATE + _SUMMARY,
    "all": (),
}
"""settings of each column of the table"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", type=Path)
    studies.add_arguments(parser, NAME)
    parser.add_argument("--report", action="store_true", help="print the table of recorded runs, and exit")
    given = parser.parse_args()
    if not given.report:
        if given.data is None:
            parser.error("give DATA, or --report")
        tasks = [task for task in TASKS if task.name in NAMES and fnmatch.fnmatch(task.name, given.only)]
        Study(NAME, given.workdir, given.jobs).run(job(task, start, given) for task in tasks for start in STARTS)
    report(studies.read(MEASURED / NAME))


def job(task: Task, start: str, given: argparse.Namespace) -> Job:
    """Return the finetuning run of a task with the settings of one column."""
    learn, aside = parts_of(task, given.data, given.workdir / "data")
    settings = task.settings.removesuffix(" ".join(_SUMMARY)).split()
    steps = settings[settings.index("--steps") + 1]

    def command(workdir: Path) -> list[str]:
        return [
            "xlnet_jax.finetune", "--init", "tiny", *settings, *STARTS[start], "--selection.every-steps", steps,
            "--seeds", *map(str, SEEDS), "--train", str(learn), "--eval", str(aside), "--workdir", str(workdir),
        ]  # fmt: skip

    def record(workdir: Path) -> Record:
        results = json.loads((workdir / "results.json").read_text())
        return {
            "command": studies.shown(command(workdir), workdir, SPLIT=str(given.workdir / "data")),
            "scores": [result["metrics"][task.metric] for result in results["seeds"].values()],
            **studies.time_of(workdir),
        }

    return Job(name_of(task, start), command, record)


def name_of(task: Task, start: str) -> str:
    """Return the name of a run."""
    return f"{task.name}-{start.replace(' ', '-')}"


def report(measured: dict[str, Record]) -> None:
    """Print a row for each task whose columns are all recorded."""
    rows = []
    for task in TASKS:
        runs = [measured.get(name_of(task, start)) for start in STARTS]
        if all(runs):
            scores = [[task.scale * score for score in run["scores"]] for run in runs if run]
            cells = [f"{statistics.mean(of_start):.1f} ± {statistics.stdev(of_start):.1f}" for of_start in scores]
            rows.append((task.name, task.metric, *cells))
    keep_table("narrow-start", ("task", "metric", *STARTS), rows)
    print(f"\n{sum(run['seconds'] for run in measured.values()) / 60:.0f} CPU minutes")


if __name__ == "__main__":
    main()
