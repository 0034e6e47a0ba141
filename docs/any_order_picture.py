"""python docs/any_order_picture.py: draw any_order.png, who sees whom when hidden pieces are predicted in four ways.

The masks are those of the network (`xlnet_jax.models.masks`), computed from the ranks of the pieces.
"""

from pathlib import Path

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from xlnet_jax.models.masks import rank_relations
from xlnet_jax.plots.style import DPI, write_png

WORDS = ("It", "is", "a", "truth", "well", "known")
GIVEN = -1  # rank of a piece that all others see
WAYS = {
    "left to right\n(GPT)": (0, 1, 2, 3, 4, 5),
    "any order\n(XLNet)": (GIVEN, 2, GIVEN, 0, 3, 1),
    "in groups of 2\n(A3, masked diffusion)": (GIVEN, 1, GIVEN, 0, 1, 0),
    "all at once\n(BERT)": (GIVEN, 0, GIVEN, 0, 0, 0),
}
SEEN, HIDDEN, INK = "#8ecae6", "#f2f2f2", "#003f5c"


def seen_PL(ranks: tuple[int, ...], targets: list[int]) -> np.ndarray:
    """Return which pieces the query row of each target sees, bool [P, L]."""
    relations = rank_relations(jnp.array([ranks]), jnp.array([targets]), jnp.zeros((1, 0), bool))
    row_P, key_L = relations.row_rank_BT[0, len(ranks) :], relations.key_rank_BK[0]
    return np.asarray(key_L[None, :] <= row_P[:, None])


FILE = Path(__file__).with_name("any_order.png")


def draw(file: Path) -> None:
    """Write the picture. A row is one prediction; rows of one pass share a number."""
    figure, all_axes = plt.subplots(1, len(WAYS), figsize=(11, 2.9), dpi=DPI)
    for axes, (title, ranks) in zip(all_axes, WAYS.items(), strict=True):
        targets = sorted((i for i, rank in enumerate(ranks) if rank != GIVEN), key=lambda i: (ranks[i], i))
        for row, (target, seen_L) in enumerate(zip(targets, seen_PL(ranks, targets), strict=True)):
            for key, is_seen in enumerate(seen_L):
                axes.add_patch(plt.Rectangle((key, row), 0.92, 0.92, color=SEEN if is_seen else HIDDEN))
            axes.text(target + 0.46, row + 0.48, "?", ha="center", va="center", color=INK, weight="bold")
        axes.set_xlim(0, len(WORDS))
        axes.set_ylim(len(WORDS), 0)
        axes.set_aspect("equal")
        axes.set_xticks(np.arange(len(WORDS)) + 0.46, WORDS, rotation=45, ha="left", rotation_mode="anchor")
        labels = [f"pass {ranks[target] + 1}: {WORDS[target]}" for target in targets]
        axes.set_yticks(np.arange(len(targets)) + 0.46, labels)
        axes.xaxis.tick_top()
        axes.tick_params(length=0, labelsize=8)
        axes.spines[:].set_visible(False)
        axes.set_title(title, fontsize=9, pad=8)
    figure.tight_layout()
    write_png(figure, file)


if __name__ == "__main__":
    draw(FILE)
