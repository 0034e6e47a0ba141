"""Measure whether revision improves texts: pieces that were drawn are hidden, and drawn again.

    python -m benchmarks.revision RUN ... [--texts 64]

Each text has the first GIVEN pieces of a line of Northanger Abbey, and NEW drawn ones, without top-p.
A network that reads <mask>, of the objective mdlm or mlm, predicts any piece from all others, so it can change what it
has drawn. All ways of WAYS spend passes of the network in two parts: `draw` passes draw all pieces, the ones of a pass
far apart in a random order, as `generate --order random` does; and each of the `revise` passes draws REVISED pieces
again from all others, at least APART from each other:

- `random`: at positions drawn at random. This is Gibbs sampling, if the pieces of a pass are independent.
- `least probable`: those that had the lowest probability when they were drawn (Wang et al. 2025, arXiv 2503.00307).

The second prefers probable pieces, as a temperature below 1 does, so texts of lower temperatures without revision are
its control; all others have temperature 1.

Prints the measures of benchmarks/sampling.py, nats per character by `tiny`, and the difference of the first from texts
that spend all passes on drawing, paired by text, with a 95% bootstrap interval over the texts of all runs.
"""

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.any_order_study import quality_of
from benchmarks.positions import spaced
from benchmarks.results import keep_table
from benchmarks.sampling import GIVEN, Continued
from benchmarks.table6 import interval
from data_pipelines import sources
from data_pipelines.tokenizer import EOD
from xlnet_jax import load, on_device
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.inference.log_probs import Query, log_probs_of_vocabulary
from xlnet_jax.inference.requests import allowed_XV
from xlnet_jax.inference.sampler import APART, spread_order

NEW, REVISED = 64, 8
WAYS = [
    *((16, 0, "none", temperature) for temperature in (0.9, 0.8, 0.7)),
    *(
        (draw, revise, way, 1.0)
        for draw, revise in ((8, 0), (16, 0), (8, 8), (32, 0), (8, 24), (64, 0), (8, 56))
        for way in (("random", "least probable") if revise else ("none",))
    ),
]
"""(passes that draw, passes that revise, choice of the pieces to draw again, temperature)"""


def draw_texts(
    network: Pretrained, prompts_TG: np.ndarray, draw: int, revise: int, way: str, temperature: float, seed: int
) -> np.ndarray:
    """Return the new pieces of texts that begin with prompts: int64 [T, NEW]. The other arguments are those of WAYS."""
    random, texts, new = np.random.default_rng(seed), len(prompts_TG), GIVEN + np.arange(NEW)
    allowed_V = allowed_XV(network.require_tokenizer()).any(0)
    allowed_V[EOD] = False
    ids_TL = np.concatenate([prompts_TG, np.zeros((texts, NEW), np.int64)], axis=1)
    probability_TP = np.zeros((texts, NEW))

    def draw_pass(places: Sequence[np.ndarray], hidden: Sequence[np.ndarray]) -> None:
        """Draw at places of each text, which are some of the hidden ones."""
        queries = [Query(ids_L, GIVEN + at, np.zeros_like(at)) for ids_L, at in zip(ids_TL, hidden, strict=True)]
        found = log_probs_of_vocabulary(network, queries, 4096)
        for text, (at, all_hidden, log_probs_PV) in enumerate(zip(places, hidden, found, strict=True)):
            of_places = log_probs_PV[np.searchsorted(all_hidden, at)]
            logits_PV = np.where(allowed_V, of_places, -np.inf) / temperature
            drawn = (logits_PV + random.gumbel(size=logits_PV.shape)).argmax(1)
            ids_TL[text, GIVEN + at] = drawn
            probability_TP[text, at] = of_places[np.arange(len(at)), drawn]

    orders = [spread_order(NEW, NEW // draw, seed * texts + text) for text in range(texts)]
    for number in range(draw):
        hidden = [np.sort(order[number:].ravel()) for order in orders]
        draw_pass([order[number] for order in orders], hidden)
    for _ in range(revise):
        worth_TP = random.random((texts, NEW)) if way == "random" else probability_TP
        orders_TP = np.argsort(worth_TP, axis=1, kind="stable")
        chosen = [np.sort([*itertools.islice(spaced(order_P, new, APART), REVISED)]) for order_P in orders_TP]
        draw_pass(chosen, chosen)
    return ids_TL[:, GIVEN:]


def rows_of(networks: Sequence[Pretrained], text: str, texts: int) -> list[list[str]]:
    """Return a row for each of WAYS, with means over the texts of all networks."""
    tiny, rows, nats = load("tiny"), list[list[str]](), dict[tuple[int, int, str, float], np.ndarray]()
    continued = [Continued.of(net.require_tokenizer(), text, texts, NEW, seed) for seed, net in enumerate(networks)]
    itself = [quality_of(of, [*of.itself[:, GIVEN:]], tiny) for of in continued]
    rows.append(["the text itself", "", "", *_means(itself), ""])
    for way in WAYS:
        draw, revise, choice, temperature = way
        of_networks = []
        for seed, (network, of) in enumerate(zip(networks, continued, strict=True)):
            new = [*draw_texts(network, of.itself[:, :GIVEN], *way, seed)]
            of_networks.append(quality_of(of, new, tiny) | {"by_text": of.quality(new).nats_T})
        nats[way] = np.concatenate([of["by_text"] for of in of_networks])
        beside = ""
        if revise:
            difference = nats[way] - nats[draw + revise, 0, "none", 1.0]
            low, high = interval(difference)
            beside = f"{difference.mean():+.3f} ({low:+.3f} to {high:+.3f})"
        rows.append([f"{draw} + {revise}", choice, f"{temperature:g}", *_means(of_networks), beside])
        print("  ".join(rows[-1]), flush=True)
    return rows


def _means(of: Sequence[dict[str, float]]) -> list[str]:
    digits = {"nats": 3, "nats_per_character": 3, "repeated": 1, "distinct": 3}
    return [f"{np.mean([one[name] for one in of]):.{count}f}" for name, count in digits.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="pretraining runs of one objective, with different seeds")
    parser.add_argument("--texts", type=int, default=64, help="for each run")
    given = parser.parse_args()
    networks = [on_device(load(run)) for run in given.runs]
    columns = [
        "passes, draw + revise",
        "drawn again",
        "temperature",
        "5-gram, nats per piece",
        "tiny, nats per character",
    ]
    columns += ["repeated, %", "distinct", "against none, nats per piece"]
    (objective,) = {network.objective for network in networks}
    keep_table(
        f"revision-{objective}", columns, rows_of(networks, Path(sources.embedded()[1]).read_text(), given.texts)
    )


if __name__ == "__main__":
    main()
