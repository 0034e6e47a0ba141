"""Picture of a comparison: a panel of held-out losses, and one for each task."""

from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from xlnet_jax.plots.style import write_png

COLUMNS = 3

Curves = Mapping[str, Sequence[Sequence[tuple[float, float]]]]
"""A curve of (cost, nats per target) for each seed, by the name of the contender"""
Scores = Mapping[str, Sequence[float]]
"""A score for each seed, by the name of the contender"""


def draw_comparison(
    losses: Curves, cost: str, tasks: Mapping[str, Scores], metrics: Mapping[str, str], path: epath.PathLike
) -> None:
    """Write a PNG. cost: name of what the losses are drawn over. metrics: name of each task's metric."""
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
    axes[0].set(xlabel=cost, ylabel="nats per target", title="held-out loss, each of its own objective")
    axes[0].grid(alpha=0.3)
    axes[0].legend(fontsize="small")
    for panel, (task, scores) in zip(axes[1:], tasks.items(), strict=False):
        _draw_task(panel, task, metrics[task], scores, colors)
    for unused in axes[panels:]:
        unused.axis("off")
    write_png(figure, path)


def _draw_task(axes: Any, task: str, metric: str, scores: Scores, colors: Mapping[str, Any]) -> None:
    """Draw a point for each seed, and a line at their mean."""
    for row, (name, values) in enumerate(scores.items()):
        axes.plot(values, [row] * len(values), "o", color=colors[name], alpha=0.6)
        axes.plot([sum(values) / len(values)] * 2, [row - 0.3, row + 0.3], color=colors[name], lw=2)
    axes.set(yticks=range(len(scores)), yticklabels=list(scores), ylim=(len(scores) - 0.5, -0.5))
    axes.locator_params("x", nbins=5)  # the labels of more ticks would overlap
    axes.set(xlabel=metric, title=f"{task}: seeds and their mean")
    axes.grid(alpha=0.3)
