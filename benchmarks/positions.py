"""Measure which positions a pass should predict: nats per piece against pieces per pass, by choice of positions.

    python -m benchmarks.positions [tiny | RUN] [--text novel.txt] [--texts 48]

Texts of LENGTH pieces have HIDDEN of them hidden, in random places or in one gap. In each pass a choice sees the
network's distributions at the hidden positions, and takes some of them; then their true pieces are revealed. A choice
that reads only what was revealed before gives the text a probability, so its loss compares with that of any order. All
numbers are differences from the same texts in random orders, one piece per pass, with 95% bootstrap intervals over the
texts.

- `far apart`: `generate --order random`, which does not look at the distributions.
- Of one number in each pass, those with the highest probability of the likeliest piece (`confidence`, MaskGIT and
  LLaDA), margin to the second, negative entropy, or calibrated confidence: -p log f, where f is the frequency of the
  likeliest piece, times exp(-0.05 i) for the i-th hidden position (Huang et al. 2025, arXiv 2508.13021, section 3).
- `…, apart`: the same, of positions that are at least APART from each other, as `generate --order confidence` does.
- `above P`: all positions whose likeliest piece has at least this probability, or the most confident one.
- `bound X`: by entropy, the most of which the sum of entropies without the largest is at most X nats (Ben-Hamu et al.
  2025, arXiv 2505.24857, section 4).
"""

import argparse
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.any_order import LENGTH
from benchmarks.results import keep_table
from benchmarks.table6 import interval
from xlnet_jax import load, on_device
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.inference.log_probs import Query, log_likelihoods, log_probs_of_vocabulary
from xlnet_jax.inference.sampler import APART, spread_order

HIDDEN, RANDOM_ORDERS = LENGTH // 2, 4
PLACES = {
    "random places": lambda draw: np.sort(draw.permutation(LENGTH)[:HIDDEN]),
    "one gap": lambda draw: LENGTH // 4 + np.arange(HIDDEN),
}

Choice = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""(log-probabilities [P, V] at the positions that are hidden, the positions, frequencies of pieces [V]) -> which of
them come next, as indices"""


# ---- choices ---------------------------------------------------------------------------------------------------------


def confidence(log_probs_PV: np.ndarray, positions_P: np.ndarray, frequency_V: np.ndarray) -> np.ndarray:
    return log_probs_PV.max(-1)


def margin(log_probs_PV: np.ndarray, positions_P: np.ndarray, frequency_V: np.ndarray) -> np.ndarray:
    second, first = np.exp(np.partition(log_probs_PV, -2, axis=-1)[:, -2:]).T
    return first - second


def certainty(log_probs_PV: np.ndarray, positions_P: np.ndarray, frequency_V: np.ndarray) -> np.ndarray:
    return (np.exp(log_probs_PV) * log_probs_PV).sum(-1)


def calibrated(log_probs_PV: np.ndarray, positions_P: np.ndarray, frequency_V: np.ndarray) -> np.ndarray:
    surprise_P = np.minimum(-np.log(frequency_V[log_probs_PV.argmax(-1)]), 10)
    return np.exp(log_probs_PV.max(-1) - 0.05 * np.arange(len(positions_P))) * surprise_P


def spaced(order_P: Iterable[int], positions_P: np.ndarray, distance: int) -> Iterator[int]:
    """Yield the indices of an order, without those whose position is nearer than `distance` to one before."""
    chosen: list[int] = []
    for i in order_P:
        if all(abs(positions_P[i] - positions_P[j]) >= distance for j in chosen):
            chosen.append(i)
            yield i


def of_number(worth: Choice, number: int, distance: int = 1) -> Choice:
    """Return the choice of the positions of most worth that are at least `distance` from each other."""

    def choose(log_probs_PV: np.ndarray, positions_P: np.ndarray, frequency_V: np.ndarray) -> np.ndarray:
        order_P = np.argsort(-worth(log_probs_PV, positions_P, frequency_V), kind="stable")
        return np.array([*itertools.islice(spaced(order_P, positions_P, distance), number)])

    return choose


def above(probability: float) -> Choice:
    def choose(*facts: np.ndarray) -> np.ndarray:
        worth_P = confidence(*facts)
        return np.flatnonzero(worth_P >= min(np.log(probability), worth_P.max()))

    return choose


def within(bound: float, distance: int = 1) -> Choice:
    def choose(log_probs_PV: np.ndarray, positions_P: np.ndarray, frequency_V: np.ndarray) -> np.ndarray:
        entropy_P = -certainty(log_probs_PV, positions_P, frequency_V)
        chosen: list[int] = []
        for i in spaced(np.argsort(entropy_P, kind="stable"), positions_P, distance):
            if chosen and entropy_P[chosen].sum() > bound:  # all but the largest, which is the next one
                break
            chosen.append(i)
        return np.array(chosen)

    return choose


WORTH = {"confidence": confidence, "margin": margin, "entropy": certainty, "calibrated": calibrated}
CHOICES: dict[str, Choice] = {
    "confidence, 1": of_number(confidence, 1),
    **{f"{name}, 4": of_number(worth, 4) for name, worth in WORTH.items()},
    "above 0.5": above(0.5),
    "bound 4": within(4),
    **{f"{name}, 8, apart": of_number(worth, 8, APART) for name, worth in WORTH.items()},
    **{f"confidence, {number}, apart": of_number(confidence, number, APART) for number in (4, 16)},
    "bound 16, apart": within(16, APART),
}


# ---- measuring -------------------------------------------------------------------------------------------------------


def chosen_passes(network: Pretrained, texts: list[Query], choice: Choice, frequency_V: np.ndarray) -> list[Query]:
    """Return the texts with the pass in which a choice takes each hidden position as its rank."""
    passes = [np.full(HIDDEN, -1) for _ in texts]
    for number in range(HIDDEN):
        is_open = [pass_P < 0 for pass_P in passes]
        rows = [i for i, open_P in enumerate(is_open) if open_P.any()]
        queries = [Query(texts[i].ids_L, texts[i].positions_P, np.where(is_open[i], HIDDEN, passes[i])) for i in rows]
        for i, log_probs_PV in zip(rows, log_probs_of_vocabulary(network, queries, 4096), strict=True):
            left_Q = np.flatnonzero(is_open[i])
            next_N = choice(log_probs_PV[left_Q], texts[i].positions_P[left_Q], frequency_V)
            passes[i][left_Q[next_N]] = number
    return [text._replace(rank_P=pass_P) for text, pass_P in zip(texts, passes, strict=True)]


def in_random_order(texts: list[Query], parallel: int, seed: int) -> list[Query]:
    def ranks(seed: int) -> np.ndarray:
        order = spread_order(HIDDEN, parallel, seed)
        rank_P = np.empty(HIDDEN, int)
        rank_P[order.ravel()] = np.repeat(np.arange(len(order)), parallel)
        return rank_P

    return [text._replace(rank_P=ranks(1000 * seed + i)) for i, text in enumerate(texts)]


def nats_of(network: Pretrained, texts: list[Query]) -> np.ndarray:
    """Return the mean loss of the hidden pieces of each text."""
    return -np.stack(log_likelihoods(network, texts, 4096)).mean(1, dtype=np.float64)


def rows_of(network: Pretrained, texts: list[Query], frequency_V: np.ndarray, place: str) -> list[list[str]]:
    base = np.mean([nats_of(network, in_random_order(texts, 1, seed)) for seed in range(RANDOM_ORDERS)], axis=0)
    ways = {f"far apart, {number}": in_random_order(texts, number, 0) for number in (2, 4, 8, 16)}
    ways |= {name: chosen_passes(network, texts, choice, frequency_V) for name, choice in CHOICES.items()}
    rows = []
    for name, queries in ways.items():
        difference = nats_of(network, queries) - base
        pieces = HIDDEN / np.mean([query.rank_P.max() + 1 for query in queries])
        low, high = interval(difference)
        rows.append([place, name, f"{pieces:.1f}", f"{difference.mean():+.3f} ({low:+.3f} to {high:+.3f})"])
        print("  ".join(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", nargs="?", default="tiny")
    parser.add_argument("--text", type=Path, default=Path("data_pipelines/corpora/austen/validation.txt"))
    parser.add_argument("--texts", type=int, default=48)
    given = parser.parse_args()
    network = on_device(load(given.network))
    (ids,) = network.require_tokenizer().encode_lines([" ".join(given.text.read_text().split())])
    frequency_V = (np.bincount(ids, minlength=network.model.vocab_size) + 1) / (len(ids) + network.model.vocab_size)
    rows = []
    for place, hide in PLACES.items():
        draw = np.random.default_rng(0)
        begins = draw.choice(len(ids) - LENGTH, given.texts, replace=False)
        texts = [Query(ids[at : at + LENGTH], hide(draw), np.zeros(HIDDEN, int)) for at in begins]
        rows += rows_of(network, texts, frequency_V, place)
    columns = ("hidden", "choice of positions", "pieces per pass", "nats per piece against random, one per pass")
    keep_table(f"positions-{Path(given.network).name}", columns, rows)


if __name__ == "__main__":
    main()
