"""Measure whether a network copies from its context: the likelihood of pieces that are repeated.

    python -m benchmarks.said_twice tiny runs/mine [--text novel.txt]

The network reads LENGTH consecutive pieces twice, from left to right. The table has the mean log-likelihood of a piece
in nats, the first time and the second time: for running text, and for pieces of the text in random order, which can
only be predicted by looking them up.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.results import keep_table
from data_pipelines import sources
from xlnet_jax import load
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.inference.log_probs import Query, log_likelihoods

LENGTH, PASSAGES = 24, 128
HEAD = ("network", "text, first", "text, again", "random order, first", "random order, again")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", help="checkpoints, or tiny")
    parser.add_argument("--text", type=Path, default=Path(sources.embedded()[1]), help="default: Northanger Abbey")
    given = parser.parse_args()
    text = " ".join(given.text.read_text().split())
    keep_table(
        "said-twice",
        HEAD,
        [(Path(name).name, *(f"{mean:.2f}" for mean in likelihoods(load(name), text))) for name in given.networks],
    )


def likelihoods(pretrained: Pretrained, text: str) -> list[float]:
    """Return the values of a row of the table, in nats per piece."""
    assert pretrained.tokenizer
    (ids,) = pretrained.tokenizer.encode_lines([text])
    draw = np.random.default_rng(0)
    begins = draw.choice(len(ids) - LENGTH, PASSAGES, replace=False)
    passages = [ids[begin : begin + LENGTH] for begin in begins]
    mixed = np.split(draw.permutation(np.concatenate(passages)), PASSAGES)
    return [mean for kind in (passages, mixed) for mean in _first_and_again(pretrained, kind)]


def _first_and_again(pretrained: Pretrained, passages: Sequence[np.ndarray]) -> tuple[float, float]:
    at = np.arange(2 * LENGTH)
    queries = [Query(np.tile(passage, 2), at, at) for passage in passages]
    of_passages = np.stack(log_likelihoods(pretrained, queries, 4096))
    return float(of_passages[:, :LENGTH].mean()), float(of_passages[:, LENGTH:].mean())


if __name__ == "__main__":
    main()
