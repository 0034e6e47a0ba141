"""Attention weights of a text: an interactive HTML page to choose layer, head and row, or a picture of one head and of
all heads."""

import base64
import json
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from xlnet_jax.plots.style import DPI, lettering, shorten, write_png

UNIT = 65535  # the page stores weights as integers in units of 1 / 65535; 0 = not seen
CONTENT_COLOR, QUERY_COLOR, UNSEEN_COLOR = "#08306b", "#a63603", "#dcd7c9"  # as in attention.html
CELL_INCHES = 0.24
SMALLEST_INCHES = 4.2  # of a matrix
THUMBNAIL_INCHES = (0.5, 1.6)
TICKS = (0, 0.01, 0.05, 0.25, 0.5, 1)


class AttentionWeights(NamedTuple):
    """Attention weights on a batch of texts, float32 in [0, 1]. K = L: the keys are the pieces of the text.

    A row sums to 1 over the keys that it may see, and is 0 elsewhere. Padding, on the right of shorter texts, is 0 in
    rows and in keys.
    """

    pieces: list[list[str]]
    """pieces of each text, in its order, with <sep> and <cls> after them"""
    targets: list[list[int]]
    """positions of the predicted pieces of each text, in the order of prediction: row p of the query stream predicts
    targets[b][p]"""
    content_ZBNLK: np.ndarray
    """[layers, texts, heads, rows, keys]; row i is piece i"""
    query_ZBNPK: np.ndarray | None
    """[layers, texts, heads, targets, keys]; None = no targets were given"""


def attention_page(found: AttentionWeights, text: str, origin: str, layer: int, head: int | None) -> str:
    """Return an HTML page that loads no other files. found: of one text. origin: name of the model. layer, head: shown
    first, from 0; head None = the mean of all."""
    layers, _, heads = found.content_ZBNLK.shape[:3]
    data = {
        "text": text,
        "origin": origin,
        "pieces": found.pieces[0],
        "targets": found.targets[0],
        "layers": layers,
        "heads": heads,
        "layer": layer,
        "head": heads if head is None else head,
        "content": _encode(found.content_ZBNLK),
        "query": None if found.query_ZBNPK is None else _encode(found.query_ZBNPK),
    }
    # Escape "<", so that no text can end the element that holds the data.
    escaped = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    template = resources.files(__package__).joinpath("attention.html").read_text(encoding="utf-8")
    return template.replace("{{data}}", escaped)


def _encode(weights: np.ndarray) -> str:
    units = np.where(weights > 0, np.maximum(np.round(weights * UNIT), 1), 0)
    return base64.b64encode(units.astype("<u2").tobytes()).decode()


def draw_attention_png(
    found: AttentionWeights, text: str, origin: str, layer: int, head: int | None, path: epath.PathLike
) -> None:
    """Write a PNG. found: of one text. origin: name of the model. layer, head: drawn large, with the pieces; head
    None = the mean of all."""
    from matplotlib.figure import Figure

    layers, _, heads, length, _ = found.content_ZBNLK.shape
    matrix = max(length * CELL_INCHES, SMALLEST_INCHES)
    thumbnail = min(max(matrix / heads, THUMBNAIL_INCHES[0]), THUMBNAIL_INCHES[1])
    streams = _streams(found)
    rows = sum(len(positions) for _, positions, _, _ in streams) + len(streams) - 1
    width, all_width = len(streams) * (matrix + 1.6), thumbnail * heads + 0.6
    all_height = thumbnail * layers * rows / length + 0.8
    size = max(width, all_width), matrix + 2.2 + all_height
    with lettering([*found.pieces[0], text], 9):
        figure = Figure(figsize=size, dpi=DPI, layout="constrained")
        parts: Any = figure.subfigures(2, 1, height_ratios=[matrix + 1.4, all_height])
        figure.suptitle(f"Attention of “{shorten(text, 90)}”\n{origin}: {layers} layers x {heads} heads", fontsize=11)
        shown_head = "the mean of all heads" if head is None else f"head {head}"
        parts[0].suptitle(f"layer {layer}, {shown_head}", fontsize=10, fontweight="bold")
        _draw_head(parts[0], found, layer, head)
        _draw_all(parts[1], found, layer, head)
        write_png(figure, path)


def _streams(found: AttentionWeights) -> list[tuple[str, list[int], np.ndarray, str]]:
    """Return (title, position of each row, weights, color) of each stream."""
    (pieces,), (targets,) = found.pieces, found.targets
    positions = list(range(len(pieces)))
    content = "content stream: a row sees its own piece", positions, found.content_ZBNLK[:, 0], CONTENT_COLOR
    if found.query_ZBNPK is None:
        return [content]
    return [content, ("query stream: a row predicts its piece", targets, found.query_ZBNPK[:, 0], QUERY_COLOR)]


def _draw_head(panel: Any, found: AttentionWeights, layer: int, head: int | None) -> None:
    from matplotlib.cm import ScalarMappable

    (pieces,), (targets,) = found.pieces, found.targets
    labels = [shorten(piece) for piece in pieces]
    for place, position in enumerate(targets):
        labels[position] = f"{place + 1}·{labels[position]}"
    streams = _streams(found)
    several: Any = panel.subplots(1, len(streams), squeeze=False, sharex=True)[0]
    for axes, (title, rows, weights, color) in zip(several, streams, strict=True):
        shown_RK = weights[layer].mean(0) if head is None else weights[layer, head]
        axes.imshow(np.ma.masked_equal(shown_RK, 0), **_scale(color), aspect="equal", interpolation="nearest")
        axes.set_title(title, loc="left", color=color, fontsize=9)
        axes.set_xticks(range(len(labels)), labels, rotation=90)
        axes.set_yticks(range(len(rows)), [labels[i] for i in rows])
        axes.tick_params(length=0)
        axes.set(xlabel="attends to (gray: may not see)", ylabel="a piece", anchor="NW")
        for ticks, positions in ((axes.get_xticklabels(), range(len(labels))), (axes.get_yticklabels(), rows)):
            for tick, position in zip(ticks, positions, strict=True):
                if position in targets:
                    tick.set(color=QUERY_COLOR, fontweight="bold")
        bar = axes.figure.colorbar(
            ScalarMappable(**_scale(color)), ax=axes, ticks=TICKS, shrink=0.6, anchor=(0, 1), panchor=False
        )
        bar.ax.set_yticklabels([f"{tick:.0%}" for tick in TICKS])
        bar.set_label("attention weight", fontsize=8)


def _draw_all(panel: Any, found: AttentionWeights, layer: int, head: int | None) -> None:
    """Draw each head as a small picture, with the query stream below the content stream."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.patches import Rectangle

    layers, _, heads, wide, _ = found.content_ZBNLK.shape
    below = "" if found.query_ZBNPK is None else ", the query stream below the content stream"
    panel.suptitle(f"all heads{below}", fontsize=10, fontweight="bold")
    streams = [(weights, ScalarMappable(**_scale(color))) for _, _, weights, color in _streams(found)]
    high = sum(weights.shape[2] for weights, _ in streams) + len(streams) - 1
    gap = 1 + wide // 12
    mosaic = np.zeros((layers * (high + gap) - gap, heads * (wide + gap) - gap, 4))
    axes: Any = panel.subplots()
    for z in range(layers):
        for n in range(heads):
            y, x = z * (high + gap), n * (wide + gap)
            top = y
            for weights, colors in streams:
                picture = colors.to_rgba(np.ma.masked_equal(weights[z, n], 0))
                mosaic[top : top + len(picture), x : x + wide] = picture
                top += len(picture) + 1
            color, width, order = ("#222222", 2, 3) if z == layer and head in (None, n) else ("#bbbbbb", 0.5, 1)
            axes.add_patch(Rectangle((x - 0.5, y - 0.5), wide, high, fill=False, ec=color, lw=width, zorder=order))
    axes.imshow(mosaic, interpolation="nearest")
    axes.set(xlim=(-1, mosaic.shape[1]), ylim=(mosaic.shape[0], -1), anchor="N")
    middles = np.arange(heads) * (wide + gap) + (wide - 1) / 2, np.arange(layers) * (high + gap) + (high - 1) / 2
    axes.set_xticks(middles[0], [f"head {n}" if heads <= 6 else str(n) for n in range(heads)])
    axes.set_yticks(middles[1], [f"layer {z}" for z in range(layers)])
    axes.tick_params(length=0, labeltop=True, labelbottom=False, labelsize=8)
    axes.spines[:].set_visible(False)


def _scale(color: str) -> dict[str, Any]:
    """Return the color scale of all matrices: from white to the color, by the square root of the weight."""
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm

    colors = LinearSegmentedColormap.from_list("", ["white", color])
    return {"norm": PowerNorm(0.5, 0, 1), "cmap": colors.with_extremes(bad=UNSEEN_COLOR)}
