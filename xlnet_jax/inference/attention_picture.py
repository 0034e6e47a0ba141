"""Picture of attention weights: the rows of one head, both streams side by side, and all heads."""

from typing import Any

import numpy as np
from etils import epath

from data_pipelines.inspect.glyphs import drawn, font_families
from xlnet_jax.inference.attention_view import AttentionView
from xlnet_jax.storage.pictures import write_png

CONTENT_COLOUR, QUERY_COLOUR, UNSEEN_COLOUR = "#08306b", "#a63603", "#dcd7c9"  # as in attention_page.html
CELL_INCHES = 0.24
SMALLEST_INCHES = 4.2  # of a matrix
THUMBNAIL_INCHES = (0.5, 1.6)
TICKS = (0, 0.01, 0.05, 0.25, 0.5, 1)
DPI = 110


def draw_attention_png(
    view: AttentionView, text: str, origin: str, layer: int, head: int | None, path: epath.PathLike
) -> None:
    """Write a PNG. origin: name of the model. layer, head: drawn with their pieces; head None = the mean of all."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    (layers, heads), length = view.content_ZNLK.shape[:2], len(view.pieces)
    matrix = max(length * CELL_INCHES, SMALLEST_INCHES)
    thumbnail = min(max(matrix / heads, THUMBNAIL_INCHES[0]), THUMBNAIL_INCHES[1])
    streams = _streams(view)
    all_width, all_height = thumbnail * heads + 0.6, thumbnail * layers * _stacked(view, 0, 0).shape[0] / length + 0.8
    width = len(streams) * (matrix + 1.6)
    beside = len(streams) == 1  # all heads stand beside one matrix, and below two
    size = (
        (width + all_width, max(matrix + 2.2, all_height + 1.2))
        if beside
        else (max(width, all_width), matrix + 2.2 + all_height)
    )
    families = font_families([*view.pieces, text])
    with mpl.rc_context({"text.parse_math": False, "font.family": families, "font.size": 9}):
        figure = Figure(figsize=size, dpi=DPI, layout="constrained")
        parts: Any = (
            figure.subfigures(1, 2, width_ratios=[width, all_width])
            if beside
            else figure.subfigures(2, 1, height_ratios=[matrix + 1.4, all_height])
        )
        shown = drawn(text, families, "text", 90)
        figure.suptitle(f"Attention of “{shown}”\n{origin}: {layers} layers x {heads} heads", fontsize=11)
        of_head = "the mean of all heads" if head is None else f"head {head}"
        parts[0].suptitle(f"layer {layer}, {of_head}", fontsize=10, fontweight="bold")
        _draw_head(parts[0], view, streams, layer, head, families)
        _draw_all(parts[1], view, layer, head)
        write_png(figure, path)


def _streams(view: AttentionView) -> list[tuple[str, list[int], np.ndarray, str]]:
    """Return (title, position of each row, weights, colour) of each stream."""
    content = "content stream: a row knows its piece", [*range(len(view.pieces))], view.content_ZNLK, CONTENT_COLOUR
    if view.query_ZNPK is None:
        return [content]
    return [content, ("query stream: a row predicts its piece", view.targets, view.query_ZNPK, QUERY_COLOUR)]


def _draw_head(
    panel: Any, view: AttentionView, streams: list[Any], layer: int, head: int | None, families: list[str]
) -> None:
    from matplotlib.cm import ScalarMappable

    labels = [drawn(piece, families, f"piece {i}") for i, piece in enumerate(view.pieces)]
    for place, position in enumerate(view.targets):
        labels[position] = f"{place + 1}·{labels[position]}"
    several: Any = panel.subplots(1, len(streams), squeeze=False, sharex=True)[0]
    for axes, (title, rows, weights, colour) in zip(several, streams, strict=True):
        of_layer = weights[layer].mean(0) if head is None else weights[layer, head]
        axes.imshow(_seen(of_layer), **_scale(colour), aspect="equal", interpolation="nearest")
        axes.set_title(title, loc="left", color=colour, fontsize=9)
        axes.set_xticks(range(len(labels)), labels, rotation=90)
        axes.set_yticks(range(len(rows)), [labels[i] for i in rows])
        axes.tick_params(length=0)
        axes.set(xlabel="looks at (grey: may not be seen)", ylabel="a piece", anchor="NW")
        for ticks, positions in ((axes.get_xticklabels(), range(len(labels))), (axes.get_yticklabels(), rows)):
            for tick, position in zip(ticks, positions, strict=True):
                if position in view.targets:
                    tick.set(color=QUERY_COLOUR, fontweight="bold")
        bar = axes.figure.colorbar(
            ScalarMappable(**_scale(colour)), ax=axes, ticks=TICKS, shrink=0.6, anchor=(0, 1), panchor=False
        )
        bar.ax.set_yticklabels([f"{tick:.0%}" for tick in TICKS])
        bar.set_label("attention weight", fontsize=8)


def _draw_all(panel: Any, view: AttentionView, layer: int, head: int | None) -> None:
    """Draw each head as one small picture, the query stream below the content stream."""
    from matplotlib.patches import Rectangle

    layers, heads = view.content_ZNLK.shape[:2]
    below = "" if view.query_ZNPK is None else ", the query stream below the content stream"
    panel.suptitle(f"all heads{below}", fontsize=10, fontweight="bold")
    high, wide, gap = _stacked(view, 0, 0).shape[0], len(view.pieces), 1 + len(view.pieces) // 12
    mosaic = np.zeros((layers * (high + gap) - gap, heads * (wide + gap) - gap, 4))
    axes: Any = panel.subplots()
    for z in range(layers):
        for n in range(heads):
            y, x = z * (high + gap), n * (wide + gap)
            mosaic[y : y + high, x : x + wide] = _stacked(view, z, n)
            chosen = z == layer and head in (None, n)
            frame: dict[str, Any] = {"ec": "#222222", "lw": 2, "zorder": 3} if chosen else {"ec": "#bbbbbb", "lw": 0.5}
            axes.add_patch(Rectangle((x - 0.5, y - 0.5), wide, high, fill=False, **frame))
    axes.imshow(mosaic, interpolation="nearest")
    axes.set(xlim=(-1, mosaic.shape[1]), ylim=(mosaic.shape[0], -1), anchor="N")
    middles = np.arange(heads) * (wide + gap) + (wide - 1) / 2, np.arange(layers) * (high + gap) + (high - 1) / 2
    axes.set_xticks(middles[0], [f"head {n}" if heads <= 6 else str(n) for n in range(heads)])
    axes.set_yticks(middles[1], [f"layer {z}" for z in range(layers)])
    axes.tick_params(length=0, labeltop=True, labelbottom=False, labelsize=8)
    axes.spines[:].set_visible(False)


def _stacked(view: AttentionView, layer: int, head: int) -> np.ndarray:
    """Return the colours of a head, [rows of both streams and one between them, keys, 4]."""
    from matplotlib.cm import ScalarMappable

    parts = [ScalarMappable(**_scale(colour)).to_rgba(_seen(w[layer, head])) for _, _, w, colour in _streams(view)]
    between = np.zeros((1, len(view.pieces), 4))
    return np.concatenate([row for part in parts for row in (part, between)][:-1])


def _seen(weights: np.ndarray) -> np.ma.MaskedArray:
    return np.ma.masked_equal(weights, 0)


def _scale(colour: str) -> dict[str, Any]:
    """Return the scale of all pictures: from white to the colour, by the square root of the weight."""
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm

    colours = LinearSegmentedColormap.from_list("", ["white", colour])
    return {"norm": PowerNorm(0.5, 0, 1), "cmap": colours.with_extremes(bad=UNSEEN_COLOUR)}
