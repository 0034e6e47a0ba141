"""Picture of a comparison: one panel of held-out losses, and one for each task."""

from typing import Any

from etils import epath

from xlnet_jax.comparison.budget import COST
from xlnet_jax.comparison.report import Comparison
from xlnet_jax.storage.pictures import write_png

COLUMNS = 3


def draw(comparison: Comparison, path: epath.Path) -> None:
    """Write a PNG."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    panels = 1 + len(comparison.metrics)
    columns = min(panels, COLUMNS)
    rows = -(-panels // columns)
    height = max(3.6, 1.4 + 0.32 * len(comparison.contenders))
    figure = Figure(figsize=(5.2 * columns, height * rows), dpi=120, layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    strong_then_light = [*range(0, 20, 2), *range(1, 20, 2)]
    colors = {name: colormaps["tab20"](i) for name, i in zip(comparison.contenders, strong_then_light, strict=False)}
    _draw_losses(axes[0], comparison, colors)
    for one, task in zip(axes[1:], comparison.metrics, strict=False):
        _draw_task(one, comparison, task, colors)
    for unused in axes[panels:]:
        unused.axis("off")
    write_png(figure, path)


def _draw_losses(axes: Any, comparison: Comparison, colors: dict[str, Any]) -> None:
    """Draw a line for each seed, over the cost so far."""
    for name, config in comparison.contenders.items():
        cost = COST[comparison.equal](config)
        for i, outcome in enumerate(comparison.outcomes[name].values()):
            steps, losses = zip(*outcome.held_out, strict=True)
            spent = [step * cost for step in steps]
            axes.plot(spent, losses, marker=".", lw=1, color=colors[name], label=None if i else name)
    axes.set(xlabel=comparison.equal, ylabel="nats per target", title="held-out loss, each of its own objective")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _draw_task(axes: Any, comparison: Comparison, task: str, colors: dict[str, Any]) -> None:
    """Draw a point for each seed, and a line at their mean."""
    names = list(comparison.contenders)
    for row, name in enumerate(names):
        found = comparison.statistics(name)[task]
        values = list(found.seeds.values())
        axes.plot(values, [row] * len(values), "o", color=colors[name], alpha=0.6)
        axes.plot([found.mean] * 2, [row - 0.3, row + 0.3], color=colors[name], lw=2)
    axes.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.5, -0.5))
    axes.locator_params("x", nbins=5)  # the labels of more ticks would overlap
    axes.set(xlabel=comparison.metrics[task], title=f"{task}: seeds and their mean")
    axes.grid(alpha=0.3)
