"""python -m docs.filling_animation: draw filling_animation.svg, in which `tiny` fills two gaps in a random order.

The pieces and the pass of each are those of a run. Run it again after a change of `tiny`.
"""

from html import escape
from pathlib import Path
from typing import NamedTuple

import xlnet_jax
from xlnet_jax.inference.generate import GeneratedText

FILE = Path(__file__).with_name("filling_animation.svg")
PROMPT = "She opened the letter, ___ and went away. ___ and the carriage was at the door."
SETTINGS = {"gap_pieces": (12,), "order": "random", "parallel": 4, "seed": 0}
COLUMNS, LETTER, LINE, MARGIN = 44, 10.2, 42, 16
"""Letters of a line, width of a letter, height of a line and margin, in units of the picture"""
PASS, REST, ROUNDS = 0.9, 5.0, 3
"""Seconds that a pass is shown, seconds that the whole text is, and how often"""
STYLE = """
svg { --paper: #fff; --ink: #1d2a30; --faint: #7a8a91; --line: #b9c5ca; --old: 88%; --new: 74%; }
@media (prefers-color-scheme: dark) {
  svg { --paper: #1e2129; --ink: #e4e8ec; --faint: #98a5ad; --line: #57626a; --old: 26%; --new: 45%; }
}
.paper { fill: var(--paper); stroke: var(--line); }
text { fill: var(--ink); font: 17px Menlo, Consolas, "DejaVu Sans Mono", "Liberation Mono", monospace; }
.small { fill: var(--faint); font-size: 11px; }
.gap { fill: none; stroke: var(--line); stroke-dasharray: 3 2; }
.box { fill: hsl(var(--hue) 60% var(--light, var(--old))); }
.counted { opacity: 0; }
"""


class Piece(NamedTuple):
    """A word of the prompt or a drawn piece."""

    text: str
    """without the sign of a space before it"""
    begins_word: bool
    shown_in: int | None = None
    """pass in which it was drawn, from 0; None = given"""


def run() -> GeneratedText:
    """Return what `tiny` draws."""
    (text,) = xlnet_jax.generate(xlnet_jax.load("tiny"), PROMPT, **SETTINGS)
    return text


def pieces_of(drawn: GeneratedText) -> list[Piece]:
    """Return the pieces of the text in order."""
    rows = list(zip(drawn.pieces, drawn.passes_P.tolist(), strict=True))
    (length,), parts, found = SETTINGS["gap_pieces"], PROMPT.split("___"), []
    for i, part in enumerate(parts):
        found += [Piece(word, True) for word in part.split()]
        gap = rows[i * length : (i + 1) * length] if i < len(parts) - 1 else []
        found += [Piece(piece.removeprefix("▁"), piece.startswith("▁"), shown_in) for piece, shown_in in gap]
    return found


def placed(pieces: list[Piece]) -> list[tuple[int, int, Piece]]:
    """Return each piece with its line and column. Lines end between words."""
    places, line, column = [], 0, 0
    words: list[list[Piece]] = []
    for piece in pieces:
        if piece.begins_word or not words:
            words.append([])
        words[-1].append(piece)
    for word in words:
        widths = [max(1, len(piece.text)) for piece in word]
        if column + sum(widths) > COLUMNS:
            line, column = line + 1, 0
        for piece, width in zip(word, widths, strict=True):
            places.append((line, column, piece))
            column += width
        column += 1
    return places


def draw(drawn: GeneratedText) -> str:
    """Return the picture. Without animation, as for readers who prefer less motion, it shows the whole text."""
    places = placed(pieces_of(drawn))
    passes = int(drawn.passes_P.max()) + 1
    width = 2 * MARGIN + COLUMNS * LETTER
    bottom = 2 * MARGIN + LINE * (places[-1][0] + 1)
    seconds = passes * PASS + REST + PASS
    parts, rules = [], []
    for line, column, piece in places:
        x, y, wide = MARGIN + column * LETTER, MARGIN + line * LINE, max(1, len(piece.text)) * LETTER
        letters = _text(x, y + 20, piece.text, wide)
        if piece.shown_in is None:
            parts.append(letters)
        else:
            box = f'x="{x - 1:.1f}" y="{y + 2}" width="{wide + 2:.1f}" height="24" rx="4"'
            number = _text(x + wide / 2, y + 36, str(piece.shown_in + 1), class_="small middle")
            parts.append(f'<rect class="gap" {box}/><g class="p{piece.shown_in}"><rect class="box" {box}/>')
            parts.append(f"{letters}{number}</g>")
    count = len(drawn.pieces)
    parts.append(f'<g class="whole">{_text(MARGIN, bottom, f"{count} pieces in {passes} passes", class_="small")}</g>')
    for i in range(passes):
        begins, ends = (100 * (PASS * (i + k)) / seconds for k in (1, 2))
        hue = 175 + 150 * i / max(1, passes - 1)
        rules.append(f".p{i} {{ --hue: {hue:.0f}; }}")
        new, old = _shown(begins, ends, "new"), _shown(ends, 100, "old")
        rules.append(f"@keyframes p{i} {{ {_hidden(0, begins)} {new} {old} }}")
        rules.append(f"@keyframes c{i} {{ {_hidden(0, begins)} {_shown(begins, ends)} {_hidden(ends, 100)} }}")
        shown = int((drawn.passes_P <= i).sum())
        label = _text(MARGIN, bottom, f"pass {i + 1} of {passes}: {shown} of {count} pieces", class_="small")
        parts.append(f'<g class="counted c{i}">{label}</g>')
    end = 100 * PASS * (passes + 1) / seconds
    rules.append(f"@keyframes whole {{ {_hidden(0, end)} {_shown(end, 100)} }}")
    names = [f"{kind}{i}" for kind in "pc" for i in range(passes)] + ["whole"]
    moves = "\n".join(f"  .{name} {{ animation: {name} {seconds:.1f}s linear {ROUNDS}; }}" for name in names)
    style = f"{STYLE}.middle {{ text-anchor: middle; }}\n" + "\n".join(rules)
    style += f"\n@media (prefers-reduced-motion: no-preference) {{\n{moves}\n}}\n"
    about = f"tiny fills the gaps of a text in {passes} passes, several pieces in each, in a random order. {drawn.text}"
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {bottom + MARGIN:.0f}" '
        f'width="{1.15 * width:.0f}" role="img">\n<title>{escape(about, quote=False)}</title>\n<style>{style}</style>\n'
        f'<rect class="paper" x="0.5" y="0.5" width="{width - 1:.0f}" height="{bottom + MARGIN - 1:.0f}" rx="8"/>\n'
        f"{body}\n</svg>\n"
    )


def _hidden(begin: float, end: float) -> str:
    """Return the part of keyframes in which an element is hidden, between two percentages of the animation."""
    return f"{begin + 0.01 * (begin > 0):.2f}%, {end:.2f}% {{ opacity: 0; }}"


def _shown(begin: float, end: float, light: str = "old") -> str:
    return f"{begin + 0.01:.2f}%, {end:.2f}% {{ opacity: 1; --light: var(--{light}); }}"


def _text(x: float, y: float, text: str, width: float = 0, class_: str = "") -> str:
    """Return an element of text, stretched to a width if one is given: fonts differ between machines."""
    fit = f' textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs"' if width and text else ""
    kind = f' class="{class_}"' if class_ else ""
    return f'<text x="{x:.1f}" y="{y:.0f}"{kind}{fit}>{escape(text, quote=False)}</text>'


if __name__ == "__main__":
    FILE.write_text(draw(run()))
