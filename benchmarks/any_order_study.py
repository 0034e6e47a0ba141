"""Compare objectives as any-order models of prose: likelihood, cost of several pieces in a pass, quality of samples.

    python -m benchmarks.any_order_study [--only '*plm*'] [--jobs 2] [--workdir runs/any-order-study]
    python -m benchmarks.any_order_study --measure RUN [--seed 0] [--out FILE]
    python -m benchmarks.any_order_study --report

All contenders have one network, optimizer, corpus (the novels of the package) and windows of 128 consecutive tokens,
and a learning rate from the same grid, chosen by the held-out loss that the contender trains: one run at each of RATES
with a quarter of the FLOPs, and, as longer runs want lower rates, full runs from the best rate of these downwards until
the loss rises. plm predicts every token of a window in an order drawn for it; plm-grouped in groups of 1, 2, 4 or 8
targets that do not see each other; plm-blocks in blocks of 32 from left to right. mdlm weighs all targets the same;
mdlm-bound as published, and so do the variants of benchmarks/mdlm_variants.py. They spend as many FLOPs as plm in STEPS
steps, and again read as many tokens.

The measures are of Northanger Abbey, which no contender reads. The seed of a run also draws its texts, so the noise of
texts is in all intervals; runs with one seed have the same texts.

- likelihood: nats per piece of TEXTS texts of LENGTH pieces, given their first piece: from left to right, the mean over
  ORDERS random orders, and masked diffusion's bound. A network that reads <mask> needs a pass for each piece of an
  order, so it gets one order.
- several pieces in a pass: half of each text is hidden (benchmarks/any_order.py).
- samples: SAMPLES texts of NEW pieces behind 16 pieces, at temperature 1 without top-p and penalty, by the measures of
  benchmarks/sampling.py, and in nats per character by `tiny`, which has read other novels; pieces a second on the core
  of the run, the median of TURNS turns through all ways of sampling.

Tables have means over seeds, and differences from plm paired by seed, with 95% intervals of Student's t.
benchmarks/studies.py explains how runs are stopped, resumed and recorded.
"""

import argparse
import fnmatch
import functools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import any_order, mdlm_variants, studies
from benchmarks.any_order import LENGTH
from benchmarks.modern import flags
from benchmarks.results import ROOT, Table, keep_table
from benchmarks.sampling import GIVEN, Continued
from benchmarks.studies import MEASURED, Job, Record, Study, run_module, with_interval
from data_pipelines import sources
from xlnet_jax import load, on_device, score_texts
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.inference.log_probs import Query, log_likelihoods
from xlnet_jax.inference.orders import hidden_sets
from xlnet_jax.inference.score import LEFT_TO_RIGHT, score_ids
from xlnet_jax.measurement.contenders import step_operations
from xlnet_jax.objectives.presets import parse_config
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.settings.config import Config

NAME = "any_order_study"
PICTURE = ROOT / "docs" / "any_order_samples.png"
VOCAB_SIZE, WINDOW, BATCH = 4_000, 128, 16
COMMON = f"""--preset demo --data.window text --data.seq-len {WINDOW} --data.reuse-len 0 --data.windows-per-block 9
    --data.batch-size {BATCH} --model.mem-len 0 --model.zero-init --eval.max-windows 512
    --checkpoint.keep 1""".split()
PLM = f"--objective plm --data.targets all --data.num-predict None --data.perm-size {WINDOW} --data.no-bidirectional"
CONTENDERS: dict[str, str] = {
    "plm": PLM,
    "plm-grouped": f"{PLM} --data.group-sizes 1 2 4 8",
    "plm-blocks": f"{PLM} --data.perm-size 32",
    "mdlm": "--objective mdlm",
    "mdlm-bound": "--objective mdlm",
    "mlm": f"--objective mlm --data.num-predict {round(0.15 * WINDOW)} --data.no-bidirectional",
    "clm": "--objective clm",
}
VARIANTS = tuple(f"mdlm-{variant}" for variant in mdlm_variants.VARIANTS)
"""they have the flags and the learning rate of mdlm-bound, which is a variant too"""
RATES = (2.8e-3, 5.6e-3, 1.12e-2, 2.24e-2, 4.48e-2)
"""learning rates of the embeddings; matrices learn at 3.6 times these (Muon)"""
STEPS, TUNING = 400, 0.25
"""steps of plm, and the share of its FLOPs that a short run at each of `RATES` has"""
SEEDS = range(5)
TEXTS, ORDERS, BOUND = 64, 4, 32
HIDDEN_WAYS = {name: way for name, way in any_order.WAYS.items() if not {"2", "8"} & {*name.split()}}
"""ways of predicting a hidden half"""
SAMPLES, NEW, TURNS = 32, 64, 2
RANDOM: list[dict[str, Any]] = [{"order": "random", "parallel": n} for n in (1, 4, 16)]
BY_MASK = [*RANDOM, {"order": "confidence", "parallel": 4}]
BY_QUERY = [
    {"order": "left", "parallel": 1}, *BY_MASK, {"order": "random", "parallel": 4, "exact": True},
    {"order": "block", "parallel": 4},
]  # fmt: skip
AT_ONCE: list[dict[str, Any]] = [{"order": "left", "parallel": 0}]
"""ways of sampling, by the kind of network; a causal one has only the first of BY_QUERY, mlm only AT_ONCE"""


# ---- the runs --------------------------------------------------------------------------------------------------------


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


@dataclass(frozen=True)
class Run:
    """One pretraining run."""

    contender: str
    rate: float
    steps: int
    seed: int = 0
    kind: str = "flops"
    """flops or tokens: what it has as much of as plm; or tune or full: a short or a full run to choose the rate"""

    @property
    def name(self) -> str:
        detail = f"-{self.rate:g}" if self.kind in ("tune", "full") else ""
        return f"{self.contender}-{self.kind}{detail}-seed-{self.seed}"

    def words(self) -> list[str]:
        """Return the settings of the train command as flags, but for its corpus."""
        base = "mdlm-bound" if self.contender in VARIANTS else self.contender
        length: dict[str, str | int | float | bool] = {
            "optimizer.learning-rate": self.rate, "optimizer.warmup-steps": max(self.steps // 20, 10),
            "steps": self.steps, "seed": self.seed, "eval.every-steps": self.steps,
            "log.every-steps": max(self.steps // 40, 1), "checkpoint.every-steps": self.steps,
        }  # fmt: skip
        return [*COMMON, *CONTENDERS[base].split(), *flags(length)]

    def command(self, corpus: str, workdir: Path) -> list[str]:
        """Return module and arguments of the run."""
        module = ["xlnet_jax.train"]
        if self.contender in VARIANTS:
            module = ["benchmarks.mdlm_variants", self.contender.removeprefix("mdlm-")]
        return [*module, *self.words(), "--corpus", corpus, "--workdir", str(workdir)]

    def job(self, corpus: str) -> Job:
        """Return the job of the run."""

        def record(workdir: Path) -> Record:
            out = workdir / "measured.json"
            numbers: Record = {}
            if self.kind in ("flops", "tokens"):
                # In a process of its own, which gives its memory back.
                run_module(f"benchmarks.{NAME}", "--measure", workdir, "--seed", self.seed, "--out", out)
                numbers = json.loads(out.read_text())
            return {
                "command": studies.shown(self.command(corpus, workdir), workdir, CORPUS=corpus),
                "run": {"contender": self.contender, "kind": self.kind, "seed": self.seed},
                "rate": self.rate,
                "steps": self.steps,
                "flops": self.steps * cost(self.contender),
                "loss": studies.held_out_loss(workdir),
                **numbers,
                **studies.time_of(workdir),
            }

        return Job(self.name, lambda workdir: self.command(corpus, workdir), record)


@functools.cache
def cost(contender: str) -> int:
    """Return the FLOPs of a step of a contender."""
    words = [*Run(contender, RATES[0], STEPS).words(), "--model.vocab-size", str(VOCAB_SIZE)]
    config: Config = parse_config(words, "train", "")
    return step_operations(config)


def steps_of(contender: str, kind: str) -> int:
    """Return the steps of a contender that have the FLOPs (flops, full, tune) or the tokens of plm."""
    if kind == "tokens":
        return STEPS
    return round(STEPS * cost("plm") / cost(contender) * (TUNING if kind == "tune" else 1))


def tuning(contender: str, measured: Callable[[], Mapping[str, Record]]) -> Iterator[Run]:
    """Yield the runs of studies.tuning for a contender."""
    for kind, rate in studies.tuning(functools.partial(_tuning_name, contender), RATES, measured):
        yield Run(contender, rate, steps_of(contender, kind), kind=kind)


def _tuning_name(contender: str, kind: str, rate: float) -> str:
    return Run(contender, rate, STEPS, kind=kind).name


def runs_of(measured: Mapping[str, Record]) -> Iterator[Run]:
    """Yield the runs after tuning, the ones that matter most first."""
    found = {name: studies.best_rate(functools.partial(_tuning_name, name), RATES, measured) for name in CONTENDERS}
    rates = {name: rate for name, rate in found.items() if rate}
    for seed in SEEDS:
        for contender, rate in rates.items():
            yield Run(contender, rate, steps_of(contender, "flops"), seed)
    for seed in SEEDS:
        for variant in VARIANTS[1:] if "mdlm-bound" in rates else ():
            yield Run(variant, rates["mdlm-bound"], steps_of("mdlm-bound", "flops"), seed)
    for seed in SEEDS:
        for contender in filter(rates.__contains__, ("mdlm", "mlm", "clm")):  # those of plm are equal in both
            yield Run(contender, rates[contender], steps_of(contender, "tokens"), seed, "tokens")


# ---- measuring -------------------------------------------------------------------------------------------------------


def measure(run: str, seed: int) -> Record:
    """Return what a run is measured by."""
    pretrained, text = load(run), Path(sources.embedded()[1]).read_text()
    assert pretrained.tokenizer
    network, (ids,) = on_device(pretrained), pretrained.tokenizer.encode_lines([" ".join(text.split())])
    draw = np.random.default_rng(seed)
    texts = [ids[begin : begin + LENGTH] for begin in draw.choice(len(ids) - LENGTH, TEXTS, replace=False)]
    numbers: Record = {"likelihood": {way: _mean(nats) for way, nats in likelihoods(network, texts, seed).items()}}
    if objective_named(pretrained.objective).order != "left to right":
        nats_of = any_order.nats_of(network, text, TEXTS, seed, HIDDEN_WAYS)
        numbers["hidden"] = {way: _mean(nats) for way, nats in nats_of.items()}
    return numbers | {"samples": samples(network, text, seed)}


def _mean(nats_T: np.ndarray) -> float:
    return round(float(np.mean(nats_T, dtype=np.float64)), 4)


def likelihoods(network: Pretrained, texts: Sequence[np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """Return the nats per piece of each text, given its first piece, by way of computing them: float32 [T]."""
    if network.is_causal:
        scores = score_ids(network, list(texts), [LEFT_TO_RIGHT], seed=seed, names=[*map(str, range(len(texts)))])
        return {"left to right": -np.stack(scores)[:, 0, 1:].mean(1)}
    by_mask, rest = objective_named(network.objective).filling.stream == "content", np.arange(1, LENGTH)

    def mean_over(orders: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
        queries = [
            Query(ids, order, np.arange(LENGTH - 1)) for ids, of in zip(texts, orders, strict=True) for order in of
        ]
        return -np.stack(log_likelihoods(network, queries, 4096)).reshape(len(texts), -1).mean(1)

    draw = np.random.default_rng(seed)
    drawn = [[1 + draw.permutation(LENGTH - 1) for _ in range(ORDERS)] for _ in texts]
    found = {"random orders": mean_over([of[: 1 if by_mask else ORDERS] for of in drawn])}
    if not by_mask:
        found["left to right"] = mean_over([[rest]] * len(texts))
    sets = [[*hidden_sets(LENGTH - 1, BOUND, (seed, 0, i))] for i in range(len(texts))]
    queries = [
        Query(ids, 1 + hidden, np.zeros_like(hidden)) for ids, of in zip(texts, sets, strict=True) for _, hidden in of
    ]
    sums = [float(nats.sum()) for nats in log_likelihoods(network, queries, 4096)]
    weights = np.array([[weight for weight, _ in of] for of in sets])
    found["bound"] = -(weights * np.reshape(sums, weights.shape)).sum(1) / (LENGTH - 1)
    return found


def samples(network: Pretrained, text: str, seed: int) -> dict[str, Record]:
    """Return the quality of the samples of a network by way of sampling, and the pieces a second."""
    texts, tiny = Continued.of(network.require_tokenizer(), text, SAMPLES, NEW, seed), load("tiny")
    objective, ways = objective_named(network.objective), BY_QUERY
    if network.is_causal:
        ways = ways[:1]
    elif objective.filling.stream == "content":
        ways = BY_MASK if objective.order else AT_ONCE
    seconds: list[list[float]] = [[] for _ in ways]
    plain = {"temperature": 1.0, "top_p": 1.0, "repetition_penalty": 1.0}
    drawn = [texts.draw(network, **way, **plain, seed=seed) for way in ways]  # compiles
    for turn in range(TURNS):
        for way, of in zip(ways, seconds, strict=True):
            began = time.perf_counter()
            pieces = sum(map(len, texts.draw(network, **way, **plain, seed=seed + 1 + turn)))
            of.append(pieces / (time.perf_counter() - began))
    named = {_name(way): (new, statistics.median(of)) for way, new, of in zip(ways, drawn, seconds, strict=True)}
    named |= {"the text itself": ([*texts.itself[:, GIVEN:]], 0.0)}
    return {name: quality_of(texts, new, tiny) | {"per_second": round(of, 1)} for name, (new, of) in named.items()}


def _name(way: Mapping[str, Any]) -> str:
    if not way["parallel"]:
        return "all in one pass"
    return f"{way['order']}, {way['parallel']} in a pass{', exact' * way.get('exact', False)}"


def quality_of(texts: Continued, new: Sequence[np.ndarray], other: Pretrained) -> Record:
    """Return the quality of new pieces. other: the network that gives their nats per character."""
    quality = texts.quality(new)
    words = [texts.tokenizer.decode(pieces.tolist()) for pieces in new]
    whole = [f"{prompt} {continued}" for prompt, continued in zip(texts.prompts, words, strict=True)]
    of_whole, of_prompts = (
        sum(float(score.log_probs_OP.sum()) for score in score_texts(other, lines)) for lines in (whole, texts.prompts)
    )
    return {
        "nats": _mean(quality.nats_T),
        "repeated": _mean(quality.repeated_T),
        "distinct": round(quality.distinct, 4),
        "nats_per_character": round((of_prompts - of_whole) / sum(map(len, words)), 4),
    }


# ---- tables ----------------------------------------------------------------------------------------------------------


def report(measured: Mapping[str, Record]) -> None:
    """Print the tables of the recorded runs."""
    keep_table("any-order-study-rates", *studies.rates_table(_tuning_name, CONTENDERS, RATES, measured, "a quarter"))
    keep_table("any-order-study-likelihood", *likelihood_table(measured))
    keep_table("any-order-study-hidden", *hidden_table(measured))
    keep_table("any-order-study-samples", *samples_table(measured))
    print(f"\n{sum(run['seconds'] for run in measured.values()) / 3600:.1f} CPU hours")


def likelihood_table(measured: Mapping[str, Record]) -> Table:
    """Return the nats per piece of each contender by way, and its best way against plm in random orders."""
    ways, rows = ("left to right", "random orders", "bound"), []
    plm = _runs(measured)["plm", "flops"]
    for (contender, kind), runs in _runs(measured).items():
        of_ways = [[run["likelihood"].get(way) for run in runs.values()] for way in ways]
        best = {seed: min(run["likelihood"].values()) for seed, run in runs.items()}
        differences = [best[s] - plm[s]["likelihood"]["random orders"] for s in best if s in plm]
        cells = ["" if None in of else with_interval(of) for of in of_ways]
        steps = f"{next(iter(runs.values()))['steps']:,}"
        rows.append([studies.label(contender, kind), str(len(runs)), steps, *cells, with_interval(differences, "+")])
    return ["nats per piece", "seeds", "steps", *ways, "its best - plm in random orders"], rows


def hidden_table(measured: Mapping[str, Record]) -> Table:
    """Return the nats of hidden halves, and what several pieces in a pass cost."""
    rows = []
    several = [name for name in HIDDEN_WAYS if name != "1" and "order of" not in name]
    for (contender, kind), runs in _runs(measured).items():
        of = [run["hidden"] for run in runs.values() if "hidden" in run]
        if of and kind == "flops":
            cells = []
            for way in several:
                number, _, apart = way.partition(" ")
                base = f"1, in the order of {number} apart" if apart else "1"
                cells.append(with_interval([one[way] - one[base] for one in of], "+"))
            rows.append([contender, str(len(of)), with_interval([one["1"] for one in of]), *cells])
    return ["half hidden, nats per piece", "seeds", "1 in a pass", *several], rows


def samples_table(measured: Mapping[str, Record]) -> Table:
    """Return the quality of samples, and pieces a second, without variants."""
    rows: list[list[str]] = []
    groups = _of_equal_flops(measured)
    itself = [run["samples"]["the text itself"] for run in groups["plm"].values()]
    rows.append(["the text itself", "", *_quality_cells(itself), ""])
    for contender, runs in groups.items():
        for way in next(iter(runs.values()))["samples"]:
            if way != "the text itself":
                of = [run["samples"][way] for run in runs.values()]
                speed = statistics.mean(x["per_second"] for x in of)
                rows.append([contender, way, *_quality_cells(of), f"{speed:,.0f}"])
    head = ["contender", "way", "5-gram, nats per piece", "tiny, nats per character", "repeated, %", "distinct"]
    return [*head, "pieces/s"], rows


def _quality_cells(of: Sequence[Record]) -> list[str]:
    return [
        with_interval([x["nats"] for x in of]), with_interval([x["nats_per_character"] for x in of]),
        f"{statistics.mean(x['repeated'] for x in of):.1f}", f"{statistics.mean(x['distinct'] for x in of):.3f}",
    ]  # fmt: skip


def _of_equal_flops(measured: Mapping[str, Record]) -> dict[str, dict[int, Record]]:
    """Return the records with equal FLOPs by contender, without variants."""
    groups = {contender: runs for (contender, kind), runs in _runs(measured).items() if kind == "flops"}
    return {contender: runs for contender, runs in groups.items() if contender not in VARIANTS}


def _runs(measured: Mapping[str, Record]) -> dict[tuple[str, str], dict[int, Record]]:
    """Return the records after tuning, by contender and kind, then by seed; plm, which is the same in both, once."""
    found: dict[tuple[str, str], dict[int, Record]] = {}
    kinds = ["flops", "tokens"]
    names = [*CONTENDERS, *VARIANTS[1:]]
    runs = [record for record in measured.values() if record["run"]["kind"] in kinds]
    for record in sorted(runs, key=lambda r: (kinds.index(r["run"]["kind"]), names.index(r["run"]["contender"]))):
        of = record["run"]
        found.setdefault((of["contender"], of["kind"]), {})[of["seed"]] = record
    return {group: dict(sorted(of.items())) for group, of in found.items()}


def draw(measured: Mapping[str, Record], path: Path) -> None:
    """Draw quality against pieces a second, for every contender and way of sampling."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), dpi=110, layout="constrained")
    axes = figure.subplots()
    groups = _of_equal_flops(measured)
    marks = dict(zip((_name(way) for way in (*BY_QUERY, *AT_ONCE)), "osDv^Px*", strict=False))
    for place, (contender, runs) in enumerate(groups.items()):
        for way in next(iter(runs.values()))["samples"].keys() - {"the text itself"}:
            of = [run["samples"][way] for run in runs.values()]
            x, y = (statistics.mean(one[key] for one in of) for key in ("per_second", "nats_per_character"))
            axes.plot(x, y, marks[way], color=f"C{place}", alpha=0.8)
        axes.plot([], [], "s", color=f"C{place}", label=contender)
    for way, mark in marks.items():
        axes.plot([], [], mark, color="gray", label=way)
    itself = statistics.mean(run["samples"]["the text itself"]["nats_per_character"] for run in groups["plm"].values())
    axes.axhline(itself, color="gray", lw=1, label="the text itself")
    axes.set(xscale="log", xlabel="pieces per second, one core", ylabel="nats per character, by tiny")
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    axes.grid(alpha=0.3)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", help="run to measure, and exit")
    parser.add_argument("--seed", type=int, default=0, help="with --measure: seed of texts and samples")
    parser.add_argument("--out", type=Path, help="with --measure: JSON file")
    studies.add_arguments(parser, NAME)
    parser.add_argument("--report", action="store_true", help="print the tables of recorded runs, and exit")
    given = parser.parse_args()
    if given.measure:
        written = json.dumps(measure(given.measure, given.seed))
        given.out.write_text(written) if given.out else print(written)
        return
    if not given.report:
        study, corpus = Study(NAME, given.workdir, given.jobs), prepare(given.workdir)

        def jobs_of(runs: Iterator[Run]) -> Iterator[Job]:
            return (run.job(corpus) for run in runs if fnmatch.fnmatch(run.name, given.only))

        for contender in CONTENDERS:
            cost(contender)  # kept: settings cannot be parsed by several threads at once
        study.run_chains(jobs_of(tuning(contender, study.measured)) for contender in CONTENDERS)
        study.run(jobs_of(runs_of(study.measured())))
    measured = studies.read(MEASURED / NAME)
    report(measured)
    draw(measured, PICTURE)


if __name__ == "__main__":
    main()
