"""Time draws that keep the distribution of one piece in a pass (`generate --exact`) beside one piece in a pass.

    python -m benchmarks.exact [tiny | base | RUN …] [--orders random] [--gap 96] [--texts 4] [--turns 5]

A network of prose fills a gap in the middle of passages of Northanger Abbey, with GIVEN pieces on both sides; a network
of records draws whole records. Temperature and top-p are the defaults of `generate`. All ways take turns in one process
(medians), one text at a time; compilation is left out. `kept` is the share of drafts that are kept, and a pass of `one`
has one piece. `base` has random weights and the vocabulary of tiny: its drafts hardly depend on each other, so nearly
all are kept, and only the time of a pass means something.
"""

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence

import jax
import numpy as np

import xlnet_jax
from benchmarks.generate import random_model
from benchmarks.results import keep_table
from data_pipelines import sources
from data_pipelines.tokenizer import PAD
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.inference.requests import GenerateSettings, Kind, Request, read_record
from xlnet_jax.inference.sampler import Sampler
from xlnet_jax.objectives.presets import PRESETS

GIVEN = 48
"""pieces on each side of a gap"""
PARALLEL = (4, 8, 16)


def requests_of(pretrained: Pretrained, gap: int, texts: int) -> list[Request]:
    """Return the texts with their open positions."""
    tokenizer = pretrained.require_tokenizer()
    if tokenizer.symbols:
        fields = len(tokenizer.symbols.records.parsed)
        lengths = np.random.default_rng(0).random((texts, fields))
        return [read_record(tokenizer.symbols, "\t".join(["___"] * fields), uniform_F=row_F) for row_F in lengths]
    (novel,) = [source for source in sources.embedded() if "validation" in str(source)]
    with open(novel) as lines:
        ids = np.concatenate(tokenizer.encode_lines([line for line in lines if line.strip()]))
    length, targets_P = 2 * GIVEN + gap, GIVEN + np.arange(gap, dtype=np.int32)
    passages = ids[: texts * 4 * length].reshape(-1, length)[::4].astype(np.int32)
    passages[:, targets_P] = PAD
    kinds_P, gap_P = np.full(gap, Kind.INNER, np.int32), np.zeros(gap, np.int32)
    return [Request("", ("", "", ""), ids_L, targets_P, kinds_P, gap_P) for ids_L in passages]


def way(pretrained: Pretrained, texts: list[Request], **settings: object) -> Callable[[], tuple[float, int, int]]:
    """Return a function that draws all texts, and returns (seconds, pieces, passes)."""
    sampler = Sampler(pretrained, GenerateSettings("loaded", **settings))

    def draw() -> tuple[float, int, int]:
        began, drawn = time.perf_counter(), [dataclasses.replace(text) for text in texts]
        for number, text in enumerate(drawn):
            list(sampler.draw([text], jax.random.key(0), number))
        passes = sum(int(text.passes_P.max()) + 1 for text in drawn)
        return time.perf_counter() - began, sum(len(text.passes_P) for text in drawn), passes

    return draw


def network_of(name: str) -> Pretrained:
    if name != "base":
        return xlnet_jax.load(name)
    tiny = xlnet_jax.load("tiny")
    config = dataclasses.replace(PRESETS[name]().model, vocab_size=tiny.model.vocab_size)
    return dataclasses.replace(random_model(config), tokenizer=tiny.tokenizer)


def measure(pretrained: Pretrained, orders: Sequence[str], gap: int, count: int, turns: int) -> list[list[str]]:
    """Return the rows of a network. count: texts of a turn."""
    texts = requests_of(pretrained, gap, count)
    ways = {}
    for order in orders:
        ways[order, 1] = way(pretrained, texts, order=order)
        for drafts in PARALLEL:
            ways[order, drafts] = way(pretrained, texts, order=order, parallel=drafts, exact=True)
    for draw in ways.values():
        draw()  # compiles
    took = [{key: draw() for key, draw in ways.items()} for _ in range(turns)]
    rows = []
    for (order, drafts), (_, pieces, passes) in took[0].items():
        speed = statistics.median(turn[order, drafts][1] / turn[order, drafts][0] for turn in took)
        ratio = statistics.median(turn[order, 1][0] / turn[order, drafts][0] for turn in took)
        kept = (pieces - passes / 2) / (passes / 2 * drafts)
        shown = [f"{order}, one" if drafts == 1 else f"{order}, {drafts} drafts", "" if drafts == 1 else f"{kept:.0%}"]
        of_a_pass = pieces / passes / ratio
        rows.append([*shown, f"{pieces / passes:.2f}", f"{of_a_pass:.2f}", f"{speed:.1f}", f"{ratio:.2f}"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=["tiny"], help="checkpoints, or names of the package")
    parser.add_argument("--orders", nargs="+", default=["left", "random", "block"])
    parser.add_argument("--gap", type=int, default=96, help="open pieces of a passage")
    parser.add_argument("--texts", type=int, default=4, help="texts of a turn")
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    for name in given.networks:
        network = network_of(name)
        shown = name if "/" not in name else "records" if network.require_tokenizer().records else "run"
        columns = (shown, "kept", "pieces per pass", "time of a pass", "pieces/s", "speed against one")
        rows = measure(network, given.orders, given.gap, given.texts, given.turns)
        keep_table(f"exact-{shown}", columns, rows)


if __name__ == "__main__":
    main()
