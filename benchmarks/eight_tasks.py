"""Measure whether pretraining helps: finetune on eight tasks from a pretrained network and from random weights.

    python -m benchmarks.eight_tasks DATA --english tiny --chinese runs/zh [--only 'sst-2*'] [--jobs 2]
    python -m benchmarks.eight_tasks --report

DATA has glue/CoLA, glue/RTE, glue/SST-2 and glue/STS-B as GLUE publishes them, squad (train.json, dev.json), dream
(train.json, dev.json), chnsenticorp (train.tsv, dev.tsv) and people_daily_ner (train.txt, dev.txt).
benchmarks/studies.py explains how runs are stopped, resumed and recorded.

Both starts of a task have the same sizes, settings and tuning: a part of the training examples is set aside, each of
RATES is tried once on the rest, and each start keeps the rate that is best on that part. Then five seeds train on all
training examples. They are evaluated once, after their last step, on the published development set, which nothing was
chosen by.
"""

import argparse
import fnmatch
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import studies
from benchmarks.results import keep_table
from benchmarks.studies import MEASURED, Job, Record, Study

NAME = "eight_tasks"
STARTS = {"random": ["--reinitialize"], "pretrained": []}
RATES = (3e-4, 1e-3)
SEEDS = range(5)
TUNING_SEED = 100
LONG = 12
"""smallest number of words of a row of SST-2 that counts as a sentence"""
SHARED = "--model.dropout 0 --model.attention-dropout 0 --log.every-steps 50"
"""a network of 2 million parameters learns these tasks far better without dropout"""


# ---- examples that are set aside for tuning --------------------------------------------------------------------------

Parts = tuple[str, str]
"""contents of two files: the examples to train on, and those set aside"""


def _aside(items: list[str], is_aside: Callable[[int], bool], join: Callable[[list[str]], str]) -> Parts:
    kept, aside = ([item for n, item in enumerate(items) if is_aside(n) is wanted] for wanted in (False, True))
    return join(kept), join(aside)


def _tenth(number: int) -> bool:
    return number % 10 == 9


def split_table(text: str) -> Parts:
    """Set every tenth row aside. Both parts have the header."""
    header, *rows = text.splitlines(keepends=True)
    return _aside(rows, _tenth, lambda part: header + "".join(part))


def split_phrases(text: str) -> Parts:
    """Set every 40th of the long sentences of SST-2 aside, and remove rows that are phrases of them.

    SST-2's training rows include the phrases of its sentences. Most random rows are phrases of training sentences, so
    they would not measure performance on new sentences.
    """
    header, *rows = text.splitlines(keepends=True)
    phrases = [row.split("\t")[0].strip() for row in rows]
    is_long = [len(phrase.split()) >= LONG for phrase in phrases]
    aside = set([number for number, long in enumerate(is_long) if long][::40])
    sentences = "\n".join(phrases[number] for number in aside)
    kept = [row for row, phrase in zip(rows, phrases, strict=True) if phrase not in sentences]
    return header + "".join(kept), header + "".join(rows[number] for number in sorted(aside))


def split_rows(text: str) -> Parts:
    """Set every tenth row of a table without a header aside."""
    return _aside(text.splitlines(keepends=True), _tenth, "".join)


def split_sentences(text: str) -> Parts:
    """Set every tenth sentence aside. A blank line ends a sentence."""
    return _aside(text.strip().split("\n\n"), _tenth, lambda part: "\n\n".join(part) + "\n")


def split_list(text: str) -> Parts:
    """Set every tenth entry of a JSON list aside."""
    return _aside(json.loads(text), _tenth, json.dumps)


def split_articles(text: str) -> Parts:
    """Set the last article of a file in SQuAD's format aside."""
    articles = json.loads(text)
    last = len(articles["data"]) - 1
    return _aside(articles["data"], lambda number: number == last, lambda part: json.dumps(articles | {"data": part}))


# ---- the tasks -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """Row of the table."""

    name: str
    metric: str
    scale: int
    """factor of the metric in the table"""
    train: str
    dev: str
    split: Callable[[str], Parts]
    settings: str
    network: str = "english"

    def command(
        self, start: str, rate: float, seeds: Sequence[int], files: tuple[Path, Path], init: str, workdir: Path
    ) -> list[str]:
        """Return the module and arguments of a finetuning run. files: for training and for evaluation."""
        train, dev = map(str, files)
        at_the_end = ("--selection.every-steps", self.settings.split("--steps ")[1].split()[0])
        return [
            "xlnet_jax.finetune", "--init", init, *self.settings.split(), *SHARED.split(), *STARTS[start],
            "--optimizer.learning-rate", f"{rate:g}", "--seeds", *map(str, seeds), *at_the_end,
            "--train", train, "--eval", dev, "--workdir", str(workdir),
        ]  # fmt: skip


TASKS = (
    Task("people-daily-ner", "f1", 100, "people_daily_ner/train.txt", "people_daily_ner/dev.txt", split_sentences,
         "--task ner --steps 600 --data.batch-size 16 --data.seq-len 128", "chinese"),
    Task("chnsenticorp", "accuracy", 100, "chnsenticorp/train.tsv", "chnsenticorp/dev.tsv", split_table,
         "--task classification --columns.text text_a --columns.label label --steps 400 --data.batch-size 16 "
         "--data.seq-len 128 --no-narrow-start", "chinese"),  # from the last token
    Task("sst-2", "accuracy", 100, "glue/SST-2/train.tsv", "glue/SST-2/dev.tsv", split_phrases,
         "--task sst-2 --steps 500 --data.batch-size 32 --data.seq-len 48 --head.summary mean"),
    Task("squad", "f1", 1, "squad/train.json", "squad/dev.json", split_articles,
         "--task squad --steps 300 --data.batch-size 16 --data.seq-len 192 --data.buckets 192 --data.max-query-len 32 "
         "--optimizer.layer-decay 1"),
    Task("dream", "accuracy", 100, "dream/train.json", "dream/dev.json", split_list,
         "--task dream --steps 500 --data.batch-size 8 --data.seq-len 160 --data.max-query-len 40 --head.summary mean"),
    Task("sts-b", "average", 100, "glue/STS-B/train.tsv", "glue/STS-B/dev.tsv", split_table,
         "--task sts-b --steps 500 --data.batch-size 32 --data.seq-len 64 --head.summary mean"),
    Task("rte", "accuracy", 100, "glue/RTE/train.tsv", "glue/RTE/dev.tsv", split_table,
         "--task rte --steps 300 --data.batch-size 16 --data.seq-len 96 --head.summary mean"),
    Task("cola", "mcc", 100, "glue/CoLA/train.tsv", "glue/CoLA/dev.tsv", split_rows,
         "--task cola --steps 500 --data.batch-size 32 --data.seq-len 32 --head.summary mean"),
)  # fmt: skip


def parts_of(task: Task, data: Path, folder: Path) -> tuple[Path, Path]:
    """Return the files of training examples and of examples set aside, in a subfolder of `folder`."""
    learn, aside = (folder / task.name / f"{part}{Path(task.train).suffix}" for part in ("learn", "aside"))
    if not (learn.exists() and aside.exists()):
        learn.parent.mkdir(parents=True, exist_ok=True)
        for file, content in zip((learn, aside), task.split((data / task.train).read_text()), strict=True):
            file.write_text(content)
    return learn, aside


# ---- running them ----------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", type=Path)
    parser.add_argument("--english", default="tiny", help="pretrained network of the English tasks")
    parser.add_argument("--chinese", default="runs/zh", help="pretrained network of the Chinese tasks")
    studies.add_arguments(parser, NAME)
    parser.add_argument("--start", choices=STARTS, nargs="+", default=[*STARTS], help="run only these starts")
    parser.add_argument("--report", action="store_true", help="print the table of recorded runs, and exit")
    parser.add_argument("--metrics", action="store_true", help="print the means of all metrics below the table")
    given = parser.parse_args()
    if not given.report:
        study = Study(NAME, given.workdir, given.jobs)
        tasks = [task for task in TASKS if fnmatch.fnmatch(task.name, given.only)]
        for stage in (tuning, seeds):
            study.run(job for task in tasks for job in stage(task, study.measured(), given))
    report(studies.read(MEASURED / NAME), given.metrics)


def tuning(task: Task, _: dict[str, Record], given: argparse.Namespace) -> Iterator[Job]:
    """Yield a run for each start and rate, on the examples that are not set aside."""
    files = parts_of(task, given.data, given.workdir / "data")
    for start in given.start:
        for rate in RATES:
            yield _job(f"{task.name}-{start}-tune-{rate:g}", task, start, rate, [TUNING_SEED], files, given)


def seeds(task: Task, measured: dict[str, Record], given: argparse.Namespace) -> Iterator[Job]:
    """Yield, for each start, the runs of all seeds at its best rate."""
    files = given.data / task.train, given.data / task.dev
    for start in given.start:
        yield _job(f"{task.name}-{start}", task, start, best_rate(task, start, measured), SEEDS, files, given)


def best_rate(task: Task, start: str, measured: dict[str, Record]) -> float:
    """Return the rate with the best score on the examples set aside."""
    return max(RATES, key=lambda rate: measured[f"{task.name}-{start}-tune-{rate:g}"]["scores"][0])


def _job(
    name: str,
    task: Task,
    start: str,
    rate: float,
    seeds: Sequence[int],
    files: tuple[Path, Path],
    given: argparse.Namespace,
) -> Job:
    command = partial(task.command, start, rate, seeds, files, getattr(given, task.network))

    def record(workdir: Path) -> Record:
        results = json.loads((workdir / "results.json").read_text())
        of_seeds = results["seeds"].values() if len(seeds) > 1 else [results]
        folders = {
            "DATA": str(given.data),
            "SPLIT": str(given.workdir / "data"),
            "CHINESE": given.chinese,
            "ENGLISH": given.english,
        }
        shown = studies.shown(command(workdir), workdir, **folders)
        scores = [result["metrics"][task.metric] for result in of_seeds]
        metrics = results["mean"] if len(seeds) > 1 else results["metrics"]
        baseline = results["baseline"]["metrics"][task.metric]
        return {
            "command": shown, "scores": scores, "baseline": baseline, "metrics": metrics, "rate": rate,
            **studies.time_of(workdir),
        }  # fmt: skip

    return Job(name, command, record)


# ---- the table -------------------------------------------------------------------------------------------------------


def report(measured: dict[str, Record], metrics: bool) -> None:
    """Print a row for each task whose seeds are all recorded. metrics: also print the means of all metrics."""
    rows = []
    for task in TASKS:
        if not all(f"{task.name}-{start}" in measured for start in STARTS):
            continue
        scores = {
            start: [task.scale * score for score in measured[f"{task.name}-{start}"]["scores"]] for start in STARTS
        }
        mean, deviation = ({s: f(scores[s]) for s in STARTS} for f in (statistics.mean, statistics.stdev))
        minutes = sum(run["seconds"] for name, run in measured.items() if name.startswith(f"{task.name}-")) / 60
        difference = mean["pretrained"] - mean["random"]
        apart = "yes" if difference > sum(deviation.values()) else "no"
        cells = [f"{mean[start]:.1f} ± {deviation[start]:.1f}" for start in STARTS]
        baseline = f"{task.scale * measured[f'{task.name}-random']['baseline']:.1f}"
        rows.append((task.name, task.metric, baseline, *cells, f"{difference:+.1f}", apart, f"{minutes:.0f}"))
    keep_table(
        "eight-tasks",
        ("task", "metric", "baseline", "from random weights", "pretrained", "difference", "separated", "CPU minutes"),
        rows,
    )
    for run in (f"{task.name}-{start}" for task in TASKS for start in STARTS if metrics):
        if run in measured:
            means = (f"{metric} {value:.3f}" for metric, value in measured[run]["metrics"].items())
            print(f"\n{run}: {', '.join(means)}")


if __name__ == "__main__":
    main()
