"""Picture of a generated text: the color of each piece shows in which pass of the network it came."""

import textwrap
from collections.abc import Sequence
from typing import Any

from etils import epath

from xlnet_jax.plots.style import DPI, lettering, write_png

FONT = "DejaVu Sans Mono"  # comes with matplotlib
COLUMNS = 80
WIDTH, HEIGHT = 0.09, 0.21  # of a character, inches


def draw_passes(segments: Sequence[tuple[str, int | None]], path: epath.PathLike) -> None:
    """Write a PNG of a text, with ¶ at the end of a paragraph.

    segments: parts of the text in order, each with the number of its pass from 0; None = given, not colored.
    """
    import matplotlib as mpl
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    text = "".join(segment for segment, _ in segments).replace("\n", "¶")
    passes = iter([number for segment, number in segments for _ in segment])
    lines = textwrap.wrap(text, COLUMNS, expand_tabs=False, drop_whitespace=False)
    last = max(number or 0 for _, number in segments)
    colors: Any = ScalarMappable(Normalize(0, max(last, 1)), "viridis_r")
    with lettering([text], 10):
        mpl.rcParams["font.family"] = [FONT, *mpl.rcParams["font.family"]]
        size = (COLUMNS + 14) * WIDTH, (len(lines) + 1) * HEIGHT + 0.6
        figure = Figure(figsize=size, dpi=DPI, layout="constrained")
        axes = figure.add_subplot(xlim=(0, COLUMNS), ylim=(len(lines), 0))
        axes.axis("off")
        for row, line in enumerate(lines):
            for column, (character, number) in enumerate(zip(line, passes, strict=False)):
                if number is not None:
                    axes.broken_barh([(column, 1)], (row, 1), color=colors.to_rgba(number), alpha=0.45, linewidth=0)
                axes.text(column + 0.5, row + 0.5, character.strip(), ha="center", va="center")
        figure.colorbar(colors, ax=axes, label="pass", alpha=0.45, fraction=0.03)
        write_png(figure, path)
