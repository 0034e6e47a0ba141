"""Exact log-likelihoods of a corpus, text by text, in several orders, and beside them the masked-diffusion bound of the
same network (score.py), with bootstrap intervals over texts (Efron and Tibshirani 1993, section 13.3).

If log p(x_i | visible pieces) depended only on the set of visible pieces, the bound's expectation would be the mean
over all orders (Hoogeboom et al. 2022, section 3), and the log of the mean probability would lie above both (Jensen's
inequality). In XLNet a visible piece is encoded from the pieces before it in the order, but in the bound from all
visible pieces, as most are in pretraining: the bound is of the network that encodes them anew for each prediction. So
it may also lie above the mean over orders, and the difference of the two shows by how much.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from xlnet_jax.inference.orders import ALL, BOUND, PSEUDO, RANDOM
from xlnet_jax.inference.score import score_ids

if TYPE_CHECKING:
    from xlnet_jax.checkpoints.pretrained import Pretrained

RESAMPLES = 1_000
TEXTS_AT_ONCE = 256
MIXTURE = "mixture of orders"


class Estimate(NamedTuple):
    """A number and its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Estimates:
    """What was measured on whole texts."""

    facts: dict[str, int]
    tables: dict[str, dict[str, dict[str, Estimate]]]  # by name, row and column
    report: list[str]  # lines, as they are printed

    def numbers(self) -> dict[str, Any]:
        """Return the facts and tables by their names; an estimate has value, low and high."""
        return self.facts | {
            name: {row: {column: e._asdict() for column, e in by_column.items()} for row, by_column in table.items()}
            for name, table in self.tables.items()
        }


def lines_of(table: dict[str, dict[str, Estimate]], name: str, digits: int) -> list[str]:
    """Return a table as lines. name: of its first column."""
    rows = [[name, *next(iter(table.values()))]]
    for row, by_column in table.items():
        rows.append(
            [row, *(f"{v:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]" for v, low, high in by_column.values())]
        )
    widths = [2 + max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def measure_likelihoods(
    pretrained: "Pretrained", texts: Sequence[np.ndarray], words: Sequence[str], seed: int, **settings: Any
) -> Estimates:
    """Return the negative log-likelihoods of texts, int32 [P] each, in these orders, which may include `bound:N` and
    `pseudo`: the table `orders`, with nats per piece and bits per character.

    Besides each of them: the best order of each text, a maximum over all orders here; the mixture of those of
    `random:N` and `all`, the log of their mean probability; and the bound minus the mean over these orders, and minus
    their mixture. settings: as in `score_by_order`, whose InputErrors this raises.
    """
    from data_pipelines.tokenizer import UNK

    # Orders of its own for each text: if all had the same, resampled texts would not show how these vary.
    by_word = score_by_order(pretrained, texts, words, seed=seed, numbers=range(len(texts)), **settings)
    losses = {word: [-log_p_O.mean() for log_p_O in by_word[word]] for word in words}
    bounds = [word for word in words if word.startswith(BOUND)]
    exact = [by_word[word] for word in words if word != PSEUDO and word not in bounds]
    drawn = [word for word in words if word.startswith(RANDOM) or word == ALL]
    every = [np.concatenate(of_text) for of_text in zip(*exact, strict=True)]
    if (most := max(map(len, every), default=1)) > 1:
        losses[f"best of {most} orders"] = [-log_p_O.max() for log_p_O in every]
    if drawn:
        every = [np.concatenate(of_text) for of_text in zip(*(by_word[word] for word in drawn), strict=True)]
        losses[MIXTURE] = [math.log(len(log_p_O)) - np.logaddexp.reduce(log_p_O) for log_p_O in every]
        for bound in bounds:
            for word in (*drawn, MIXTURE):
                losses[f"{bound} minus {word}"] = np.subtract(losses[bound], losses[word]).tolist()
    characters_V = pretrained.require_tokenizer().tables.characters
    sizes_T3 = np.array([[len(ids_P), characters_V[ids_P].sum(), (ids_P == UNK).sum()] for ids_P in texts])
    sums_RX = resampled_sums(np.column_stack([sizes_T3, *losses.values()]), seed)
    nats_RX, bits_RX = (sums_RX / (sums_RX[:, [0]]), sums_RX / (sums_RX[:, [1]] * math.log(2)))
    table = {
        name: {"nats per piece": estimate(nats_RX[:, i]), "bits per character": estimate(bits_RX[:, i])}
        for i, name in enumerate(losses, start=3)
    }
    pieces, characters, unknown = map(int, sums_RX[0, :3])
    facts = {"texts": len(texts), "pieces": pieces, "characters": characters, "unknown": unknown}
    counted = (
        f"{len(texts):,}: {pieces:,} pieces, {characters:,} characters, {unknown / pieces:.2%} of the pieces unknown"
    )
    intervals = f"intervals   95 %, from {RESAMPLES:,} resamples of the texts"
    report = [f"texts       {counted}", *lines_of(table, "order", 4), intervals]
    return Estimates(facts, {"orders": table}, report)


def score_by_order(
    pretrained: "Pretrained",
    texts: Sequence[np.ndarray],
    words: Sequence[str],
    *,
    names: Sequence[str],
    on_batch: Callable[[int, int], None],
    numbers: Sequence[int] | None = None,
    **settings: Any,
) -> dict[str, list[np.ndarray]]:
    """Return the log-likelihoods of each text by the words of its orders, float64 [orders].

    on_batch: called before each batch of texts with its number, from 1, and the number of batches. The other arguments
    are those of `score_ids`. Raises InputError as `score_texts`.
    """
    by_word: dict[str, list[np.ndarray]] = {word: [] for word in words}
    batches = [slice(first, first + TEXTS_AT_ONCE) for first in range(0, len(texts), TEXTS_AT_ONCE)]
    for number, batch in enumerate(batches, start=1):
        on_batch(number, len(batches))
        for word, of_word in by_word.items():
            own = numbers and numbers[batch]
            found = score_ids(pretrained, texts[batch], [word], names=names[batch], numbers=own, **settings)
            of_word += [scores_OP.sum(axis=1, dtype=np.float64) for scores_OP in found]
    return by_word


def resampled_sums(rows_TX: np.ndarray, *seed: int) -> np.ndarray:
    """Return the sums over rows, and the sums over rows drawn with replacement, float64 [1 + RESAMPLES, X]."""
    rng, n = np.random.default_rng(seed), len(rows_TX)
    resampled = [rng.multinomial(n, np.full(n, 1 / n)) @ rows_TX for _ in range(RESAMPLES)]
    return np.stack([rows_TX.sum(axis=0), *resampled]).astype(np.float64)


def estimate(values_R: np.ndarray) -> Estimate:
    """Return a number, the first of these, with the interval of its resampled values."""
    return Estimate(float(values_R[0]), *map(float, np.quantile(values_R[1:], (0.025, 0.975))))
