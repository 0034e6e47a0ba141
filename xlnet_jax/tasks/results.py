"""Results of a finetuning run: results.json, which names the best checkpoint, and the table of several seeds."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from etils import epath
from rich.console import Console
from rich.table import Table

from xlnet_jax.checkpoints.native import RESULTS
from xlnet_jax.storage.reading import write_versioned
from xlnet_jax.tasks.selection import or_lowest


@dataclass(frozen=True)
class Result:
    """Result of a run, or of one seed of it."""

    workdir: str
    """folder of the run: checkpoints, results.json, metrics.jsonl, predictions/"""
    task: str
    checkpoint: str
    """folder of the checkpoint that is the result, for `load`: the best one, or the last where nothing was evaluated;
    of several seeds that of the best; of predictions alone the one that made them"""
    step: int
    metric: str
    """metric by which it was chosen; "" where nothing was evaluated"""
    metrics: Mapping[str, float]
    """metrics of that checkpoint on the examples of `eval`; of several seeds their mean"""
    predictions: tuple[str, ...]
    """files of predictions"""


def write_result(workdir: epath.Path, result: Result) -> None:
    """Write results.json of a run with one seed."""
    _write(workdir, _row(workdir, result))


def summarize(workdir: epath.Path, by_seed: Mapping[int, Result], console: Console) -> Result:
    """Print the metrics of each seed with their mean and sample standard deviation; write them to results.json, with
    the checkpoint of the seed whose metric is the highest. Return that seed's result with the mean of the metrics."""
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
    best = max(by_seed.values(), key=lambda result: or_lowest(result.metrics.get(result.metric, math.nan)))
    _write(
        workdir,
        {
            "task": best.task,
            "checkpoint": _relative(workdir, best.checkpoint),
            "metric": best.metric,
            "mean": mean,
            "deviation": deviation,
            "seeds": {str(seed): _row(epath.Path(r.workdir), r) for seed, r in by_seed.items()},
        },
    )
    return replace(best, workdir=str(workdir), metrics=mean)


def seed_folder(seed: int | str) -> str:
    """Return the folder of one seed of a run with several; "*" matches all."""
    return f"seed-{seed}"


def _row(workdir: epath.Path, result: Result) -> dict[str, Any]:
    """Return a result with paths relative to its workdir, which may move."""
    row = asdict(result)
    del row["workdir"]
    paths = tuple(_relative(workdir, path) for path in result.predictions)
    return row | {"checkpoint": _relative(workdir, result.checkpoint), "predictions": paths}


def _relative(workdir: epath.Path, path: str) -> str:
    return path.removeprefix(f"{workdir}/")


def _write(workdir: epath.Path, values: dict[str, Any]) -> None:
    write_versioned(workdir / RESULTS, "results", values)
