"""Find fonts on this machine that can draw the characters of a text."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

DEFAULT = "DejaVu Sans"  # comes with matplotlib
BOXES = "Last Resort"  # comes with matplotlib too; draws every character as a box that names its script


def font_families(pieces: Iterable[str]) -> list[str]:
    """Return the default font and, if it lacks characters of these pieces, the font that has most of them."""
    if not (missing := set("".join(pieces)) - _characters(_default_file())):
        return [DEFAULT]
    best = max(_others(), key=lambda font: len(missing & _characters(font[1])), default=None)
    return [DEFAULT, best[0]] if best and missing & _characters(best[1]) else [DEFAULT]


def drawable(piece: str, families: Iterable[str]) -> bool:
    """Return whether each character of the piece is in one of these fonts."""
    files = [_default_file(), *(file for name, file in _others() if name in families)]
    return all(any(char in _characters(file) for file in files) for char in piece)


def drawn(text: str, families: Iterable[str], otherwise: str, longest: int = 14) -> str:
    """Return a text as these fonts can draw it, or else `otherwise`, cut to `longest` characters."""
    shown = text if drawable(text, families) else otherwise
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def _default_file() -> str:
    from matplotlib import font_manager

    return font_manager.findfont(DEFAULT)


def _others() -> list[tuple[str, str]]:
    """Return (family, file) of every regular font other than the default."""
    from matplotlib import font_manager

    fonts = {f.name: f.fname for f in font_manager.fontManager.ttflist if f.style == "normal" and f.weight == 400}
    return [(name, file) for name, file in fonts.items() if name != DEFAULT and not name.startswith(BOXES)]


@cache
def _characters(file: str) -> frozenset[str]:
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(map(chr, FT2Font(file).get_charmap()))
    except (OSError, RuntimeError):
        return frozenset()
