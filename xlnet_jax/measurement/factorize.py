"""Words of a text predicted jointly, or each by itself (paper, section 2.6: New York is a city).

BERT predicts masked words independently: log p(New | is a city) + log p(York | is a city). XLNet predicts them in an
order, and each sees the ones before: log p(New | is a city) + log p(York | New, is a city).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from xlnet_jax.inference.words import find_words
from xlnet_jax.settings.common import CheckpointSettings

if TYPE_CHECKING:
    from xlnet_jax.checkpoints.pretrained import Pretrained


@dataclass(frozen=True)
class FactorizeSettings(CheckpointSettings):
    """Words predicted in order and independently: the paper's example (section 2.6), or your own."""

    text: str = "New York is a city"
    """text that contains the targets"""
    targets: str = "New York"
    """words of the text to predict"""


class Factorizations(NamedTuple):
    """Log-probabilities of the target pieces, float32 [P], nats, in the order of the text."""

    pieces: list[str]
    independent_P: np.ndarray
    dependent_P: np.ndarray


def factorize(pretrained: "Pretrained", text: str, targets: str) -> Factorizations:
    """Return both factorizations of the words `targets` of a text. Raises InputError if they are not whole pieces of
    the text, or the checkpoint has no vocabulary scores."""
    from xlnet_jax.checkpoints.pretrained import scoring_tokenizer
    from xlnet_jax.inference.log_probs import Query, log_likelihoods

    tokenizer = scoring_tokenizer(pretrained)
    ids_L = tokenizer.encode_lines([text])[0]
    positions_P = find_words(tokenizer, ids_L, targets)
    places_P = np.arange(len(positions_P))
    queries = [Query(ids_L, positions_P, rank_P) for rank_P in (np.zeros_like(places_P), places_P)]
    independent_P, dependent_P = log_likelihoods(pretrained, queries, len(queries) * len(ids_L))
    return Factorizations([tokenizer.pieces[i] for i in ids_L[positions_P]], independent_P, dependent_P)


def print_factorizations(settings: FactorizeSettings) -> None:
    """Print a table of both factorizations."""
    from rich.table import Table

    from xlnet_jax.checkpoints.formats import load_with_tokenizer
    from xlnet_jax.printing import Console

    pretrained = load_with_tokenizer(settings.checkpoint, settings.tokenizer)
    found = factorize(pretrained, settings.text, settings.targets)
    title = f"log p of {settings.targets} in: {settings.text}"
    table = Table("", "independent (BERT)", "dependent (XLNet)", title=title)
    for piece, alone, given in zip(found.pieces, found.independent_P, found.dependent_P, strict=True):
        table.add_row(piece, f"{alone:.3f}", f"{given:.3f}")
    table.add_section()
    table.add_row("together", f"{found.independent_P.sum():.3f}", f"{found.dependent_P.sum():.3f}")
    Console().print(table)
