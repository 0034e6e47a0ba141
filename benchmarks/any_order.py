"""Measure what it costs to predict several pieces in one pass.

    python -m benchmarks.any_order [tiny | RUN] ... [--text novel.txt]

A random half of each of the texts of LENGTH pieces is hidden. The network predicts the hidden pieces in a random
order, K of them in each pass: each sees the pieces that are not hidden and those of earlier passes. All networks with
one tokenizer predict the same pieces in the same order. `generate --order random` draws another order, in which the
pieces of a pass are far apart. So this order has its own control, one piece in a pass: an order that visits distant
pieces first costs less whatever comes in a pass. The tables are in nats per piece, with 95% bootstrap intervals over
the texts.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.results import keep_table
from benchmarks.table6 import interval
from data_pipelines import sources
from xlnet_jax import load, on_device
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.inference.log_probs import Query, log_likelihoods
from xlnet_jax.inference.passes import NONE
from xlnet_jax.inference.sampler import spread_order
from xlnet_jax.objectives.registry import objective_named

LENGTH = 96
"""pieces of a text"""
PARALLEL, APART = (1, 2, 4, 8, 16), (4, 8, 16)
WAYS = {
    **{str(parallel): (parallel, 1) for parallel in PARALLEL},
    "all": (LENGTH // 2, 1),
    **{f"{parallel} apart": (parallel, parallel) for parallel in APART},
    **{f"1, in the order of {parallel} apart": (1, parallel) for parallel in APART},
}
"""pieces in a pass, and the number of pieces that the order keeps apart (`spread_order`); 1 = a random order"""


def queries_of(ids: np.ndarray, texts: int, parallel: int, spread: int, seed: int = 0) -> list[Query]:
    """Return texts from random places of a longer one, in which `parallel` hidden pieces have each rank. LENGTH // 2
    is a multiple of `parallel` and `spread`, so that all passes are full."""
    draw, queries = np.random.default_rng(seed), []
    for number, begin in enumerate(draw.choice(len(ids) - LENGTH, texts, replace=False)):
        hidden_P = draw.permutation(LENGTH)[: LENGTH // 2]  # in the order of prediction
        if spread > 1:
            order = spread_order(len(hidden_P), spread, number)
            hidden_P = np.sort(hidden_P)[order[order != NONE]]
        queries.append(Query(ids[begin : begin + LENGTH], hidden_P, np.arange(len(hidden_P)) // parallel))
    return queries


def nats_of(
    pretrained: Pretrained, text: str, texts: int, seed: int = 0, ways: Mapping[str, tuple[int, int]] | None = None
) -> dict[str, np.ndarray]:
    """Return the mean loss of the hidden pieces of each text, in nats, by the names of `ways`. None = WAYS; seed: of
    the texts."""
    assert objective_named(pretrained.objective).order != "left to right", "it predicts only from left to right"
    assert pretrained.tokenizer
    (ids,), network = pretrained.tokenizer.encode_lines([" ".join(text.split())]), on_device(pretrained)
    ways = WAYS if ways is None else ways
    found = {name: log_likelihoods(network, queries_of(ids, texts, *way, seed), 4096) for name, way in ways.items()}
    return {name: -np.stack(scores).mean(1, dtype=np.float64) for name, scores in found.items()}


def print_networks(networks: Sequence[str], text: str, text_name: str, texts: int) -> None:
    """Print the table of each checkpoint."""
    for name in networks:
        nats = nats_of(load(name), text, texts)
        print(f"\n{Path(name).name}, {texts} texts: {nats['1'].mean():.3f} nats per piece, one in a pass")
        keep_table(f"any-order-{Path(name).name}-{text_name}", COLUMNS, rows_of(nats))


COLUMNS = ("pieces in a pass", "random order", "far apart", "the order of far apart, one at a time, against random")


def rows_of(nats: dict[str, np.ndarray]) -> list[list[str]]:
    """Return the rows of a network's table: what a pass of several pieces costs against one at a time in the same
    order, and what the order of the pieces that are far apart costs."""
    rows = []
    for name in (*map(str, PARALLEL[1:]), "all"):
        cells = [_with_interval(nats[name] - nats["1"])]
        control = nats.get(f"1, in the order of {name} apart")
        if control is not None:
            cells += [_with_interval(nats[f"{name} apart"] - control), _with_interval(control - nats["1"])]
        rows.append([name, *cells, *[""] * (len(COLUMNS) - 1 - len(cells))])
    return rows


def _with_interval(differences: np.ndarray) -> str:
    low, high = interval(differences)
    return f"{differences.mean():+.3f} ({low:+.3f} to {high:+.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=["tiny"], help="checkpoints that predict in any order")
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--text", type=Path, default=Path(sources.embedded()[1]), help="default: Northanger Abbey")
    given = parser.parse_args()
    print_networks(given.networks, given.text.read_text(), given.text.stem, given.texts)


if __name__ == "__main__":
    main()
