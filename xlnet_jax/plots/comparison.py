"""Picture of a comparison: a panel of held-out losses, and one for each task."""

from collections.abc import Mapping, Sequence

from etils import epath

from xlnet_jax.plots.style import write_png

COLUMNS = 3


def draw_comparison(
    losses: Mapping[str, Sequence[Sequence[tuple[float, float]]]],
    cost: str,
    tasks: Mapping[str, Mapping[str, Sequence[float]]],
    metrics: Mapping[str, str],
    path: epath.PathLike,
) -> None:
    """Write a PNG.

    losses: curves of (cost, nats per target), one a seed, by the name of the contender. cost: name of what they are
    drawn over. tasks: by task and contender a score for each seed. metrics: name of each task's metric.
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
    axes[0].set(xlabel=cost, ylabel="nats per target", title="held-out loss, each of its own objective")
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
