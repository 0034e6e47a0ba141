"""Picture of a finetuning run: the training loss, and at each evaluation the metric that chooses the checkpoint."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from etils import epath

from xlnet_jax.storage.pictures import write_png
from xlnet_jax.training.watch.curves import smoothed


def draw_learning_curves(
    records: Iterable[dict[str, Any]], metric: str, chosen: int | None, loss_unit: str, path: epath.Path, title: str
) -> bool:
    """Write a PNG; return False, and write nothing, where there is neither a loss nor an evaluation.

    records: as in metrics.jsonl. metric: its name; "" where nothing is evaluated. chosen: step of the best checkpoint.
    """
    records = list(records)
    losses, scores = _points(records, "train", "loss"), _points(records, "validation", metric)
    shown = [points for points in (losses, scores) if len(points)]
    if not shown:
        return False
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1 + 2.6 * len(shown)), dpi=110, layout="constrained")
    panels: list[Any] = list(figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0])
    figure.suptitle(title, fontsize=11, parse_math=False)
    if len(losses):
        axes = panels[0]
        axes.plot(*losses.T, lw=1, color="tab:blue", alpha=0.3)
        mark = {"marker": "o"} if len(losses) == 1 else {}
        axes.plot(losses[:, 0], smoothed(losses[:, 1]), color="tab:blue", label="training, running mean", **mark)
        axes.set_ylabel(f"loss, {loss_unit}")
    if len(scores):
        axes = panels[-1]
        axes.plot(*scores.T, marker="o", color="tab:red", label="held-out examples")
        axes.set_ylabel(metric)
        for step, value in scores[scores[:, 0] == chosen]:
            label = f"chosen: {value:.4g} at step {int(step):,}"
            axes.plot(step, value, marker="*", ms=16, ls="", color="tab:green", zorder=3, label=label)
    for axes in panels:
        axes.grid(alpha=0.3)
        axes.legend(fontsize=9)
    panels[-1].set_xlabel("steps")
    write_png(figure, path)
    return True


def _points(records: list[dict[str, Any]], split: str, name: str) -> np.ndarray:
    """Return [points, (step, value)] of the finite values, in order of the steps."""
    values = {r["step"]: r[name] for r in records if r["split"] == split and name in r}
    return np.array([(step, value) for step, value in sorted(values.items()) if math.isfinite(value)]).reshape(-1, 2)
