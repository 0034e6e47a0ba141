"""Picture of a window: the keys that each row may see and, where the query stream predicts, the rows of both streams
and the positions that the target mapping gives to those of the query stream.

The matrices stand one above the other over the same columns. A short window is drawn with its tokens on the axes; a
long one whole, and beside it enlarged around a position.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from data_pipelines.inspect.glyphs import drawn, font_families
from data_pipelines.inspect.window_view import WindowView
from xlnet_jax.errors import InputError
from xlnet_jax.storage.files import complete_file

LEGIBLE = 40  # tokens on an axis
LARGEST = 2048  # tokens of a whole window that get a row and a column each; of a longer one some are left out
LETTERING = 4  # rows that are too few for a name beside them
CELL_INCHES = 0.17
DPI = 110


class Cell(IntEnum):
    """Meanings of a cell of the picture."""

    HIDDEN = 0
    SEEN = 1
    SEEN_TARGET = 2
    ITSELF = 3
    UNUSED = 4
    MAPPED = 5


# Okabe and Ito's colours: told apart by colour-blind readers, and by their lightness on paper.
COLOURS = {
    Cell.HIDDEN: ("#f2f2f2", "may not see"),
    Cell.SEEN: ("#8ecae6", "may see"),
    Cell.SEEN_TARGET: ("#e69f00", "may see: a target"),
    Cell.ITSELF: ("#003f5c", "itself: a content row knows what it reads"),
    Cell.UNUSED: ("#bdbdbd", "memory that holds nothing yet"),
    Cell.MAPPED: ("#000000", "target mapping: 1"),
}
TARGET_COLOUR, TEXT_COLOUR = "#a84300", "#222222"

HOW_TO_READ = (
    "How to read it. A row asks; the coloured cells of its line are what it may see: tokens of the window, and the "
    "memory of the text before it. "
)


@dataclass(frozen=True)
class Axis:
    """Columns and rows that a picture shows. `keys[i]` is the key of column i, an index of [0, K)."""

    keys: np.ndarray  # int [columns]
    rows: np.ndarray  # int [rows], positions of the content rows
    slots: np.ndarray  # int [slots], places in `targets`
    memory: int  # number of memory columns; they come first
    step: int = 1  # positions from one row to the next

    def row(self, position: float) -> float:
        """Return the place of a position among the rows."""
        return (position - int(self.rows[0])) / self.step

    def column(self, position: float) -> float:
        """Return the place of a position among the columns."""
        return self.memory + self.row(position)


def draw_window(view: WindowView, title: str, around: int, path: Path) -> None:
    """Writes the PNG `path`. around: the position that a window of more than LEGIBLE tokens is enlarged at.

    Raises InputError where it cannot be written.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    length, is_long = len(view.pieces), len(view.pieces) > LEGIBLE
    begin = min(max(around - LEGIBLE // 2, 0), max(length - LEGIBLE, 0))
    stretch = range(begin, min(begin + LEGIBLE, length))
    close = _close_axis(view, stretch)
    streams = 2 if view.by_query_stream else 0
    height = CELL_INCHES * (len(close.rows) + streams * len(close.slots)) + 5.4
    width = CELL_INCHES * len(close.keys) + 2.6
    # Draw pieces such as $ and \ as they are, not as mathematics.
    families = font_families(view.pieces)
    with mpl.rc_context({"text.parse_math": False, "font.family": families, "font.size": 8}):
        figure = Figure(figsize=((2 if is_long else 1) * max(width, 7.5), height), dpi=DPI, layout="constrained")
        panels: Any = figure.subfigures(1, 1 + is_long, wspace=0.03, squeeze=False)[0]
        if is_long:
            _draw_whole(panels[0], view, stretch)
        _draw_close(panels[-1], view, close, families, f"positions {stretch[0]} to {stretch[-1]}" if is_long else "")
        _annotate(figure, view, title)
        _save(figure, path)


def _close_axis(view: WindowView, stretch: range) -> Axis:
    # One column for the filled part of the memory and one for the empty part: all slots of a part look the same.
    kept = {view.mem_len - view.mem_filled - 1, view.mem_len - 1}
    memory = sorted(k for k in kept if 0 <= k < view.mem_len and (k == view.mem_len - 1 or view.mem_filled))
    inside = np.array(stretch)
    slots = np.flatnonzero((view.targets >= stretch.start) & (view.targets < stretch.stop))
    return Axis(np.concatenate([memory, view.mem_len + inside]).astype(int), inside, slots, len(memory))


def _whole_axis(view: WindowView) -> Axis:
    step = -(-len(view.pieces) // LARGEST)
    positions, memory = np.arange(0, len(view.pieces), step), np.arange(0, view.mem_len, step)
    slots = np.arange(len(view.targets))
    return Axis(np.concatenate([memory, view.mem_len + positions]), positions, slots, len(memory), step)


def _matrices(view: WindowView, axis: Axis) -> list[np.ndarray]:
    """Return the cells of the content stream and, where the query stream predicts, those of the query stream and of the
    target mapping: each [rows, columns]."""
    is_target = np.concatenate([np.zeros(view.mem_len, bool), view.is_target & (not view.predicts_next)])[axis.keys]
    unused = axis.keys < view.mem_len - view.mem_filled
    hidden, seen, itself, empty, mapped = (
        np.uint8(cell) for cell in (Cell.HIDDEN, Cell.SEEN, Cell.ITSELF, Cell.UNUSED, Cell.MAPPED)
    )
    of_seen = np.where(unused, empty, np.where(is_target, np.uint8(Cell.SEEN_TARGET), seen))
    of_hidden = np.where(unused, empty, hidden)
    targets = view.targets[axis.slots]

    def is_own(positions: np.ndarray) -> np.ndarray:
        return axis.keys == view.mem_len + positions[:, None]

    content = np.where(view.content_sees(axis.rows, axis.keys), of_seen, of_hidden)
    content[is_own(axis.rows)] = itself
    if not view.by_query_stream:
        return [content]
    query = np.where(view.query_sees(targets, axis.keys), of_seen, of_hidden)
    return [content, query, np.where(is_own(targets), mapped, hidden)]


def _draw_panels(panel: Any, view: WindowView, axis: Axis, letter_height: float) -> list[Any]:
    from matplotlib.colors import ListedColormap

    colours = ListedColormap([COLOURS[cell][0] for cell in Cell])
    matrices = _matrices(view, axis)
    heights = [max(len(m), letter_height) for m in matrices]
    plots = panel.subplots(len(matrices), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    names = ("content stream", "query stream", "target mapping")
    shapes = ("asks: a row a token", "asks: a row a target", "a row a target")
    for axes, matrix, name, shape in zip(plots, matrices, names, shapes, strict=False):
        if len(matrix):
            axes.imshow(matrix, cmap=colours, vmin=0, vmax=len(Cell) - 1, aspect="auto", interpolation="nearest")
        else:
            axes.text(0.5, 0.5, "no targets here", ha="center", va="center", transform=axes.transAxes)
        axes.set_title(name, loc="left", fontsize=10, fontweight="bold")
        if len(matrix) > LETTERING:
            axes.set_ylabel(shape, color=TEXT_COLOUR)
        axes.tick_params(length=0)
        if name == "target mapping" and axis.memory:
            axes.axvspan(-0.5, axis.memory - 0.5, color="white", zorder=2)
    own = view.targets[axis.slots].tolist()
    if own and len(plots) > 1:
        y, x = range(len(own)), [axis.column(position) for position in own]
        size = 26 if len(axis.rows) <= LEGIBLE else 5
        plots[1].scatter(x, y, marker="x", s=size, color=TARGET_COLOUR, linewidths=1.2 if size > 5 else 0.7)
    _separate(plots, view, axis)
    return list(plots)


def _separate(plots: Sequence[Any], view: WindowView, axis: Axis) -> None:
    """Draw lines between the parts of the window."""
    starts = [part.begin for part in view.parts if axis.rows[0] < part.begin <= axis.rows[-1]]
    for axes in plots:
        for begin in starts:
            axes.axvline(axis.column(begin) - 0.5, color=TEXT_COLOUR, lw=0.8)
        if axis.memory:
            axes.axvline(axis.memory - 0.5, color=TEXT_COLOUR, lw=1.6)
    for begin in starts:
        plots[0].axhline(axis.row(begin) - 0.5, color=TEXT_COLOUR, lw=0.8)
        row = np.searchsorted(view.targets[axis.slots], begin) - 0.5
        for axes in plots[1:]:
            axes.axhline(row, color=TEXT_COLOUR, lw=0.8)


def _shown_parts(view: WindowView, axis: Axis) -> Iterator[tuple[str, float, int]]:
    """Yield (name, middle in rows, rows) of the shown parts of the window, without those of one special token."""
    for part in view.parts:
        begin, end = max(part.begin, int(axis.rows[0])), min(part.end, int(axis.rows[-1]) + axis.step)
        if part.name in ("reused", "A", "B", "text") and begin < end:
            yield part.name, axis.row((begin + end - 1) / 2), end - begin


def _part_names_above(axes: Any, view: WindowView, axis: Axis) -> None:
    above = -0.5 - len(axis.rows) / 100
    names = [(name, middle + axis.memory) for name, middle, _ in _shown_parts(view, axis)]
    for name, x in [("memory", (axis.memory - 1) / 2), *names] if axis.memory else names:
        axes.text(x, above, name, ha="center", va="bottom", fontweight="bold", color=TEXT_COLOUR)


def _part_names_beside(axes: Any, view: WindowView, axis: Axis) -> None:
    for name, middle, rows in _shown_parts(view, axis):
        name = f"part {name}" if rows >= 3 and len(name) == 1 else name
        axes.text(len(axis.keys), middle, name, rotation=270, ha="center", va="center", fontweight="bold")


def _draw_whole(panel: Any, view: WindowView, stretch: range) -> None:
    from matplotlib.patches import Rectangle

    axis = _whole_axis(view)
    plots = _draw_panels(panel, view, axis, len(axis.rows) / 8)
    _part_names_above(plots[0], view, axis)
    plots[0].set_title("content stream", loc="left", fontsize=10, fontweight="bold", pad=18)
    step = 2 ** max(0, len(view.key_rank).bit_length() - 5)
    tokens = np.arange(0, len(view.pieces), step)
    plots[-1].set_xticks([axis.column(t) for t in tokens], [str(t) for t in tokens])
    plots[-1].set_xlabel("position in the window")
    plots[0].set_yticks([axis.row(t) for t in tokens], [str(t) for t in tokens])
    for axes in plots[1:]:
        axes.set_yticks([])
    corner, size = (axis.column(stretch.start) - 0.5, axis.row(stretch.start) - 0.5), len(stretch) / axis.step
    plots[0].add_patch(Rectangle(corner, size, size, fill=False, ec=TARGET_COLOUR, lw=2, zorder=5))
    shown = "The whole window" if axis.step == 1 else f"The whole window, one token of {axis.step}"
    panel.suptitle(f"{shown} (the frame is enlarged beside it)", fontsize=11)


def _draw_close(panel: Any, view: WindowView, axis: Axis, families: list[str], where: str) -> None:
    plots = _draw_panels(panel, view, axis, 2)
    shown, targets = axis.rows.tolist(), view.targets[axis.slots].tolist()
    rows = [shown, targets, targets][: len(plots)]
    memory = ["memory: empty" if key < view.mem_len - view.mem_filled else "memory: filled"
              for key in axis.keys[: axis.memory].tolist()]  # fmt: skip
    columns = [*memory, *(_label(view, p, families) for p in shown)]
    plots[0].xaxis.set_tick_params(labeltop=True, labelbottom=False, labelrotation=90)
    if len(plots) > 1:
        plots[-1].xaxis.set_tick_params(labelbottom=True)
    plots[-1].set_xticks(range(len(columns)), columns, rotation=90)
    for axes, positions in zip(plots, rows, strict=True):
        axes.set_yticks(range(len(positions)), [_row_label(view, p, families) for p in positions])
        axes.set_xticks(np.arange(len(columns)) - 0.5, minor=True)
        axes.set_yticks(np.arange(len(positions)) - 0.5, minor=True)
        axes.grid(which="minor", color="white", lw=0.6)
        axes.tick_params(which="minor", length=0)
        _paint(axes.get_yticklabels(), positions, view)
    for axes in {plots[0], plots[-1]}:
        _paint(axes.get_xticklabels()[axis.memory :], shown, view)
    _part_names_beside(plots[0], view, axis)
    if where:
        panel.suptitle(f"Enlarged: {where}", fontsize=11)


def _paint(ticks: Sequence[Any], positions: Sequence[int], view: WindowView) -> None:
    for tick, position in zip(ticks, positions, strict=True):
        if view.is_target[position] and not view.predicts_next:
            tick.set(color=TARGET_COLOUR, fontweight="bold")


def _label(view: WindowView, position: int, families: list[str]) -> str:
    text = drawn(view.pieces[position], families, f"id {view.input_ids[position]}")
    return f"{view.place[position]}·{text}" if view.by_query_stream and position in view.place else text


def _row_label(view: WindowView, position: int, families: list[str]) -> str:
    label = _label(view, position, families)
    if view.by_query_stream or position not in view.predicted:
        return label
    return f"{label} → {drawn(view.predicted[position], families, '?')}"


def _annotate(figure: Any, view: WindowView, title: str) -> None:
    from matplotlib.patches import Patch

    direction = "read backwards" if view.is_reversed else "read forwards"
    origin = f"{title}, step {view.step}, row {view.row}, {direction}"
    figure.suptitle(f"Who sees whom in one window of {len(view.pieces)} tokens\n{origin}", fontsize=12)
    told = {Cell.HIDDEN, Cell.SEEN, Cell.ITSELF}
    told |= {Cell.UNUSED} if view.mem_filled < view.mem_len else set()
    told |= set() if view.predicts_next else {Cell.SEEN_TARGET}
    told |= {Cell.MAPPED} if view.by_query_stream else set()
    patches = [
        Patch(facecolor=colour, edgecolor="#888888", label=text)
        for cell, (colour, text) in COLOURS.items()
        if cell in told
    ]
    apart = "Documents of a window do not see each other. " if view.data.pack else ""
    width = int(figure.get_figwidth() * 15)
    figure.legend(
        handles=patches,
        loc="outside lower center",
        ncols=3 if width > 180 else 2,
        frameon=False,
        fontsize=9,
        title="\n".join(textwrap.wrap(HOW_TO_READ + apart + view.filling.caption, width)),
        title_fontproperties={"size": 9},
        alignment="left",
    )


def _save(figure: Any, path: Path) -> None:
    try:
        with complete_file(path) as file:
            figure.savefig(file, format="png")
    except OSError as error:
        raise InputError(f"out {path} cannot be written: {error.strerror}") from None
