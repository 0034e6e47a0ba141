"""Compare a picture with that of the documentation."""

from pathlib import Path

import numpy as np
from matplotlib.image import imread

DOCS = Path(__file__).parents[2] / "docs"
FEW = 50
"""pixels that may differ, by rounding; a changed word has more"""


def assert_same_picture(drawn: Path) -> None:
    """Compare a picture that was drawn now with the one of that name in docs/."""
    now, shown = (np.asarray(imread(folder / drawn.name))[..., :3] for folder in (drawn.parent, DOCS))
    message = f"docs/{drawn.name} is not what its command draws: draw it again"
    assert now.shape == shown.shape, message
    assert (np.abs(now - shown).max(-1) > 0.1).sum() <= FEW, message
