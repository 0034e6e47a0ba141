"""Run the commands of a study, each on one core, and record the results of each run in a file.

Runs that have a file are skipped, and a stopped run resumes, so a study can take days and use several machines. The
files, benchmarks/measured/STUDY/RUN.json, are part of the repository; workdirs are not.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

from scipy.stats import t as student

from benchmarks.results import Table

MEASURED = Path(__file__).parent / "measured"
Record = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One command of a study."""

    name: str
    command: Callable[[Path], list[str]]
    """return the module and arguments, given the workdir"""
    record: Callable[[Path], Record]
    """return the results of the run, given its workdir"""


class Study:
    """Runs jobs and records their results."""

    def __init__(self, name: str, workdirs: Path, processors: int = 1):
        """processors: number of simultaneous runs, each on its own core."""
        self.folder, self._workdirs = MEASURED / name, workdirs
        # Runs of a study compile the same programs, and on CPUs these are not cached by default.
        self._compiled_once = {"JAX_COMPILATION_CACHE_DIR": str(workdirs.absolute() / "programs")}
        self._processors: Queue[int] = Queue()
        self._jobs_at_a_time = processors
        for processor in sorted(os.sched_getaffinity(0))[:processors]:
            self._processors.put(processor)

    def measured(self) -> dict[str, Record]:
        """Return the recorded results by name of the run."""
        return read(self.folder)

    def run(self, jobs: Iterable[Job]) -> None:
        """Run the jobs that are not recorded."""
        self.run_chains([job] for job in jobs)

    def run_chains(self, chains: Iterable[Iterable[Job]]) -> None:
        """Run the jobs that are not recorded, in order within each chain."""
        there = self.measured()

        def run_chain(chain: Iterable[Job]) -> None:
            for job in chain:
                if job.name not in there:
                    self._run(job)

        with ThreadPoolExecutor(self._jobs_at_a_time) as pool:
            list(pool.map(run_chain, chains))

    def _run(self, job: Job) -> None:
        workdir, began = self._workdirs / job.name, time.monotonic()
        workdir.mkdir(parents=True, exist_ok=True)
        processor = self._processors.get()
        print(f"{job.name} begins", flush=True)
        try:
            with (workdir / "output.txt").open("a") as output:
                # taskset rather than preexec_fn, which would fork this process with its threads.
                code = subprocess.run(
                    ["taskset", "-c", str(processor), sys.executable, "-m", *job.command(workdir)],
                    env=self._compiled_once | os.environ, stdout=output, stderr=output, check=False,
                ).returncode  # fmt: skip
        finally:
            self._processors.put(processor)
        if code:
            sys.exit(f"{job.name} ended with exit code {code}: {workdir / 'output.txt'}")
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{job.name}.json").write_text(json.dumps(job.record(workdir)) + "\n")
        print(f"{job.name} took {time.monotonic() - began:.0f} s", flush=True)


def add_arguments(parser: argparse.ArgumentParser, study: str) -> None:
    """Add the arguments of all studies."""
    parser.add_argument("--only", default="*", help="pattern of the runs to start")
    parser.add_argument("--jobs", type=int, default=1, help="number of simultaneous runs, each on its own core")
    parser.add_argument("--workdir", type=Path, default=Path("runs", study.replace("_", "-")))


def read(folder: Path) -> dict[str, Record]:
    """Return the records of a study by name of the run."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def run_module(module: str, *arguments: object) -> None:
    """Run a command outside of a study. Raises CalledProcessError if it fails."""
    subprocess.run([sys.executable, "-m", module, *map(str, arguments)], check=True)


def rows_of(workdir: Path, split: str) -> list[Record]:
    """Return the rows of a split in the metrics of a run."""
    rows = (json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines())
    return [row for row in rows if row["split"] == split]


def held_out_loss(workdir: Path) -> float:
    """Return the last held-out loss of a run."""
    return round(float(rows_of(workdir, "validation")[-1]["loss"]), 4)


def time_of(workdir: Path) -> Record:
    """Return the seconds of all runs in a workdir, by their own metrics, and the share of steps in them.

    They equal CPU seconds if nothing else used the core. Pauses before restarts do not count.
    """
    ends = [rows_of(file.parent, "time")[-1] for file in sorted(workdir.glob("**/metrics.jsonl"))]
    seconds = sum(end["wall"] - end["restarts"] for end in ends)
    return {"seconds": round(seconds, 1), "goodput": round(sum(end["updates"] for end in ends) / seconds, 4)}


def shown(command: list[str], workdir: Path, **folders: str) -> str:
    """Return a command without the paths of this machine.

    folders: name to show -> path.
    """
    text = " ".join(["python -m", *command]).replace(str(workdir), "WORKDIR")
    for name, path in folders.items():
        text = text.replace(path, name)
    return text


def tuning(
    name_of: Callable[[str, float], str], rates: Sequence[float], measured: Callable[[], Mapping[str, Record]]
) -> Iterator[tuple[str, float]]:
    """Yield kind and rate of the runs that choose a learning rate, each after the records that it depends on.

    First a short run (tune) at each rate; then, as longer runs want lower rates, full ones from the best of these
    downwards until the loss rises.

    name_of: returns the name of a run, given its kind and rate. rates: ascending. measured: returns the records that
    there are.
    """
    yield from (("tune", rate) for rate in rates)
    records = measured()
    if any(name_of("tune", rate) not in records for rate in rates):
        return
    best, losses = min(rates, key=lambda rate: float(records[name_of("tune", rate)]["loss"])), list[float]()
    for rate in [rate for rate in reversed(rates) if rate <= best]:
        yield "full", rate
        if not (record := measured().get(name_of("full", rate))):
            return
        losses.append(record["loss"])
        if losses[-1] > min(losses):
            return


def best_rate(
    name_of: Callable[[str, float], str], rates: Sequence[float], measured: Mapping[str, Record]
) -> float | None:
    """Return the learning rate of the full tuning run with the lowest loss; None before all of `tuning` have run."""
    names = {name_of(kind, rate): rate for kind, rate in tuning(name_of, rates, lambda: measured) if kind == "full"}
    if not names or not names.keys() <= measured.keys():
        return None
    return names[min(names, key=lambda name: float(measured[name]["loss"]))]


def rates_table(
    name_of: Callable[[str, str, float], str], contenders: Iterable[str], rates: Sequence[float],
    measured: Mapping[str, Record], short: str,
) -> Table:  # fmt: skip
    """Return the loss of each contender at each learning rate, in short and in full runs.

    name_of: returns the name of a run, given its contender, kind and rate. short: length of the short runs.
    """
    rows = []
    for contender in contenders:
        for kind, length in (("tune", short), ("full", "in full")):
            runs = [measured.get(name_of(contender, kind, rate)) for rate in rates]
            if any(runs):
                rows.append([f"{contender}, {length}", *(f"{run['loss']:.4f}" if run else "" for run in runs)])
    return ["held-out loss of its own objective at a rate of", *(f"{rate:g}" for rate in rates)], rows


def label(contender: str, kind: str) -> str:
    """Return the name of a group of runs in tables. kind: what they have as much of as the others."""
    return f"{contender}, equal {'FLOPs' if kind == 'flops' else kind}"


def with_interval(values: Sequence[float], sign: str = "") -> str:
    """Return the mean of values with the half width of its 95% interval of Student's t."""
    mean, count = statistics.mean(values), len(values)
    if count < 2:
        return f"{mean:{sign}.3f}"
    half = float(student.ppf(0.975, count - 1)) * statistics.stdev(values) / count**0.5
    return f"{mean:{sign}.3f} ± {half:.3f}"
