"""Picture of a window: the keys that each row may see. If the query stream predicts, it shows both streams and the
target mapping.

The matrices are drawn below each other, with the same columns. A short window is drawn with its tokens on the axes, a
long window as a whole and, next to it, enlarged around a position.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from etils import epath

from xlnet_jax.plots.style import DPI, lettering, shorten, write_png

if TYPE_CHECKING:
    from data_pipelines.inspect.window import WindowView

LEGIBLE = 40  # tokens on an axis
LARGEST = 2048  # rows and columns of a whole window; of a longer one some tokens are left out
LETTERING = 4  # with so few rows, the y axis has no label
CELL_INCHES = 0.17


class Cell(IntEnum):
    """Meaning of a cell of the picture."""

    HIDDEN = 0
    SEEN = 1
    SEEN_TARGET = 2
    ITSELF = 3
    UNUSED = 4
    MAPPED = 5


# Okabe and Ito's colors: color-blind readers can distinguish them, and so can readers of gray prints.
COLORS = {
    Cell.HIDDEN: ("#f2f2f2", "may not see"),
    Cell.SEEN: ("#8ecae6", "may see"),
    Cell.SEEN_TARGET: ("#e69f00", "may see: a target"),
    Cell.ITSELF: ("#003f5c", "itself: content rows see their own token"),
    Cell.UNUSED: ("#bdbdbd", "memory that is still empty"),
    Cell.MAPPED: ("#000000", "target mapping: 1"),
}
TARGET_COLOR, TEXT_COLOR = "#a84300", "#222222"

HOW_TO_READ = (
    "How to read it: each line is one row of the network, and its colored cells are what the row may see: tokens of "
    "the window, and memory of the text before it. "
)


@dataclass(frozen=True)
class Axis:
    """Columns and rows of a picture. `keys[i]` is the key of column i, from 0 to K - 1."""

    keys: np.ndarray  # int [columns]
    rows: np.ndarray  # int [rows], positions of the content rows
    targets: np.ndarray  # int [query rows], positions of the shown targets
    memory: int  # number of memory columns; they come first
    step: int = 1  # positions from one row to the next

    def row(self, position: float) -> float:
        """Return the row of a position."""
        return (position - int(self.rows[0])) / self.step

    def column(self, position: float) -> float:
        """Return the column of a position."""
        return self.memory + self.row(position)


def draw_window(window: "WindowView", origin: str, around: int, path: epath.PathLike) -> None:
    """Write a PNG. origin: where the window comes from. around: position around which a window of more than LEGIBLE
    tokens is enlarged."""
    from matplotlib.figure import Figure

    length, is_long = len(window.pieces), len(window.pieces) > LEGIBLE
    begin = min(max(around - LEGIBLE // 2, 0), max(length - LEGIBLE, 0))
    stretch = range(begin, min(begin + LEGIBLE, length))
    close = _close_axis(window, stretch)
    height = CELL_INCHES * (len(close.rows) + 2 * len(close.targets) * window.by_query_stream) + 5.4
    width = max(CELL_INCHES * len(close.keys) + 2.6, 7.5)
    with lettering(window.pieces, 8):
        figure = Figure(figsize=((1 + is_long) * width, height), dpi=DPI, layout="constrained")
        panels: Any = figure.subfigures(1, 1 + is_long, wspace=0.03, squeeze=False)[0]
        if is_long:
            _draw_whole(panels[0], window, stretch)
            panels[-1].suptitle(f"Enlarged: positions {stretch[0]} to {stretch[-1]}", fontsize=11)
        _draw_close(panels[-1], window, close)
        figure.suptitle(f"Who sees whom in one window of {length} tokens\n{origin}", fontsize=12)
        _draw_legend(figure, window)
        write_png(figure, path)


def _close_axis(window: "WindowView", stretch: range) -> Axis:
    # One column for the empty part of the memory and one for the filled part, since all slots of a part look the same.
    memory = []
    if window.mem_filled < window.mem_len:
        memory.append(window.mem_len - window.mem_filled - 1)
    if window.mem_filled:
        memory.append(window.mem_len - 1)
    inside = np.array(stretch)
    targets = window.targets[(window.targets >= stretch.start) & (window.targets < stretch.stop)]
    return Axis(np.concatenate([memory, window.mem_len + inside]).astype(int), inside, targets, len(memory))


def _whole_axis(window: "WindowView") -> Axis:
    step = -(-len(window.pieces) // LARGEST)
    positions, memory = np.arange(0, len(window.pieces), step), np.arange(0, window.mem_len, step)
    return Axis(np.concatenate([memory, window.mem_len + positions]), positions, window.targets, len(memory), step)


def _matrices(window: "WindowView", axis: Axis) -> list[np.ndarray]:
    """Return the cells of the content stream and, if the query stream predicts, of the query stream and the target
    mapping. Each is uint8 [rows, columns]."""
    is_target = np.isin(axis.keys - window.mem_len, window.marked)
    unused = axis.keys < window.mem_len - window.mem_filled

    def cells(sees: np.ndarray) -> np.ndarray:
        seen = np.where(is_target, Cell.SEEN_TARGET, Cell.SEEN)
        return np.where(unused, Cell.UNUSED, np.where(sees, seen, Cell.HIDDEN)).astype(np.uint8)

    content = cells(window.content_sees(axis.rows)[:, axis.keys])
    content[axis.keys == window.mem_len + axis.rows[:, None]] = Cell.ITSELF
    if not window.by_query_stream:
        return [content]
    is_mapped = axis.keys == window.mem_len + axis.targets[:, None]
    mapping = np.where(is_mapped, Cell.MAPPED, Cell.HIDDEN).astype(np.uint8)
    return [content, cells(window.query_sees(axis.targets)[:, axis.keys]), mapping]


def _draw_panels(panel: Any, window: "WindowView", axis: Axis, letter_height: float) -> list[Any]:
    from matplotlib.colors import ListedColormap

    colors = ListedColormap([COLORS[cell][0] for cell in Cell])
    matrices = _matrices(window, axis)
    heights = [max(len(m), letter_height) for m in matrices]
    plots = list(panel.subplots(len(matrices), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0])
    names = ("content stream", "query stream", "target mapping")
    shapes = ("one row per token", "one row per target", "one row per target")
    for axes, matrix, name, shape in zip(plots, matrices, names, shapes, strict=False):
        if len(matrix):
            axes.imshow(matrix, cmap=colors, vmin=0, vmax=len(Cell) - 1, aspect="auto", interpolation="nearest")
        else:
            axes.text(0.5, 0.5, "no targets here", ha="center", va="center", transform=axes.transAxes)
        axes.set_title(name, loc="left", fontsize=10, fontweight="bold")
        if len(matrix) > LETTERING:
            axes.set_ylabel(shape, color=TEXT_COLOR)
        axes.tick_params(length=0)
        if name == "target mapping" and axis.memory:
            axes.axvspan(-0.5, axis.memory - 0.5, color="white", zorder=2)
    if len(axis.targets) and len(plots) > 1:
        columns = [axis.column(position) for position in axis.targets.tolist()]
        size, width = (26, 1.2) if len(axis.rows) <= LEGIBLE else (5, 0.7)
        plots[1].scatter(columns, range(len(columns)), marker="x", s=size, color=TARGET_COLOR, linewidths=width)
    _separate_parts(plots, window, axis)
    return plots


def _separate_parts(plots: Sequence[Any], window: "WindowView", axis: Axis) -> None:
    """Draw lines between the parts of the window: thin ones between the fields of a record."""
    starts = [part.begin for part in window.parts if axis.rows[0] < part.begin <= axis.rows[-1]]
    for axes in plots:
        for begin in starts:
            inside = window.fields and window.document[begin] == window.document[begin - 1]
            width = 0.3 if inside else 0.8
            axes.axvline(axis.column(begin) - 0.5, color=TEXT_COLOR, lw=width)
            row = axis.row(begin) if axes is plots[0] else np.searchsorted(axis.targets, begin)
            axes.axhline(row - 0.5, color=TEXT_COLOR, lw=width)
        if axis.memory:
            axes.axvline(axis.memory - 0.5, color=TEXT_COLOR, lw=1.6)


def _shown_parts(window: "WindowView", axis: Axis) -> list[tuple[str, float, int]]:
    """Return (name, middle row, number of rows) of the shown parts of the window, without single special tokens."""
    shown = []
    for part in window.parts:
        begin, end = max(part.begin, int(axis.rows[0])), min(part.end, int(axis.rows[-1]) + axis.step)
        if part.name in ("reused", "A", "B", "text", *window.fields) and begin < end:
            shown.append((part.name, axis.row((begin + end - 1) / 2), end - begin))
    return shown


def _draw_whole(panel: Any, window: "WindowView", stretch: range) -> None:
    from matplotlib.patches import Rectangle

    axis = _whole_axis(window)
    plots = _draw_panels(panel, window, axis, len(axis.rows) / 8)
    names = [(name, middle + axis.memory) for name, middle, _ in _shown_parts(window, axis)]
    if window.fields:  # which are too narrow here: show the numbers of the records
        of_records = [np.flatnonzero(window.document == n) for n in np.unique(window.document[~window.is_padding])]
        names = [(f"record {n}" if n == 1 else str(n), axis.column(at.mean())) for n, at in enumerate(of_records, 1)]
    for name, x in [("memory", (axis.memory - 1) / 2), *names] if axis.memory else names:
        above = -0.5 - len(axis.rows) / 100
        plots[0].text(x, above, name, ha="center", va="bottom", fontweight="bold", color=TEXT_COLOR)
    plots[0].set_title("content stream", loc="left", fontsize=10, fontweight="bold", pad=18)
    step = 2 ** max(0, (window.mem_len + len(window.pieces)).bit_length() - 5)
    tokens = np.arange(0, len(window.pieces), step)
    plots[-1].set_xticks([axis.column(t) for t in tokens], [str(t) for t in tokens])
    plots[-1].set_xlabel("position in the window")
    plots[0].set_yticks([axis.row(t) for t in tokens], [str(t) for t in tokens])
    for axes in plots[1:]:
        axes.set_yticks([])
    corner, size = (axis.column(stretch.start) - 0.5, axis.row(stretch.start) - 0.5), len(stretch) / axis.step
    plots[0].add_patch(Rectangle(corner, size, size, fill=False, ec=TARGET_COLOR, lw=2, zorder=5))
    shown = "The whole window" if axis.step == 1 else f"The whole window, one token of {axis.step}"
    panel.suptitle(f"{shown} (the frame is enlarged on the right)", fontsize=11)


def _draw_close(panel: Any, window: "WindowView", axis: Axis) -> None:
    plots = _draw_panels(panel, window, axis, 2)
    positions, targets = axis.rows.tolist(), axis.targets.tolist()
    labels = {}
    for position in positions:
        label = shorten(window.pieces[position])
        if window.by_query_stream and position in window.place:
            label = f"{window.place[position]}·{label}"
        labels[position] = label
    columns = ["memory: empty" if key < window.mem_len - window.mem_filled else "memory: filled"
               for key in axis.keys[: axis.memory].tolist()] + list(labels.values())  # fmt: skip
    plots[0].xaxis.set_tick_params(labeltop=True, labelbottom=False, labelrotation=90)
    if window.by_query_stream:
        plots[-1].xaxis.set_tick_params(labelbottom=True)
    else:
        for position in set(positions) & set(window.predicted):
            labels[position] += f" → {shorten(window.predicted[position])}"
    plots[-1].set_xticks(range(len(columns)), columns, rotation=90)
    for axes, rows in zip(plots, (positions, targets, targets), strict=False):
        axes.set_yticks(range(len(rows)), [labels[position] for position in rows])
        axes.set_xticks(np.arange(len(columns)) - 0.5, minor=True)
        axes.set_yticks(np.arange(len(rows)) - 0.5, minor=True)
        axes.grid(which="minor", color="white", lw=0.6)
        axes.tick_params(which="minor", length=0)
        _mark_targets(axes.get_yticklabels(), rows, window)
    for axes in {plots[0], plots[-1]}:
        _mark_targets(axes.get_xticklabels()[axis.memory :], positions, window)
    for name, middle, rows in _shown_parts(window, axis):
        name = f"part {name}" if rows >= 3 and len(name) == 1 else name
        plots[0].text(len(axis.keys), middle, name, rotation=270, ha="center", va="center", fontweight="bold")


def _mark_targets(labels: Sequence[Any], positions: Sequence[int], window: "WindowView") -> None:
    for label, position in zip(labels, positions, strict=True):
        if position in window.marked:
            label.set(color=TARGET_COLOR, fontweight="bold")


def _draw_legend(figure: Any, window: "WindowView") -> None:
    from matplotlib.patches import Patch

    left_out = {Cell.UNUSED} if window.mem_filled == window.mem_len else set()
    left_out |= set() if window.marked else {Cell.SEEN_TARGET}
    left_out |= set() if window.by_query_stream else {Cell.MAPPED}
    patches = [
        Patch(facecolor=color, edgecolor="#888888", label=text)
        for cell, (color, text) in COLORS.items()
        if cell not in left_out
    ]
    width = int(figure.get_figwidth() * 15)
    written = "n·token is the n-th target. " if window.by_query_stream else "input → target marks a row that predicts. "
    apart = "Documents in a window do not see each other. " if window.data.pack and not window.fields else ""
    figure.legend(
        handles=patches,
        loc="outside lower center",
        ncols=3 if width > 180 else 2,
        frameon=False,
        fontsize=9,
        title="\n".join(textwrap.wrap(HOW_TO_READ + written + apart + window.legend.strip(), width)),
        title_fontproperties={"size": 9},
        alignment="left",
    )
