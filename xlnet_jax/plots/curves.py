"""Curves over the steps of a run: losses of pretraining, losses and metrics of finetuning, and losses of the runs of a
comparison.

Records are the rows of metrics.jsonl: dicts with `step`, `split` and the numbers of that step.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from xlnet_jax.plots.style import DPI, write_png

Records = Sequence[Mapping[str, Any]]
COLUMNS = 3  # panels of a comparison side by side


def draw_curves(records: Records, unigram_nats: float, path: epath.PathLike, objective: str, title: str) -> None:
    """Write a PNG of the training and held-out loss, with the unigram line, in nats per target."""
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

    The metric's panel has the baseline as a dashed line where the records hold one. metric: its name; "" if nothing is
    evaluated. best: step of the checkpoint with the best metric.
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
        if len(baseline := _points(records, "validation", "baseline")):
            axes.axhline(baseline[-1, 1], ls="--", color="gray", label=f"baseline, {baseline[-1, 1]:.4g}")
        for step, value in scores[scores[:, 0] == best]:
            label = f"chosen: {value:.4g} at step {int(step):,}"
            axes.plot(step, value, marker="*", ms=16, ls="", color="tab:green", zorder=3, label=label)
    for axes in panels:
        axes.grid(alpha=0.3)
        axes.legend(fontsize=9)
    panels[-1].set_xlabel("steps")
    write_png(figure, path)
    return True


def draw_comparison(
    losses: Mapping[str, Sequence[Sequence[tuple[float, float]]]],
    cost: str,
    tasks: Mapping[str, Mapping[str, Sequence[float]]],
    metrics: Mapping[str, str],
    path: epath.PathLike,
) -> None:
    """Write a PNG.

    losses: curves of (cost, nats per target), one per seed, by contender. cost: label of the x axis. tasks: scores, one
    per seed, by task and contender. metrics: name of each task's metric.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    panels = 1 + len(tasks)
    columns = min(panels, COLUMNS)
    rows = -(-panels // columns)
    height = max(3.6, 1.4 + 0.32 * len(losses))
    figure = Figure(figsize=(5.2 * columns, height * rows), dpi=120, layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    strong_then_light = [*range(0, 20, 2), *range(1, 20, 2)]
    colors = {name: colormaps["tab20"](i) for name, i in zip(losses, strong_then_light, strict=False)}
    for name, curves in losses.items():
        for seed, curve in enumerate(curves):
            label = None if seed else name
            axes[0].plot(*zip(*curve, strict=True), marker=".", lw=1, color=colors[name], label=label)
    axes[0].set(xlabel=cost, ylabel="nats per target", title="held-out loss of each objective")
    axes[0].grid(alpha=0.3)
    axes[0].legend(fontsize="small")
    for panel, (task, scores) in zip(axes[1:], tasks.items(), strict=False):
        for row, (name, values) in enumerate(scores.items()):
            panel.plot(values, [row] * len(values), "o", color=colors[name], alpha=0.6)
            panel.plot([sum(values) / len(values)] * 2, [row - 0.3, row + 0.3], color=colors[name], lw=2)
        panel.set(yticks=range(len(scores)), yticklabels=list(scores), ylim=(len(scores) - 0.5, -0.5))
        panel.locator_params("x", nbins=5)  # the labels of more ticks would overlap
        panel.set(xlabel=metrics[task], title=f"{task}: seeds and their mean")
        panel.grid(alpha=0.3)
    for unused in axes[panels:]:
        unused.axis("off")
    write_png(figure, path)


def smooth(values: np.ndarray, reach: int = 3) -> np.ndarray:
    """Return the mean of each value and up to `reach` neighbors on either side, since the loss of a batch is noisy."""
    window = np.ones(2 * reach + 1)
    sums, counts = (np.convolve(v, window)[reach : reach + len(v)] for v in (values, np.ones_like(values)))
    return sums / np.maximum(counts, 1)


def _draw_training(axes: Any, losses: np.ndarray) -> None:
    axes.plot(*losses.T, lw=1, color="tab:blue", alpha=0.3)
    mark = {"marker": "o"} if len(losses) == 1 else {}
    axes.plot(losses[:, 0], smooth(losses[:, 1]), color="tab:blue", label="training, running mean", **mark)


def _points(records: Records, split: str, name: str) -> np.ndarray:
    """Return the finite values as [points, (step, value)], by step."""
    values = {r["step"]: r[name] for r in records if r["split"] == split and name in r}
    return np.array([(step, value) for step, value in sorted(values.items()) if math.isfinite(value)]).reshape(-1, 2)
