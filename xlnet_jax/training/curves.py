"""A picture of a run: training and held-out loss over updates, against the unigram line."""

from pathlib import Path
from typing import Any


def draw_curves(records: list[dict[str, Any]], unigram_nats: float, path: Path) -> None:
    """Writes a PNG. records as in metrics.jsonl."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for split, style in (
        ("train", {"lw": 1, "color": "tab:blue"}),
        ("validation", {"marker": "o", "color": "tab:red"}),
    ):
        points = [(r["step"], r["loss"]) for r in records if r["split"] == split]
        if points:
            name = "training" if split == "train" else f"held out, {points[-1][1]:.2f} at the end"
            axes.plot(*zip(*points, strict=True), label=name, **style)
    axes.axhline(unigram_nats, ls="--", color="gray", label=f"unigram line, {unigram_nats:.2f}")
    axes.set(xlabel="updates", ylabel="PLM loss, nats per target", title="Permutation language modelling")
    axes.grid(alpha=0.3)
    axes.legend()
    partial = path.with_suffix(".partial.png")
    figure.savefig(partial)
    partial.replace(path)
