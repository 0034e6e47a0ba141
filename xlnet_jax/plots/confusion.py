"""Compare predictions with labels: a confusion matrix, or predicted against true numbers, and their pictures."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from etils import epath
from numpy.typing import ArrayLike

from xlnet_jax.plots.style import DPI, lettering, shorten, write_png

MOST_LABELS = 16  # more do not fit into a matrix: the most frequent confusions are listed instead
LISTED = 20  # confusions
LONGEST = 24  # characters of a label
COLOR = "#08306b"


def draw_confusion(
    labels: Sequence[str], true: ArrayLike, predicted: ArrayLike, unit: str, path: epath.PathLike, title: str
) -> None:
    """Write a PNG: a matrix of counts and shares of each true label, or the most frequent confusions of many labels.

    true, predicted: numbers of labels, int [examples]. unit: what is counted, such as examples.
    """
    counts, names = count_pairs(len(labels), true, predicted), [shorten(label, LONGEST) for label in labels]
    right, total = int(np.trace(counts)), int(counts.sum())
    with lettering([*labels, title], 9):
        figure = _matrix(names, counts) if len(names) <= MOST_LABELS else _list(names, counts, unit)
        figure.suptitle(f"{shorten(title, 80)}\n{right:,} of {total:,} {unit} right", fontsize=11)
        write_png(figure, path)


def count_pairs(labels: int, true: ArrayLike, predicted: ArrayLike) -> np.ndarray:
    """Return how often each true label was predicted as each label, int [labels, labels]."""
    counts = np.zeros((labels, labels), int)
    np.add.at(counts, (np.asarray(true, int), np.asarray(predicted, int)), 1)
    return counts


def shares_of_true(counts: np.ndarray) -> np.ndarray:
    """Return the share of each true label that is predicted as each label, float [labels, labels]; 0 for labels that do
    not occur."""
    return counts / np.maximum(counts.sum(1, keepdims=True), 1)


def confusions(counts: np.ndarray) -> list[tuple[int, int]]:
    """Return the wrong pairs (true, predicted), most frequent first."""
    wrong = counts * ~np.eye(len(counts), dtype=bool)
    order = np.argsort(-wrong, axis=None, kind="stable")[: np.count_nonzero(wrong)]
    return [(int(i), int(j)) for i, j in zip(*np.unravel_index(order, wrong.shape), strict=True)]


def _matrix(names: list[str], counts: np.ndarray) -> Any:
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    count, shares, longest = len(names), shares_of_true(counts), max(map(len, names))
    side = max(0.62 * count, 2.0)
    letters = 0.085 * longest
    figure = Figure(figsize=(max(side + letters + 1.9, 4.6), side + letters + 1.4), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    colors = LinearSegmentedColormap.from_list("", ["white", COLOR])
    image = axes.imshow(shares, cmap=colors, vmin=0, vmax=1)
    for (i, j), share in np.ndenumerate(shares):
        text = f"{counts[i, j]:,}\n{share:.0%}" if counts[i, j] else "0"
        axes.text(j, i, text, ha="center", va="center", fontsize=8, color="white" if share > 0.5 else "#222222")
    axes.set_xticks(range(count), names, rotation=0 if longest <= 6 else 90)
    axes.set_yticks(range(count), names)
    axes.tick_params(length=0)
    axes.set(xlabel="predicted", ylabel="true")
    figure.colorbar(image, ax=axes, shrink=0.8, format="{x:.0%}", label="share of the true label")
    return figure


def _list(names: list[str], counts: np.ndarray, unit: str) -> Any:
    from matplotlib.figure import Figure

    shown, shares = confusions(counts)[:LISTED], shares_of_true(counts)
    figure = Figure(figsize=(8, 1.6 + 0.3 * max(len(shown), 2)), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    values = [int(counts[pair]) for pair in shown]
    bars = axes.barh(range(len(shown)), values, color=COLOR)
    axes.bar_label(
        bars, [f" {n:,}, {shares[pair]:.0%} of the true label" for n, pair in zip(values, shown, strict=True)]
    )
    axes.set_yticks(range(len(shown)), [f"{names[i]} → {names[j]}" for i, j in shown])
    axes.set(xlabel=unit, ylim=(max(len(shown), 1) - 0.5, -0.5), xlim=(0, 1.6 * max(values, default=1)))
    axes.set_title(f"most frequent confusions of {len(names)} labels: true → predicted", fontsize=9, loc="left")
    if not shown:
        axes.text(0.5, 0.5, "none", ha="center", va="center", transform=axes.transAxes)
    axes.locator_params("x", integer=True)
    return figure


def draw_scatter(true: np.ndarray, predicted: np.ndarray, path: epath.PathLike, title: str) -> None:
    """Write a PNG with a point per example and the line where predicted = true. true, predicted: float [examples]."""
    from matplotlib.figure import Figure

    finite = np.isfinite(true) & np.isfinite(predicted)
    with lettering([title], 9):
        figure = Figure(figsize=(5.4, 5), dpi=DPI, layout="constrained")
        axes = figure.add_subplot()
        alpha = float(np.clip(200 / max(len(true), 1), 0.15, 0.7))
        axes.scatter(true[finite], predicted[finite], s=14, color=COLOR, alpha=alpha, linewidths=0)
        if finite.any():
            ends = [float(end) for end in (true[finite].min(), true[finite].max())]
            axes.plot(ends, ends, ls="--", color="gray", label="predicted = true")
            axes.legend()
        axes.set(xlabel="true", ylabel="predicted")
        axes.grid(alpha=0.3)
        figure.suptitle(f"{shorten(title, 80)}\n{len(true):,} examples, one point each", fontsize=11)
        write_png(figure, path)
