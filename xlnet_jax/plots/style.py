"""Fonts that can draw a text, the style of pictures with text, and writing PNG files to a disk or a bucket."""

import contextlib
import io
import warnings
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from etils import epath

from xlnet_jax.storage.files import write_durably

DEFAULT = "DejaVu Sans"  # comes with matplotlib
BOXES = "Last Resort"  # comes with matplotlib too; draws every character as a box
DPI = 110


@contextlib.contextmanager
def lettering(texts: Iterable[str], size: float) -> Iterator[None]:
    """Use the default font and, if it lacks characters of the texts, the font that has most of them. Characters that
    neither has are drawn as boxes. size: in points. $ and \\ are drawn literally, not as math."""
    import matplotlib as mpl

    files, families = _font_files(), [DEFAULT]
    if missing := set("".join(texts)) - _characters(files[DEFAULT]):
        families.append(max(files, key=lambda name: len(missing & _characters(files[name]))))
    style: Any = {"text.parse_math": False, "font.family": families, "font.size": size}
    with mpl.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        yield


def shorten(text: str, longest: int = 14) -> str:
    """Return a text cut to `longest` characters."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def write_png(figure: Any, path: epath.PathLike) -> None:
    """Write a figure of matplotlib, completely or not at all."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_durably(path, picture.getvalue())


def _font_files() -> dict[str, str]:
    """Return the file of every regular font by family."""
    from matplotlib import font_manager

    fonts = (f for f in font_manager.fontManager.ttflist if f.style == "normal" and f.weight == 400)
    return {f.name: f.fname for f in fonts if not f.name.startswith(BOXES)}


@cache
def _characters(file: str) -> frozenset[str]:
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(map(chr, FT2Font(file).get_charmap()))
    except (OSError, RuntimeError):
        return frozenset()
