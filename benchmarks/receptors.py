"""Compare models of receptors with the exact distribution that the receptors were drawn from, by objective.

    python -m benchmarks.receptors DATA [--only '*plm*'] [--jobs 2] [--workdir runs/receptors]
    python -m benchmarks.receptors DATA --measure RUN [--out FILE]
    python -m benchmarks.receptors --report

DATA is the folder of benchmarks/receptors_truth.py, which draws receptors and computes their probabilities p with olga.
The excess of a model q is the mean of ln p - ln q over the test sequences, in nats per sequence: 0 for the source
itself, and no model is below 0 on average.

All contenders have one network, windows and optimizer, and a learning rate from the same grid, chosen by held-out loss
as studies.tuning does. They read as many sequences as plm does in its steps, and again with as many FLOPs. Two sets of
fields are trained:

- cdr3: the sequence alone, so that every contender models p(cdr3) and nothing else. These runs are measured by p(cdr3),
  and by p(middle | ends) given the length.
- genes: cdr3, then v and j (plm: --data.field-order cdr3>v,j), for p(v | cdr3) with j hidden.

A network that reads <eod> knows the length, so the log-probability of the length, by its frequency in the training
text, is added to ln q. Ways to compute ln q:

- clm: from left to right, with <eod>.
- chain: one symbol after the other in a random order (plm, and mdlm and mlm by masking all later symbols); with K
  orders, the log of the mean of their probabilities, which is a distribution too.
- bound: the masked-diffusion bound of mdlm. pseudo: the sum over symbols given all others, of mlm; it is not the
  log-probability of anything, so only its correlation with ln p means something.

Tables have means over seeds, and differences from plm paired by seed, with 95% intervals of Student's t. The n-grams
are those of benchmarks/ngram.py, over sequences with an end. benchmarks/studies.py explains how runs are stopped,
resumed and recorded.
"""

import argparse
import csv
import fnmatch
import functools
import itertools
import json
import lzma
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import studies
from benchmarks.modern import Settings, flags
from benchmarks.ngram import probabilities
from benchmarks.results import ROOT, Table, keep_table
from benchmarks.studies import MEASURED, Job, Record, Study, run_module, with_interval
from benchmarks.table6 import interval
from data_pipelines.tokenizer import BOS, EOD
from xlnet_jax import load, score_texts
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.inference import log_probs
from xlnet_jax.inference.log_probs import Query
from xlnet_jax.measurement.contenders import step_operations
from xlnet_jax.objectives.presets import parse_config
from xlnet_jax.settings.config import Config

NAME = "receptors"
TRUTH = MEASURED / "receptors_truth.json"
PICTURE = ROOT / "docs" / "receptors.png"
CONTENDERS: dict[str, Settings] = {
    "plm": {"objective": "plm"},
    "clm": {"objective": "clm"},
    "mdlm": {"objective": "mdlm"},
    "mlm": {"objective": "mlm"},
    "plm-grouped": {"objective": "plm", "data.group-sizes": "1 2 4"},
}
FIELDS = {"cdr3": ("cdr3:protein",), "genes": ("cdr3:protein", "v:word", "j:word")}
VOCAB_SIZES = {"cdr3": 34, "genes": 97}
WINDOW, BATCH = 64, 32
"""tokens of a window and windows of a batch: 111 receptors of `cdr3` in a step"""
RATES = (1.4e-3, 2.8e-3, 5.6e-3, 1.12e-2, 2.24e-2)
"""learning rates of the embeddings; matrices learn at 3.6 times these (Muon)"""
ORDERS = {"plm": 32, "plm-grouped": 32, "mdlm": 8, "mlm": 8}
"""largest K: a chain of plm is one pass, one of the others a pass per symbol"""
GENE_ORDERS = 8
"""orders of cdr3 in p(v | cdr3) of plm"""
CURVE = (1, 2, 4, 8, 16, 32)
"""numbers of orders K"""
BOUND = 32
"""samples of the bound"""
DRAWS = 1024
"""middles that a network from left to right draws for p(middle | ends)"""
NGRAMS = range(2, 9)
BATCH_TOKENS = 4096
LAYERS, WIDTH = 2, 64
STEPS, TUNING_STEPS = 4_000, 500
"""steps of plm (the others read as many sequences or spend as many FLOPs), and of a short run at each of `RATES`"""
SEEDS = range(5)


# ---- the runs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """One pretraining run."""

    contender: str
    fields: str
    steps: int
    rate: float
    seed: int = 0
    kind: str = "sequences"
    """sequences or flops: what it has as much of as plm; tune or full: a short or a full run to choose the rate"""

    @property
    def name(self) -> str:
        rate = f"-{self.rate:g}" if self.kind in ("tune", "full") else ""
        return f"{self.contender}-{self.fields}-{self.kind}{rate}-seed-{self.seed}"

    def words(self) -> list[str]:
        """Return the settings of the train command as flags, but for its corpus."""
        return flags(
            {
                "preset": "demo", "model.num-layers": LAYERS, "model.d-model": WIDTH,
                "model.num-heads": WIDTH // 32, "model.d-head": 32, "model.d-ff": 4 * WIDTH,
                "model.init-std": round(0.08 * (128 / WIDTH) ** 0.5, 4), "model.zero-init": True,
                "data.seq-len": WINDOW, "data.batch-size": BATCH, "optimizer.learning-rate": self.rate,
                "optimizer.warmup-steps": max(self.steps // 20, 20), "steps": self.steps, "seed": self.seed,
                "eval.every-steps": self.steps, "eval.max-windows": 1024, "log.every-steps": max(self.steps // 40, 1),
                "checkpoint.every-steps": self.steps, "checkpoint.every-minutes": 3, "checkpoint.keep": 1,
            }
        ) + self.own_words()  # fmt: skip

    def own_words(self) -> list[str]:
        """Return the flags of the contender."""
        contender = CONTENDERS[self.contender]
        words = [word for name, value in contender.items() for word in (f"--{name}", *str(value).split())]
        if self.fields == "genes":
            words += ["--fields", *FIELDS["genes"]]
            words += ["--data.field-order", "cdr3>v,j"] if contender["objective"] == "plm" else []
        return words

    def command(self, corpus: str, workdir: Path) -> list[str]:
        """Return module and arguments of the run."""
        return ["xlnet_jax.train", *self.words(), "--corpus", corpus, "--workdir", str(workdir)]

    def job(self, corpora: Path, data: Path) -> Job:
        """Return the job of the run. corpora: folder of `prepare`."""
        corpus = str(corpora / self.fields)

        def record(workdir: Path) -> Record:
            out = workdir / "measured.json"
            numbers: Record = {}
            if self.kind not in ("tune", "full"):
                # In a process of its own, which gives its memory back.
                run_module("benchmarks.receptors", data, "--measure", workdir, "--out", out)
                numbers = json.loads(out.read_text())
            return {
                "command": studies.shown(self.command(corpus, workdir), workdir, CORPUS=corpus),
                "run": {"contender": self.contender, "fields": self.fields, "kind": self.kind, "seed": self.seed},
                "rate": self.rate,
                "steps": self.steps,
                "flops": self.steps * cost(self.contender, self.fields),
                "loss": studies.held_out_loss(workdir),
                **numbers,
                **studies.time_of(workdir),
            }

        return Job(self.name, lambda workdir: self.command(corpus, workdir), record)


@functools.cache
def cost(contender: str, fields: str) -> int:
    """Return the FLOPs of a step of a contender."""
    words = [*Run(contender, fields, STEPS, RATES[0]).words(), "--model.vocab-size", str(VOCAB_SIZES[fields])]
    words += [] if fields == "genes" else ["--fields", *FIELDS["cdr3"]]
    config: Config = parse_config(words, "train", "")
    return step_operations(config)


def prepare(data: Path, folder: Path, fields: str) -> None:
    """Prepare the corpus of a set of fields, unless it is there."""
    run_module(
        "data_pipelines.prepare", "--source", data / "train.tsv.xz", "--fields", *FIELDS[fields],
        "--block-len", WINDOW + 1, "--validation-fraction", 0.02, "--out", folder / fields,
    )  # fmt: skip


def tuning(contender: str, measured: Callable[[], Mapping[str, Record]]) -> Iterator[Run]:
    """Yield the runs of studies.tuning for a contender."""
    for kind, rate in studies.tuning(functools.partial(_tuning_name, contender), RATES, measured):
        yield Run(contender, "cdr3", TUNING_STEPS if kind == "tune" else STEPS, rate, kind=kind)


def _tuning_name(contender: str, kind: str, rate: float) -> str:
    return Run(contender, "cdr3", STEPS, rate, kind=kind).name


def runs_of(measured: Mapping[str, Record]) -> Iterator[Run]:
    """Yield the runs after tuning, the ones that matter most first."""
    found = {name: studies.best_rate(functools.partial(_tuning_name, name), RATES, measured) for name in CONTENDERS}
    rates = {name: rate for name, rate in found.items() if rate}
    for seed in SEEDS:
        for contender, rate in rates.items():
            yield Run(contender, "cdr3", STEPS, rate, seed)
    for seed in SEEDS:
        for contender in filter(rates.__contains__, ("clm", "mdlm", "mlm")):
            steps = round(STEPS * cost("plm", "cdr3") / cost(contender, "cdr3"))
            yield Run(contender, "cdr3", steps, rates[contender], seed, kind="flops")
    for seed in SEEDS:
        for contender, rate in rates.items():
            yield Run(contender, "genes", STEPS, rate, seed)


# ---- measuring -------------------------------------------------------------------------------------------------------


def read_test(data: Path) -> tuple[list[str], np.ndarray]:
    """Return the test sequences and ln p of each: float64 [T]."""
    with (data / "test_pgen.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    log_p_T = np.log([float(row["pgen"]) for row in rows]) - json.loads(TRUTH.read_text())["log_productive"]
    return [row["cdr3"] for row in rows], log_p_T


def measure(run: Path, data: Path) -> Record:
    """Return what a run is measured by: excess and correlation of p(cdr3), and errors of conditionals."""
    pretrained, truth = load(run), json.loads(TRUTH.read_text())
    assert pretrained.tokenizer
    assert pretrained.tokenizer.records
    sequences, log_p_T = read_test(data)
    if len(pretrained.tokenizer.records.fields) > 1:
        return {"v": _errors_of_genes(pretrained, sequences, truth)}
    by_way = log_probs_of(pretrained, sequences)
    found: Record = {
        "ways": {way: _compare(log_p_T, log_q_T) for way, log_q_T in by_way.items()},
        "excess": [round(float(more), 3) for more in log_p_T - [*by_way.values()][-1]],  # of the last way
    }
    found["middle"] = _errors_of_middles(pretrained, sequences, truth)
    return found


def log_probs_of(pretrained: Pretrained, sequences: Sequence[str]) -> dict[str, np.ndarray]:
    """Return ln q of each sequence by every way to compute it: float64 [T]. The last way is the best one."""
    tokenizer = pretrained.require_tokenizer()
    if pretrained.is_causal:
        return {"left-to-right": np.array([s.log_likelihood for s in score_texts(pretrained, sequences)])}
    assert tokenizer.symbols
    lengths_T = np.array([tokenizer.symbols.log_prob_of_lengths([len(sequence)]) for sequence in sequences])
    found = {}
    alone = {"mlm": "pseudo", "mdlm": f"bound:{BOUND}"}
    if way := alone.get(pretrained.objective):
        scores = score_texts(pretrained, sequences, way)
        found[way] = np.array([score.log_likelihood for score in scores]) + lengths_T
    encoded = tokenizer.encode_lines(sequences)
    log_q_KT = chains(pretrained, encoded, [(0, len(ids)) for ids in encoded], ORDERS[pretrained.objective])
    for k in CURVE:
        if k <= len(log_q_KT):
            found[f"K={k}"] = np.logaddexp.reduce(log_q_KT[:k]) - math.log(k) + lengths_T
    return found


def chains(
    pretrained: Pretrained, encoded: Sequence[np.ndarray], hidden: Sequence[tuple[int, int]], orders: int
) -> np.ndarray:
    """Return the log-probability of the hidden part of each sequence, given the rest, in random orders: float64
    [orders, T]. hidden: begin and end of each."""
    queries, are_hidden = [], []
    for number in range(orders):
        rng = np.random.default_rng(number)
        for ids, (begin, end) in zip(encoded, hidden, strict=True):
            places = np.arange(len(ids))
            queries.append(_query(pretrained, ids, (begin <= places) & (places < end), rng))
            are_hidden.append((begin < queries[-1].positions_P) & (queries[-1].positions_P <= end))
    scores = log_probs.log_likelihoods(pretrained, queries, BATCH_TOKENS)
    sums = [score_P[is_hidden].sum(dtype=np.float64) for score_P, is_hidden in zip(scores, are_hidden, strict=True)]
    return np.array(sums).reshape(orders, len(encoded))


def _query(pretrained: Pretrained, ids: np.ndarray, group_P: np.ndarray, rng: np.random.Generator) -> Query:
    """Return a query for the symbols of positive groups, the lower groups first, each group in a random order.

    plm encodes a symbol from those before it in the order, so the visible symbols of group 0 have an order too, as in
    training. Networks that read <mask> encode them from each other.
    """
    order = rng.permutation(len(ids))
    rank_P = np.argsort(order[np.argsort(group_P[order], kind="stable")])
    positions_P = np.arange(len(ids)) if pretrained.objective == "plm" else np.flatnonzero(group_P)
    return Query(np.array([BOS, *ids, EOD], np.int32), 1 + positions_P, rank_P[positions_P])


def _errors_of_middles(pretrained: Pretrained, sequences: Sequence[str], truth: Record) -> Record:
    """Return the errors of ln p(middle | ends), by the largest K."""
    middles = [row["middle"] for row in truth["rows"]]
    encoded = pretrained.require_tokenizer().encode_lines(sequences[: len(middles)])
    hidden = [(begin, end) for begin, end, _ in middles]
    if pretrained.is_causal:
        log_q_T = causal_middles(pretrained, encoded, hidden)
    else:
        log_q_KT = chains(pretrained, encoded, hidden, ORDERS[pretrained.objective])
        log_q_T = np.logaddexp.reduce(log_q_KT) - math.log(len(log_q_KT))
    log_p_T = np.array([log_p for *_, log_p in middles])
    return {**_compare(log_p_T, log_q_T), "absolute": round(float(abs(log_p_T - log_q_T).mean()), 4)}


def causal_middles(
    pretrained: Pretrained, encoded: Sequence[np.ndarray], hidden: Sequence[tuple[int, int]]
) -> np.ndarray:
    """Return ln p(middle | ends) of each sequence by a network that predicts from left to right: float64 [T].

    It is ln p(sequence) - ln p(ends), with p(right end | left end) as the mean of p(right end | left end, middle) over
    middles that are drawn given the left end. hidden: begin and end of each middle.
    """
    config = log_probs.with_mem_len(pretrained.model, 0)
    mems_ZBMD = np.zeros((config.num_layers, DRAWS + 1, 0, config.d_model), config.dtype)

    @jax.jit  # compiled for each length
    def log_probs_of_next(params: Any, ids_BL: np.ndarray) -> jax.Array:
        logits_BLV, _ = log_probs.next_logits(config, params, jnp.asarray(ids_BL), mems_ZBMD, 0, None)
        return jax.nn.log_softmax(logits_BLV.astype(np.float32))

    def log_q(ids: np.ndarray, begin: int, end: int, rng: np.random.Generator) -> float:
        texts_BL = np.tile(np.array([BOS, *ids, EOD], np.int32), (DRAWS + 1, 1))  # row 0 has the middle itself
        for place in range(begin + 1, end + 1):
            log_q_BV = np.asarray(log_probs_of_next(pretrained.params, texts_BL[:, :place]))[1:, -1]
            texts_BL[1:, place] = (log_q_BV + rng.gumbel(size=log_q_BV.shape)).argmax(1)
        log_q_BLV, next_BL = np.asarray(log_probs_of_next(pretrained.params, texts_BL[:, :-1])), texts_BL[:, 1:]
        log_q_BL = np.take_along_axis(log_q_BLV, next_BL[..., None], 2)[..., 0].astype(np.float64)
        right_B = log_q_BL[:, end:].sum(1)
        right_B[(next_BL[:, begin:end] == EOD).any(1)] = -np.inf  # a sequence that ended before
        log_right = np.logaddexp.reduce(right_B[1:]) - math.log(DRAWS)
        return float(log_q_BL[0, begin:].sum() - log_right)

    found = [
        log_q(ids, begin, end, np.random.default_rng(number))
        for number, (ids, (begin, end)) in enumerate(zip(encoded, hidden, strict=True))
    ]
    return np.array(found)


def _errors_of_genes(pretrained: Pretrained, sequences: Sequence[str], truth: Record) -> Record:
    """Return the errors of p(v | cdr3): the mean Kullback-Leibler divergence, in nats, and the mean total variation."""
    p_TG = np.array([row["v"] for row in truth["rows"]])
    p_TG /= p_TG.sum(1, keepdims=True)
    q_TG = genes_given(pretrained, sequences[: len(p_TG)], truth["genes"])
    log_ratio_TG = np.log(np.maximum(p_TG, 1e-12)) - np.log(q_TG)
    kl_T = np.where(p_TG > 0, p_TG * log_ratio_TG, 0).sum(1)
    low, high = interval(kl_T)
    numbers = {"kl": kl_T.mean(), "low": low, "high": high, "variation": abs(p_TG - q_TG).sum(1).mean() / 2}
    return {name: round(float(number), 4) for name, number in numbers.items()}


def genes_given(pretrained: Pretrained, sequences: Sequence[str], genes: Sequence[str]) -> np.ndarray:
    """Return p(v | cdr3) of each gene, with j hidden: float64 [T, G]. Of plm, the mean over orders of cdr3."""
    tokenizer = pretrained.require_tokenizer()
    assert tokenizer.symbols
    genes_G = np.array([tokenizer.pieces.index(f"v:{gene}") for gene in genes])
    any_j = tokenizer.pieces[tokenizer.symbols.ids_of(2)[0]].removeprefix("j:")
    rows = tokenizer.encode_lines([f"{sequence}\t{genes[0]}\t{any_j}" for sequence in sequences])
    if pretrained.is_causal:
        texts = [np.array([BOS, *ids[:-2], gene], np.int32) for ids in rows for gene in genes_G]
        scores = log_probs.causal_beside_likeliest(pretrained, texts, BATCH_TOKENS)
        log_q_KTG = np.array([score_L2[-1, 0] for score_L2 in scores], np.float64).reshape(1, len(rows), -1)
    else:
        orders = GENE_ORDERS if pretrained.objective == "plm" else 1
        groups = [np.maximum(np.arange(len(ids)) - len(ids) + 3, 0) for ids in rows]  # v is in group 1, j in group 2
        queries = [
            _query(pretrained, ids, group_P, np.random.default_rng(number))
            for number in range(orders)
            for ids, group_P in zip(rows, groups, strict=True)
        ]
        by_query = log_probs.log_probs_of_vocabulary(pretrained, queries, BATCH_TOKENS)
        log_q_KTG = np.array([of_PV[-2][genes_G] for of_PV in by_query], np.float64).reshape(orders, len(rows), -1)
    q_TG = np.exp(log_q_KTG).mean(0)
    return np.asarray(q_TG / q_TG.sum(1, keepdims=True))


def measure_ngrams(data: Path, orders: Sequence[int] = NGRAMS, count: int | None = None) -> Record:
    """Return excess and correlation of n-grams of each order on the first `count` test sequences, None = all."""
    sequences, log_p_T = read_test(data)
    sequences, log_p_T = sequences[:count], log_p_T[:count]
    with lzma.open(data / "train.tsv.xz", "rt") as file:
        train = [row["cdr3"] for row in csv.DictReader(file, delimiter="\t")]
    symbols = {symbol: i for i, symbol in enumerate(sorted(set("".join(train))), start=2)}
    begins, width = max(orders) - 1, max(map(len, [*train, *sequences])) + 1
    begin, end = len(symbols) + 2, 1

    def blocks(lines: Sequence[str]) -> np.ndarray:
        rows = np.zeros((len(lines), begins + width), np.int64)
        rows[:, :begins] = begin
        for row, line in zip(rows, lines, strict=True):
            row[begins : begins + len(line) + 1] = [*(symbols[symbol] for symbol in line), end]
        return rows

    held_out, train_blocks, found = blocks(sequences), blocks(train), {}
    is_target = (held_out > 0) & (np.arange(held_out.shape[1]) >= begins)
    for order in orders:
        probability = probabilities(train_blocks, held_out, len(symbols) + 3, order)
        log_q_T = np.where(is_target, np.log(probability), 0).sum(1)
        found[str(order)] = _compare(log_p_T, log_q_T)
    return {"ngrams": found}


def _compare(log_p_T: np.ndarray, log_q_T: np.ndarray) -> Record:
    """Return the excess of a model, its interval over sequences, and the correlation of ln q with ln p."""
    low, high = interval(log_p_T - log_q_T)
    numbers = {"excess": (log_p_T - log_q_T).mean(), "low": low, "high": high, "r": np.corrcoef(log_p_T, log_q_T)[0, 1]}
    return {name: round(float(number), 4) for name, number in numbers.items()}


# ---- reporting -------------------------------------------------------------------------------------------------------


def report(measured: dict[str, Record]) -> None:
    """Print the tables of the recorded runs."""
    truth = json.loads(TRUTH.read_text())
    keep_table(
        "receptors-truth",
        ("test sequences", "mean -ln p, nats", "ln of the productive share", "in the training file"),
        [[f"{truth['test']:,}", f"{truth['mean_nats']:.3f}", f"{truth['log_productive']:.4f}", str(truth["in_train"])]],
    )
    if ngrams := measured.get("ngrams"):
        rows = [[f"{order}-gram", _excess(one), f"{one['r']:.3f}"] for order, one in ngrams["ngrams"].items()]
        keep_table("receptors-ngrams", ("model", "excess", "correlation"), rows)
    runs = {name: run for name, run in measured.items() if "run" in run}
    rates = studies.rates_table(_tuning_name, CONTENDERS, RATES, runs, "an eighth")
    keep_table("receptors-rates", *rates)
    keep_table("receptors", *excess_table(runs))
    keep_table("receptors-orders", *orders_table(runs))
    if _groups(runs, "genes"):
        keep_table("receptors-genes", *genes_table(runs))


def _excess(one: Record) -> str:
    return f"{one['excess']:.3f} ({one['low']:.3f} to {one['high']:.3f})"


def _groups(runs: dict[str, Record], fields: str) -> dict[tuple[str, str], list[Record]]:
    """Return the records of each contender and kind of run, those of all seeds together."""
    found: dict[tuple[str, str], list[Record]] = {}
    for group in itertools.product(CONTENDERS, ("sequences", "flops")):
        wanted = dict(zip(("contender", "kind", "fields"), (*group, fields), strict=True))
        if of := [run for run in runs.values() if wanted.items() <= run["run"].items()]:
            found[group] = of
    return found


def excess_table(runs: dict[str, Record]) -> Table:
    """Return the excess of each contender in one order, its difference from plm's, the excess in the best way, and the
    error of p(middle | ends)."""
    groups, rows = _groups(runs, "cdr3"), []
    for (contender, kind), of in groups.items():
        middles = [run["middle"]["excess"] for run in of if "middle" in run]
        cells = [
            studies.label(contender, kind), len(of), f"{of[0]['steps']:,}", f"{of[0]['flops']:.2g}",
            with_interval([_first(run)["excess"] for run in of]),
            _minus_plm(groups, contender, of, lambda run: _first(run)["excess"]),
            with_interval([_best(run)["excess"] for run in of]), [*of[0]["ways"]][-1],
            with_interval([_best(run)["r"] for run in of]), with_interval(middles) if middles else "",
        ]  # fmt: skip
        rows.append(list(map(str, cells)))
    head = ["contender", "seeds", "steps", "FLOPs", "excess, one order", "minus plm's", "excess, best", "best"]
    return [*head, "correlation", "p(middle, given ends), excess"], rows


def _minus_plm(
    groups: dict[tuple[str, str], list[Record]], contender: str, of: list[Record], number: Callable[[Record], float]
) -> str:
    """Return the mean difference of a number from plm's, paired by seed; an empty text for plm."""
    of_plm = {run["run"]["seed"]: number(run) for run in groups.get(("plm", "sequences"), [])}
    more = [number(run) - of_plm[seed] for run in of if (seed := run["run"]["seed"]) in of_plm]
    return with_interval(more, "+") if more and contender != "plm" else ""


def _first(run: Record) -> Record:
    """Return the excess and correlation in one order."""
    first: Record = run["ways"].get("K=1", _best(run))
    return first


def _best(run: Record) -> Record:
    """Return the excess and correlation in the best way, the last one."""
    best: Record = [*run["ways"].values()][-1]
    return best


def orders_table(runs: dict[str, Record]) -> Table:
    """Return the excess of each contender over K orders, and of its bound or its pseudo-likelihood."""
    rows = []
    for (contender, kind), of in _groups(runs, "cdr3").items():
        if contender != "clm":
            ways = [f"bound:{BOUND}", "pseudo", *(f"K={k}" for k in CURVE)]
            cells = [[run["ways"][way]["excess"] for run in of if way in run["ways"]] for way in ways]
            rows.append([studies.label(contender, kind), *(with_interval(cell) if cell else "" for cell in cells)])
    return ["excess", "bound", "pseudo", *(f"K = {k}" for k in CURVE)], rows


def genes_table(runs: dict[str, Record]) -> Table:
    """Return the error of p(v | cdr3) of each contender, and its difference from plm's."""
    groups, rows = _groups(runs, "genes"), []
    for (contender, _), of in groups.items():
        divergence, variation = ([run["v"][name] for run in of] for name in ("kl", "variation"))
        more = _minus_plm(groups, contender, of, lambda run: run["v"]["kl"])
        rows.append([contender, str(len(of)), with_interval(divergence), more, with_interval(variation)])
    return ["p(v, given cdr3)", "seeds", "divergence, nats", "minus plm's", "total variation"], rows


def draw(measured: dict[str, Record], path: Path) -> None:
    """Draw the excess by contender, its curve over K, and ln q of plm against ln p."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4), dpi=110, layout="constrained")
    bars, curve, scatter = figure.subplots(1, 3)
    groups = _groups({name: run for name, run in measured.items() if "run" in run}, "cdr3")
    for place, ((contender, kind), of) in enumerate(groups.items()):
        best = [_best(run) for run in of]
        mean = np.mean([one["excess"] for one in best])
        error = [[mean - np.mean([one["low"] for one in best])], [np.mean([one["high"] for one in best]) - mean]]
        color = f"C{[*CONTENDERS].index(contender)}"
        bars.barh(place, mean, xerr=error, color=color, alpha=1 if kind == "sequences" else 0.5)
        ks = [k for k in CURVE if f"K={k}" in of[0]["ways"]]
        if ks:
            excess = [np.mean([run["ways"][f"K={k}"]["excess"] for run in of]) for k in ks]
            line = "o-" if kind == "sequences" else "s:"
            curve.plot(ks, excess, line, color=color, label=studies.label(contender, kind))
    labels = [studies.label(contender, kind) for contender, kind in groups]
    if ngrams := measured.get("ngrams"):
        order, least = min(ngrams["ngrams"].items(), key=lambda item: item[1]["excess"])
        bars.barh(len(labels), least["excess"], color="gray")
        labels.append(f"{order}-gram")
    bars.set(yticks=range(len(labels)), yticklabels=labels, xlabel="excess, nats per sequence")
    bars.invert_yaxis()
    curve.set(xscale="log", xlabel="orders K", ylabel="excess, nats per sequence")
    curve.set_xticks(CURVE, [str(k) for k in CURVE])
    curve.legend(fontsize="x-small", labelspacing=0.2)
    log_p_T = np.array(json.loads(TRUTH.read_text())["log_p"])
    excess_T = np.array(groups["plm", "sequences"][0]["excess"])
    scatter.plot(log_p_T, log_p_T - excess_T, ".", ms=2)
    scatter.axline((-20, -20), slope=1, color="gray", lw=1)
    scatter.set(xlabel="ln p, exact", ylabel=f"ln q of plm, K = {ORDERS['plm']}")
    for axes in (bars, curve, scatter):
        axes.grid(alpha=0.3)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--measure", type=Path, help="run to measure, and exit")
    parser.add_argument("--out", type=Path, help="with --measure: JSON file")
    studies.add_arguments(parser, NAME)
    parser.add_argument("--report", action="store_true", help="print the tables of recorded runs, and exit")
    given = parser.parse_args()
    if given.measure:
        measured = json.dumps(measure(given.measure, given.data))
        given.out.write_text(measured) if given.out else print(measured)
        return
    if not given.report:
        run_study(given)
    measured = studies.read(MEASURED / NAME)
    report(measured)
    draw(measured, PICTURE)


def run_study(given: argparse.Namespace) -> None:
    """Run what is not recorded."""
    study, corpora = Study(NAME, given.workdir, given.jobs), given.workdir / "corpora"
    for fields in FIELDS:
        prepare(given.data, corpora, fields)

    def jobs_of(runs: Iterator[Run]) -> Iterator[Job]:
        return (run.job(corpora, given.data) for run in runs if fnmatch.fnmatch(run.name, given.only))

    for contender, fields in itertools.product(CONTENDERS, FIELDS):
        cost(contender, fields)  # kept: settings cannot be parsed by several threads at once
    study.run_chains(jobs_of(tuning(contender, study.measured)) for contender in CONTENDERS)
    study.run(jobs_of(runs_of(study.measured())))
    if not (ngrams := study.folder / "ngrams.json").exists():
        study.folder.mkdir(parents=True, exist_ok=True)
        ngrams.write_text(json.dumps(measure_ngrams(given.data)) + "\n")


if __name__ == "__main__":
    main()
