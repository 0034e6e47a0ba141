"""Measure what it costs to predict several pieces in one pass, and train networks for it.

    python -m benchmarks.any_order --networks tiny runs/mine [--text novel.txt]
    python -m benchmarks.any_order --contenders plm plm-grouped --seeds 0 1 2 [--corpus CORPUS] [--jobs 2]
    python -m benchmarks.any_order --report

A random half of each of the texts of LENGTH pieces is hidden. The network predicts the hidden pieces in a random
order, K of them in each pass: each sees the pieces that are not hidden and those of earlier passes. All networks with
one tokenizer predict the same pieces in the same order. `generate --order random` draws another order, in which the
pieces of a pass are far apart. So this order has its own control, one piece in a pass: an order that visits distant
pieces first costs less whatever comes in a pass. The tables of networks are in nats per piece, with 95% bootstrap
intervals over the texts.

The study pretrains contenders of xlnet_jax.compare with equal FLOPs on one corpus: CORPUS, a folder of
data_pipelines.prepare, or the novels of the package. Its table has means and deviations over seeds, and the held-out
loss of the contenders that predict in order, one piece (as plm is trained) or four at a time. A second table has the
differences between two contenders, paired by seed. All have the learning rate that suits plm; with it the seeds of mdlm
differ so much that its row ranks nothing.
benchmarks/studies.py explains how runs are stopped, resumed and recorded.
"""

import argparse
import fnmatch
import itertools
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks import studies
from benchmarks.results import Table, keep_table
from benchmarks.studies import MEASURED, Job, Record, Study, run_module
from benchmarks.table6 import interval
from data_pipelines import sources
from xlnet_jax import load, on_device
from xlnet_jax.checkpoints.native import PretrainingRun
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.inference.log_probs import Query, log_likelihoods
from xlnet_jax.inference.passes import NONE
from xlnet_jax.inference.sampler import spread_order
from xlnet_jax.objectives.registry import objective_named

NAME = "any_order"
TEXTS, LENGTH = 128, 96
"""texts of a run of the study; pieces of a text"""
PARALLEL, APART = (1, 2, 4, 8, 16), (4, 8, 16)
WAYS = {
    **{str(parallel): (parallel, 1) for parallel in PARALLEL},
    "all": (LENGTH // 2, 1),
    **{f"{parallel} apart": (parallel, parallel) for parallel in APART},
    **{f"1, in the order of {parallel} apart": (1, parallel) for parallel in APART},
}
"""pieces in a pass, and the number of pieces that the order keeps apart (`spread_order`); 1 = a random order"""
RECORDED = tuple(name for name in WAYS if "apart" not in name)
"""ways in the tables of the study. Its recorded runs lack the control of the pieces that are apart"""
CONTENDERS = ("plm", "plm-grouped", "mdlm", "mlm")
PAIRED = (("plm-grouped", "plm"),)
SEEDS = (0, 1, 2)
FLOPS = 7e12
VOCAB_SIZE = 4_000
GROUPS = (1, 4)
"""sizes of groups whose held-out loss is measured"""
SETTINGS = f"""--preset demo --optimizer.method adamw
    --data.num-predict 32 --optimizer.learning-rate 4e-3 --optimizer.matrix-rate 0.5
    --optimizer.warmup-steps 100 --eval.every-steps 1000 --eval.max-windows 512 --checkpoint.every-steps 1000
    --equal operations --budget {FLOPS:g}""".split()


# ---- hidden pieces ---------------------------------------------------------------------------------------------------


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


def print_networks(networks: Sequence[str], text: str, text_name: str, texts: int, out: Path | None) -> None:
    """Print the table of each checkpoint. out: file for the losses of the last one by the names of WAYS, as JSON."""
    for name in networks:
        nats = nats_of(load(name), text, texts)
        if out:
            out.write_text(json.dumps({way: round(float(of_texts.mean()), 4) for way, of_texts in nats.items()}))
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


# ---- the study -------------------------------------------------------------------------------------------------------


def prepare(workdir: Path) -> str:
    """Return a corpus of the novels of the package. Their validation text is held out."""
    tokenizer, corpus, (train, held_out, *_) = workdir / "tokenizer", workdir / "corpus", sources.embedded()
    if not tokenizer.is_dir():
        run_module(
            "data_pipelines.tokenizer", "train", "--source", train, "--vocab-size", VOCAB_SIZE, "--out", tokenizer
        )
    run_module(
        "data_pipelines.prepare", "--source", train, "--validation", held_out, "--tokenizer", tokenizer,
        "--block-len", 1152, "--out", corpus,
    )  # fmt: skip
    return str(corpus)


def pretraining(contender: str, seed: int, corpus: str, text: Path) -> Job:
    """Return the pretraining run of a contender with a seed. text: whose pieces are hidden."""

    def command(workdir: Path) -> list[str]:
        return [
            "xlnet_jax.compare", "--objectives", contender, "--seeds", str(seed), *SETTINGS, "--corpus", corpus,
            "--workdir", str(workdir),
        ]  # fmt: skip

    def record(workdir: Path) -> Record:
        results = json.loads((workdir / "results.json").read_text())["contenders"][contender]
        run = workdir / contender / f"seed-{seed}" / "pretrained"
        of_run, nats = PretrainingRun.of(str(run)), workdir / "nats.json"
        assert of_run
        in_order = objective_named(of_run.config.objective).filling.stream == "query"
        # In a process of its own: the next run is forked from this one, which must not have threads.
        run_module("benchmarks.any_order", "--networks", run, "--text", text, "--texts", TEXTS, "--out", nats)
        return {
            "command": studies.shown(command(workdir), workdir, CORPUS=corpus),
            "steps": results["updates"],
            "held_out": {size: _held_out(run, size, workdir) for size in GROUPS if in_order},
            "nats": json.loads(nats.read_text()),
            **studies.time_of(workdir),
        }

    return Job(f"{contender}-seed-{seed}", command, record)


def _held_out(run: Path, size: int, workdir: Path) -> float:
    """Return the held-out loss of a run with groups of this size."""
    out = workdir / f"groups-{size}.json"
    run_module("xlnet_jax.evaluate", run, "--data.group-sizes", size, "--out", out, "--overwrite")
    return round(float(json.loads(out.read_text())["loss"]), 4)


def report(measured: dict[str, Record]) -> None:
    """Print the losses of the contenders over their recorded seeds, and differences between two of them."""
    keep_table("any-order-losses", *losses_table(measured))
    keep_table("any-order-paired", *paired_table(measured))
    print(f"\n{sum(run['seconds'] for run in measured.values()) / 3600:.1f} CPU hours")


def losses_table(measured: dict[str, Record]) -> Table:
    """Return the losses of each contender: means and deviations over its seeds."""
    rows, (_, *others) = [], RECORDED
    for contender, runs in _by_contender(measured).items():
        nats = {way: [run["nats"][way] for run in runs.values()] for way in RECORDED}
        more = [np.subtract(nats[way], nats["1"]) for way in others]
        held_out = [[run["held_out"].get(str(size)) for run in runs.values()] for size in GROUPS]
        rows.append(
            [
                contender,
                str(len(runs)),
                f"{max(run['steps'] for run in runs.values()):,}",
                _spread(nats["1"]),
                *(_spread(of_runs, "+") for of_runs in more),
                *(_spread(losses) if None not in losses else "" for losses in held_out),
            ]
        )
    head = ["contender", "seeds", "steps", "1 in a pass", *others]
    return [*head, *(f"held-out, groups of {size}" for size in GROUPS)], rows


def paired_table(measured: dict[str, Record]) -> Table:
    """Return the difference of two contenders' losses, whose runs with one seed read the same text: means and
    deviations over the seeds."""
    of, rows = _by_contender(measured), []
    for contender, baseline in PAIRED:
        if shared := sorted(of.get(contender, {}).keys() & of.get(baseline, {}).keys()):
            pairs = [(of[contender][seed], of[baseline][seed]) for seed in shared]
            of_ways = [[one["nats"][way] - other["nats"][way] for one, other in pairs] for way in RECORDED]
            held_out = [[one["held_out"][str(s)] - other["held_out"][str(s)] for one, other in pairs] for s in GROUPS]
            cells = (_spread(differences, "+") for differences in (*of_ways, *held_out))
            rows.append([f"{contender} - {baseline}", str(len(shared)), *cells])
    return ["paired by seed", "seeds", *RECORDED, *(f"held-out, groups of {size}" for size in GROUPS)], rows


def _by_contender(measured: dict[str, Record]) -> dict[str, dict[int, Record]]:
    """Return the records of each contender that has one, by seed."""
    found: dict[str, dict[int, Record]] = {}
    for contender in CONTENDERS:
        for name, record in measured.items():
            of, _, seed = name.rpartition("-seed-")
            if of == contender:
                found.setdefault(contender, {})[int(seed)] = record
    return found


def _spread(values: Sequence[float] | np.ndarray, sign: str = "") -> str:
    deviation = f" ± {statistics.stdev(map(float, values)):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(map(float, values)):{sign}.3f}{deviation}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", help="checkpoints, or tiny, to print the table of; no study")
    parser.add_argument("--out", type=Path, help="JSON file for the losses of the last network")
    parser.add_argument("--texts", type=int, default=256, help="with --networks: number of texts")
    parser.add_argument("--text", type=Path, default=Path(sources.embedded()[1]), help="default: Northanger Abbey")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--corpus", help="default: the novels of the package")
    studies.add_arguments(parser, NAME)
    parser.add_argument("--report", action="store_true", help="print the table of recorded runs, and exit")
    given = parser.parse_args()
    if given.networks:
        print_networks(given.networks, given.text.read_text(), given.text.stem, given.texts, given.out)
        return
    if not given.report:
        given.workdir.mkdir(parents=True, exist_ok=True)
        corpus = given.corpus or prepare(given.workdir)
        jobs = [
            pretraining(contender, seed, corpus, given.text)
            for seed, contender in itertools.product(given.seeds, given.contenders)
        ]
        Study(NAME, given.workdir, given.jobs).run(job for job in jobs if fnmatch.fnmatch(job.name, given.only))
    report(studies.read(MEASURED / NAME))


if __name__ == "__main__":
    main()
