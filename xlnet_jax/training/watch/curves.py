"""Picture of a run: training and held-out loss over steps, against the unigram line."""

import math
from typing import Any

import numpy as np
from etils import epath

from xlnet_jax.objectives.plm import PLM
from xlnet_jax.objectives.record import Record
from xlnet_jax.storage.pictures import write_png


def draw_curves(records: list[dict[str, Any]], unigram_nats: float, path: epath.Path, objective: Record = PLM) -> None:
    """Write a PNG. records: as in metrics.jsonl."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    train, held_out = (
        np.array(
            [(r["step"], r["loss"]) for r in records if r["split"] == split and math.isfinite(r.get("loss", math.nan))]
        ).reshape(-1, 2)
        for split in ("train", "validation")
    )
    if len(train):
        axes.plot(*train.T, lw=1, color="tab:blue", alpha=0.3)
        axes.plot(train[:, 0], smoothed(train[:, 1]), color="tab:blue", label="training, running mean")
    if len(held_out):
        axes.plot(*held_out.T, marker="o", color="tab:red", label=f"held out, {held_out[-1, 1]:.2f} at the end")
    axes.axhline(unigram_nats, ls="--", color="gray", label=f"unigram line, {unigram_nats:.2f}")
    axes.set(xlabel="steps", ylabel=f"{objective.name.upper()} loss, nats per target", title=objective.title)
    axes.grid(alpha=0.3)
    axes.legend()
    write_png(figure, path)


def smoothed(values: np.ndarray, reach: int = 3) -> np.ndarray:
    """Return the mean of each value and up to `reach` neighbours on either side: one batch's loss is noisy."""
    window = np.ones(2 * reach + 1)
    sums, counts = (np.convolve(v, window)[reach : reach + len(v)] for v in (values, np.ones_like(values)))
    return sums / np.maximum(counts, 1)
