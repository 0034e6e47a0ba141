"""Results of a finetuning run: results.json, which names the best checkpoint, and the table of several seeds."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from etils import epath
from rich.console import Console
from rich.table import Table

from xlnet_jax.checkpoints.native import RESULTS
from xlnet_jax.storage.reading import read_versioned, write_versioned


@dataclass(frozen=True)
class Result:
    """Result of one seed."""

    task: str
    checkpoint: str  # relative to the workdir
    step: int
    metric: str  # by which the checkpoint was chosen; "" where nothing was evaluated
    metrics: Mapping[str, float]  # of that checkpoint on the examples of `eval`
    predictions: tuple[str, ...]  # files, relative to the workdir


def write_result(workdir: epath.Path, result: Result) -> None:
    """Write results.json of a run with one seed."""
    _write(workdir, asdict(result))


def summarize(workdir: epath.Path, by_seed: Mapping[int, Result], console: Console) -> None:
    """Print the metrics of each seed with their mean and sample standard deviation; write them to results.json, with
    the checkpoint of the seed whose metric is the highest."""
    names = list(dict.fromkeys(name for result in by_seed.values() for name in result.metrics))
    columns = {name: [r.metrics.get(name, float("nan")) for r in by_seed.values()] for name in names}
    mean = {name: float(np.mean(values)) for name, values in columns.items()}
    deviation = {name: float(np.std(values, ddof=1)) for name, values in columns.items()}
    table = Table("seed", "step", *names)
    for i, (seed, result) in enumerate(by_seed.items()):
        table.add_row(str(seed), f"{result.step:,}", *(f"{columns[name][i]:.4g}" for name in names))
    table.add_section()
    table.add_row("mean", "", *(f"{mean[name]:.4g} ± {deviation[name]:.2g}" for name in names))
    console.print(table)
    best_seed, best = max(by_seed.items(), key=lambda row: or_lowest(row[1].metrics.get(row[1].metric, math.nan)))
    _write(
        workdir,
        {
            "task": best.task,
            "checkpoint": f"{seed_folder(best_seed)}/{best.checkpoint}",
            "metric": best.metric,
            "mean": mean,
            "deviation": deviation,
            "seeds": {str(seed): asdict(result) for seed, result in by_seed.items()},
        },
    )


def read_results(workdir: str) -> Result:
    """Return the result in results.json of a finished run, its paths with the workdir before them; of several seeds the
    best one's checkpoint and predictions, and the mean of the metrics. Raises InputError where there is none."""
    folder = epath.Path(workdir)
    found = read_versioned(folder / RESULTS, "results")
    best, metrics, own = found, found.get("metrics", {}), folder
    if seeds := found.get("seeds"):
        seed = found["checkpoint"].partition("/")[0].removeprefix(seed_folder(""))
        best, metrics, own = seeds[seed], found["mean"], folder / seed_folder(seed)
    files = tuple(str(own / file) for file in best["predictions"])
    return Result(best["task"], str(own / best["checkpoint"]), best["step"], best["metric"], metrics, files)


def or_lowest(value: float) -> float:
    """Return a metric as a sort key: NaN is below all numbers."""
    return -math.inf if math.isnan(value) else value


def seed_folder(seed: int | str) -> str:
    """Return the folder of one seed of a run with several; "*" matches all."""
    return f"seed-{seed}"


def _write(workdir: epath.Path, values: dict[str, Any]) -> None:
    write_versioned(workdir / RESULTS, "results", values)
