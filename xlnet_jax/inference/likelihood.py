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
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from xlnet_jax.inference.score import ALL, BOUND, PSEUDO, RANDOM, score_ids

if TYPE_CHECKING:
    from xlnet_jax.checkpoints.pretrained import Pretrained

RESAMPLES = 1_000
TEXTS_AT_ONCE = 256
PICKED = "picked at random"


class Estimate(NamedTuple):
    """A number and its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Likelihoods:
    """Negative log-likelihoods of the texts of a corpus, by order, per piece and per character."""

    texts: int
    pieces: int
    characters: int
    unknown: int  # <unk> pieces
    max_len: int  # of a segment
    mem_len: int
    nats_per_piece: dict[str, Estimate]
    bits_per_character: dict[str, Estimate]

    def numbers(self) -> dict[str, Any]:
        """Return every number by its name."""
        units = ("nats_per_piece", "bits_per_character")
        return asdict(self) | {unit: {k: e._asdict() for k, e in getattr(self, unit).items()} for unit in units}

    def describe(self) -> str:
        """Return the numbers as lines."""
        unknown = f"{self.unknown / self.pieces:.2%} of the pieces unknown"
        lines = [
            f"texts       {self.texts:,}: {self.pieces:,} pieces, {self.characters:,} characters, {unknown}",
            f"segments    {self.max_len:,} pieces, memory {self.mem_len:,}",
            f"{'order':34}{'nats a piece':28}bits a character",
        ]
        for name, nats in self.nats_per_piece.items():
            in_units = (f"{e.value:.4f} [{e.low:.4f}, {e.high:.4f}]" for e in (nats, self.bits_per_character[name]))
            lines.append("{:34}{:28}{}".format(name, *in_units))
        return "\n".join([*lines, f"intervals   95 %, from {RESAMPLES:,} resamples of the texts"])


def measure_likelihoods(
    pretrained: "Pretrained", texts: Sequence[np.ndarray], words: Sequence[str], seed: int, **settings: Any
) -> Likelihoods:
    """Return the likelihoods of texts, int32 [P] each, for these orders, which may include `bound:N` and `pseudo`.

    Besides each of them: the best order of each text, a maximum over all orders here; an order picked at random, the
    log of the mean probability over those of `random:N` and `all`; and the bound minus the mean over these orders, and
    minus one picked at random. settings: as in `score_by_order`, whose InputErrors this raises.
    """
    from data_pipelines.tokenizer import UNK

    by_word = score_by_order(pretrained, texts, words, seed=seed, **settings)
    bounds = [word for word in words if word.startswith(BOUND)]
    exact = [word for word in words if word != PSEUDO and word not in bounds]
    drawn = [word for word in exact if word.startswith(RANDOM) or word == ALL]
    losses = {word: [-log_p_O.mean() for log_p_O in by_word[word]] for word in words}
    in_exact, in_drawn = (
        [np.concatenate(of_text) for of_text in zip(*(by_word[word] for word in some), strict=True)]
        for some in (exact, drawn)
    )
    if (most := max(map(len, in_exact), default=1)) > 1:
        losses[f"best of {most} orders"] = [-log_p_O.max() for log_p_O in in_exact]
    if drawn:
        losses[PICKED] = [math.log(len(log_p_O)) - np.logaddexp.reduce(log_p_O) for log_p_O in in_drawn]
    for bound in bounds if drawn else ():
        for name in (*drawn, PICKED):
            losses[f"{bound} minus {name}"] = np.subtract(losses[bound], losses[name]).tolist()
    characters_V = pretrained.demand_tokenizer().tables.characters
    sizes_T3 = np.array([[len(ids_P), characters_V[ids_P].sum(), (ids_P == UNK).sum()] for ids_P in texts])
    sums_RX = resampled_sums(np.column_stack([sizes_T3, *losses.values()]), seed)
    nats, bits = (
        {name: estimate(sums_RX[:, 3 + i] * scale / sums_RX[:, unit]) for i, name in enumerate(losses)}
        for unit, scale in ((0, 1), (1, 1 / math.log(2)))
    )
    pieces, characters, unknown = map(int, sums_RX[0, :3])
    return Likelihoods(len(texts), pieces, characters, unknown, settings["max_len"], settings["mem_len"], nats, bits)


def score_by_order(
    pretrained: "Pretrained",
    texts: Sequence[np.ndarray],
    words: Sequence[str],
    *,
    names: Sequence[str],
    seed: int,
    max_len: int,
    mem_len: int,
    on_batch: Callable[[int, int], None],
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
            found = score_ids(
                pretrained, texts[batch], [word], names=names[batch], seed=seed, max_len=max_len, mem_len=mem_len
            )
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
