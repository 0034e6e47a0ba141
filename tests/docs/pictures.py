"""Compare a picture with that of the documentation."""

import re
from pathlib import Path

import numpy as np
from matplotlib.image import imread

DOCS = Path(__file__).parents[2] / "docs"
NUMBER = re.compile(r"-?\d+\.\d+")
FEW = 50
"""pixels that may differ, by rounding; a changed word has more"""


def assert_same_picture(drawn: Path) -> None:
    """Compare a picture that was drawn now with the one of that name in docs/."""
    now, shown = (np.asarray(imread(folder / drawn.name))[..., :3] for folder in (drawn.parent, DOCS))
    message = f"docs/{drawn.name} is not what its command draws: draw it again"
    assert now.shape == shown.shape, message
    assert (np.abs(now - shown).max(-1) > 0.1).sum() <= FEW, message


def assert_same_svg(drawn: str, name: str) -> None:
    """Compare an SVG file that was drawn now with the one of that name in docs/: words and shapes, and numbers up to
    rounding."""
    shown = (DOCS / name).read_text()
    now, then = (NUMBER.split(text) for text in (drawn, shown))
    assert now == then, f"docs/{name} is not what its command draws: draw it again"
    now, then = (np.array(NUMBER.findall(text), float) for text in (drawn, shown))
    np.testing.assert_allclose(now, then, rtol=0, atol=0.03, err_msg=f"docs/{name}: draw it again")
