"""Measure how far receptors that a network draws are from the distribution of its training text, by way of drawing.

    python -m benchmarks.receptors_samples RUN samples.tsv --draw
    olga/bin/python benchmarks/receptors_truth.py DATA --score samples.tsv
    python -m benchmarks.receptors_samples RUN samples.tsv

RUN is a plm run of benchmarks/receptors.py on cdr3 alone. --draw writes COUNT receptors for each way of drawing, and
times each way, in turns (medians). The second command adds the exact ln p of each to the file; benchmarks/
receptors_truth.py explains olga and DATA. The third prints the Kullback-Leibler divergence of each way's distribution
q from the source p: the mean of ln q - ln p over the draws, in nats per sequence, with its 95% bootstrap interval.

q is the mean over ORDERS orders as `generate` draws them, with the probability of the length; the symbols of a pass do
not see each other. Too few orders make it too small: the table has the divergence with half of them too. Confidence has
no such q, because its order depends on the draws, so only its mean -ln p is printed; that of the source is its entropy.
Receptors that the source cannot draw would make the divergence infinite: they are counted and left out of the means.
"""

import argparse
import csv
import json
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import xlnet_jax
from benchmarks.receptors import BATCH_TOKENS, TRUTH
from benchmarks.results import keep_table
from benchmarks.table6 import interval
from data_pipelines.tokenizer import BOS, EOD
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.inference.log_probs import Query, log_likelihoods
from xlnet_jax.inference.passes import NONE
from xlnet_jax.inference.sampler import spread_order

COUNT, TURNS, ORDERS = 1_000, 3, 32
WAYS: dict[str, dict[str, Any]] = {
    "random, 1 in a pass": {"order": "random", "parallel": 1},
    "random, 4 drafts, exact": {"order": "random", "parallel": 4, "exact": True},
    "random, 2 in a pass": {"order": "random", "parallel": 2},
    "random, 4 in a pass": {"order": "random", "parallel": 4},
    "random, 8 in a pass": {"order": "random", "parallel": 8},
    "all in one pass": {"order": "random", "parallel": 0},
    "confidence, 4 in a pass": {"order": "confidence", "parallel": 4},
}
Row = dict[str, str]


def draw(network: Pretrained, out: Path) -> None:
    """Write receptors drawn in every way: columns way, cdr3, symbols a second."""
    drawn: dict[str, list[str]] = {}
    speeds: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(TURNS + 1):  # the first compiles
        for way, settings in WAYS.items():
            began = time.perf_counter()
            texts = xlnet_jax.generate(network, [""] * COUNT, batch_size=COUNT, seed=turn, **settings)
            if turn:
                speeds[way].append(sum(len(text.pieces) for text in texts) / (time.perf_counter() - began))
            drawn[way] = [text.text for text in texts]
    with out.open("w") as file:
        print("way", "per_second", "cdr3", sep="\t", file=file)
        for way, receptors in drawn.items():
            for receptor in receptors:
                print(way, f"{statistics.median(speeds[way]):.0f}", receptor, sep="\t", file=file)


def log_q(network: Pretrained, encoded: Sequence[np.ndarray], parallel: int, exact: bool = False) -> np.ndarray:
    """Return ln q of receptors of known length in each of ORDERS orders, with so many symbols in a pass: float64
    [ORDERS, T]. exact: those of a pass see each other in their order."""
    queries = []
    for seed in range(ORDERS):
        for ids in encoded:
            size = parallel or len(ids)
            order = spread_order(len(ids), size, seed).ravel()
            order, passes = order[order != NONE], np.flatnonzero(order != NONE) // size
            rank_P = np.arange(len(order)) if exact else passes
            queries.append(Query(np.array([BOS, *ids, EOD], np.int32), 1 + order, rank_P))
    scores = log_likelihoods(network, queries, BATCH_TOKENS)
    return np.array([score_P.sum(dtype=np.float64) for score_P in scores]).reshape(ORDERS, len(encoded))


def report(network: Pretrained, rows: Sequence[Row]) -> None:
    """Print the table of draws with their ln p."""
    truth, tokenizer = json.loads(TRUTH.read_text()), network.require_tokenizer()
    assert tokenizer.symbols
    table, first = [["the source", "", "0", "0", "", f"{truth['mean_nats']:.3f}"]], float(rows[0]["per_second"])
    for way, settings in WAYS.items():
        of = [row for row in rows if row["way"] == way]
        count, of = len(of), [row for row in of if row["log_p"] != "-inf"]
        log_p_T = np.array([float(row["log_p"]) for row in of]) - truth["log_productive"]
        cells = ["", ""]
        if settings["order"] != "confidence":
            encoded = tokenizer.encode_lines([row["cdr3"] for row in of])
            log_q_OT = log_q(network, encoded, settings["parallel"], settings.get("exact", False))
            log_q_OT += [tokenizer.symbols.log_prob_of_lengths([len(ids)]) for ids in encoded]
            more_T, half_T = (np.logaddexp.reduce(log_q_OT[:n]) - math.log(n) - log_p_T for n in (ORDERS, ORDERS // 2))
            low, high = interval(more_T)
            cells = [f"{more_T.mean():.3f} ({low:.3f} to {high:.3f})", f"{half_T.mean():.3f}"]
        speed = float(of[0]["per_second"]) / first
        impossible = f"{100 * (1 - len(of) / count):.1f}"
        table.append([way, f"{speed:.2f}", impossible, *cells, f"{-log_p_T.mean():.3f}"])
    head = ["way", "symbols/s, of one at a time", "impossible, %", "divergence, nats", f"with {ORDERS // 2} orders"]
    keep_table("receptors-samples", [*head, "mean -ln p"], table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("samples", type=Path)
    parser.add_argument("--draw", action="store_true", help="draw and time")
    given = parser.parse_args()
    network = xlnet_jax.on_device(xlnet_jax.load(given.run))
    if given.draw:
        draw(network, given.samples)
        return
    with given.samples.open() as file:
        report(network, list(csv.DictReader(file, delimiter="\t")))


if __name__ == "__main__":
    main()
