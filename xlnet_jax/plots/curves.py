"""Curves over the steps of a run: the losses of pretraining, and of finetuning with the metric of each evaluation.

Records are those of metrics.jsonl: dicts with `step`, `split` and the numbers of that step.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from xlnet_jax.plots.style import DPI, write_png

Records = Sequence[Mapping[str, Any]]


def draw_curves(records: Records, unigram_nats: float, path: epath.PathLike, objective: str, title: str) -> None:
    """Write a PNG of training and held-out loss, and the loss of the unigram distribution, in nats per target."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    train, held_out = (_points(records, split, "loss") for split in ("train", "validation"))
    if len(train):
        _draw_training(axes, train)
    if len(held_out):
        axes.plot(*held_out.T, marker="o", color="tab:red", label=f"held out, {held_out[-1, 1]:.2f} at the end")
    axes.axhline(unigram_nats, ls="--", color="gray", label=f"unigram line, {unigram_nats:.2f}")
    axes.set(xlabel="steps", ylabel=f"{objective.upper()} loss, nats per target", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    write_png(figure, path)


def draw_learning_curves(
    records: Iterable[Mapping[str, Any]],
    metric: str,
    best: int | None,
    loss_unit: str,
    path: epath.PathLike,
    title: str,
) -> bool:
    """Write a PNG of the training loss and a metric; return False, and write nothing, if the records have neither.

    metric: its name; "" if nothing is evaluated. best: step of the checkpoint with the best metric.
    """
    records = list(records)
    losses, scores = _points(records, "train", "loss"), _points(records, "validation", metric)
    count = bool(len(losses)) + bool(len(scores))
    if not count:
        return False
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1 + 2.6 * count), dpi=DPI, layout="constrained")
    panels: list[Any] = list(figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0])
    figure.suptitle(title, fontsize=11, parse_math=False)
    if len(losses):
        _draw_training(panels[0], losses)
        panels[0].set_ylabel(f"loss, {loss_unit}")
    if len(scores):
        axes = panels[-1]
        axes.plot(*scores.T, marker="o", color="tab:red", label="held-out examples")
        axes.set_ylabel(metric)
        for step, value in scores[scores[:, 0] == best]:
            label = f"chosen: {value:.4g} at step {int(step):,}"
            axes.plot(step, value, marker="*", ms=16, ls="", color="tab:green", zorder=3, label=label)
    for axes in panels:
        axes.grid(alpha=0.3)
        axes.legend(fontsize=9)
    panels[-1].set_xlabel("steps")
    write_png(figure, path)
    return True


def smooth(values: np.ndarray, reach: int = 3) -> np.ndarray:
    """Return the mean of each value and up to `reach` neighbours on either side: one batch's loss is noisy."""
    window = np.ones(2 * reach + 1)
    sums, counts = (np.convolve(v, window)[reach : reach + len(v)] for v in (values, np.ones_like(values)))
    return sums / np.maximum(counts, 1)


def _draw_training(axes: Any, losses: np.ndarray) -> None:
    axes.plot(*losses.T, lw=1, color="tab:blue", alpha=0.3)
    mark = {"marker": "o"} if len(losses) == 1 else {}
    axes.plot(losses[:, 0], smooth(losses[:, 1]), color="tab:blue", label="training, running mean", **mark)


def _points(records: Records, split: str, name: str) -> np.ndarray:
    """Return [points, (step, value)] of the finite values, in order of the steps."""
    values = {r["step"]: r[name] for r in records if r["split"] == split and name in r}
    return np.array([(step, value) for step, value in sorted(values.items()) if math.isfinite(value)]).reshape(-1, 2)
