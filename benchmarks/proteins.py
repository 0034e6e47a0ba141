"""Proteins: held-out nats per residue of each objective beside n-grams, and the effects of mutations over K orders.

    python -m benchmarks.proteins PROTEINS.fasta.gz VARIANTS [--only '*plm*'] [--seeds 3] [--jobs 2]
    python -m benchmarks.proteins --report

PROTEINS are UniProt sequences (docs/sequences.md names the sample), VARIANTS the folder with the experiments of
DeepSequence (Riesselman et al. 2018) in ASSAYS. Related proteins stand on one side of the split: two are related if
they share SHARED different stretches of WORD residues that are LEAST_SHARE of those of the shorter one, and whole
groups are held out. Each run is a normal train command; all have the same network, windows and steps, and a learning
rate from the same grid, chosen by the held-out loss that the objective trains as studies.tuning does, with short runs
of TUNING steps.

The first table is of HELD_OUT held-out proteins of at most LONGEST residues, in nats per residue. `likelihood`: of
plm the mean over ORDERS random orders, of clm from left to right, of mdlm its bound; n-grams are interpolated by Witten
and Bell (1991). `given all others`: each residue given the rest. Both without <eod>. The second table is Spearman's rho
of `score_variants` with each assay: given the rest, and the mean over the first K random orders of the whole sequence.
"""

import argparse
import csv
import fnmatch
import functools
import gzip
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import scipy.sparse.csgraph

from benchmarks import studies
from benchmarks.results import Table, keep_table
from benchmarks.studies import MEASURED, Job, Record, Study, run_module
from benchmarks.table6 import interval
from xlnet_jax import load, score_texts, score_variants
from xlnet_jax.inference.variants import correlate

NAME = "proteins"
OBJECTIVES = ("plm", "mlm", "clm", "mdlm")
ASSAYS = {"DLG4_RAT_Ranganathan2012.csv": ("CRIPT", 32), "BLAT_ECOLX_Ranganathan2015.csv": ("2500", 8)}
"""file -> (measured column, most orders: BLAT has ten times the residues to score)"""
WORD, SHARED, LEAST_SHARE, MOST_COMMON = 5, 5, 0.05, 40
"""residues of a stretch; stretches that related proteins share, at least, and as a share of the shorter one's; those of
more proteins do not count"""
SHARE_HELD_OUT, HELD_OUT, LONGEST = 0.05, 128, 200
"""share of the groups, and proteins of them that are scored, with at most so many residues"""
ORDERS, BOUND = 8, 32
"""random orders of plm's likelihood, and samples of mdlm's bound"""
CURVE = (1, 2, 4, 8, 16, 32)
"""numbers of orders of the whole sequence"""
MEASURES = "measured.json"
WINDOW, BATCH, STEPS = 256, 16, 800
RATES, TUNING = (2.8e-3, 5.6e-3, 1.12e-2, 2.24e-2), 200
"""learning rates of the embeddings, matrices learn at 3.6 times these (Muon); and steps of a short run at each"""
SETTINGS = f"""--preset demo --fields sequence:protein --long cut --data.seq-len {WINDOW} --data.batch-size {BATCH}
    --eval.max-windows 256 --log.every-steps 100 --checkpoint.keep 1""".split()


# ---- the proteins ----------------------------------------------------------------------------------------------------


def read_fasta(file: Path) -> dict[str, str]:
    """Return the different sequences of a file, each with its first header."""
    with gzip.open(file, "rt") if file.suffix == ".gz" else file.open() as lines:
        parts = [part.partition("\n") for part in f"\n{lines.read()}".split("\n>")[1:]]
    found: dict[str, str] = {}
    for header, _, sequence in parts:
        found.setdefault("".join(sequence.split()).upper(), header)
    return {header: sequence for sequence, header in found.items()}


def groups_of(sequences: Sequence[str]) -> np.ndarray:
    """Return the number of each sequence's group of related ones: int [sequences]."""
    words = {word: i for i, word in enumerate(dict.fromkeys(itertools.chain(*map(_words, sequences))))}
    of_sequence = [sorted({words[word] for word in _words(sequence)}) for sequence in sequences]
    begins = np.cumsum([0, *map(len, of_sequence)])
    columns = np.fromiter(itertools.chain(*of_sequence), np.int64, begins[-1])
    has_word = scipy.sparse.csr_array((np.ones(len(columns), np.int32), columns, begins), (len(sequences), len(words)))
    counts = np.asarray(has_word.sum(0))
    telling = has_word[:, np.flatnonzero((counts > 1) & (counts <= MOST_COMMON))]
    shared, lengths = (telling @ telling.T).tocoo(), np.diff(begins)
    needed = np.maximum(SHARED, LEAST_SHARE * np.minimum(lengths[shared.row], lengths[shared.col]))
    shared.data = shared.data >= needed
    shared.eliminate_zeros()
    return np.asarray(scipy.sparse.csgraph.connected_components(shared, directed=False)[1])


def _words(sequence: str) -> Iterator[str]:
    return (sequence[i : i + WORD] for i in range(len(sequence) - WORD + 1))


def split(proteins: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the training and the held-out proteins. A group is held out by the hash of its first header."""
    group_of = groups_of(list(proteins.values()))
    first = {group: header for header, group in reversed(list(zip(proteins, group_of.tolist(), strict=True)))}
    hashes = {group: int(hashlib.sha256(header.encode()).hexdigest(), 16) for group, header in first.items()}
    is_held_out = {group: number / 2**256 < SHARE_HELD_OUT for group, number in hashes.items()}
    sizes = np.bincount(group_of)
    print(f"{len(proteins):,} proteins in {len(sizes):,} groups, the largest of {sizes.max():,} proteins")
    parts: tuple[dict[str, str], dict[str, str]] = {}, {}
    for (header, sequence), group in zip(proteins.items(), group_of.tolist(), strict=True):
        parts[is_held_out[group]][header] = sequence
    return parts


def scored(held_out: Sequence[str]) -> list[str]:
    """Return the held-out proteins that are scored: the first short ones by their hash."""
    short = sorted((s for s in held_out if len(s) <= LONGEST), key=lambda s: hashlib.sha256(s.encode()).hexdigest())
    return short[:HELD_OUT]


def ngram_loss(train: Sequence[str], held_out: Sequence[str], order: int) -> float:
    """Return the nats per residue of an n-gram model with Witten-Bell interpolation, without <eod>."""
    letters = {letter: i for i, letter in enumerate(sorted(set("".join([*train, *held_out]))), start=1)}
    size, begin = len(letters) + 1, [0] * (order - 1)
    ids, seen = (
        np.array([i for s in part for i in (*begin, *map(letters.__getitem__, s))], np.int64)
        for part in (held_out, train)
    )
    of_ids, of_seen = np.full(len(ids), 1 / len(letters)), seen > 0
    context, context_seen = np.zeros_like(ids), np.zeros_like(seen)
    for n in range(order):
        if n:
            context += np.roll(ids, n) * size ** (n - 1)
            context_seen += np.roll(seen, n) * size ** (n - 1)
        counts = np.bincount((context_seen * size + seen)[of_seen], minlength=size ** (n + 1))
        totals = counts.reshape(-1, size).sum(1)
        followers = (counts.reshape(-1, size) > 0).sum(1)
        weight = followers[context] / np.maximum(totals[context] + followers[context], 1)
        share = counts[context * size + ids] / np.maximum(totals[context], 1)
        of_ids = np.where(totals[context] > 0, (1 - weight) * share + weight * of_ids, of_ids)
    return float(-np.log(of_ids[ids > 0]).mean())


def assay(file: Path, measured: str) -> tuple[str, list[str], list[float]]:
    """Return (the part of the protein that was mutated, mutants with positions in it, measured numbers)."""
    with file.open(newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row[measured]]
    mutations = [(row["mutant"][0], int(row["mutant"][1:-1]), row["mutant"][-1]) for row in rows]
    symbols = {position: symbol for symbol, position, _ in mutations}
    first = min(symbols)
    reference = "".join(symbols[position] for position in range(first, max(symbols) + 1))
    changes = [
        (f"{symbol}{position - first + 1}{new}", float(row[measured]))
        for (symbol, position, new), row in zip(mutations, rows, strict=True) if new != symbol
    ]  # fmt: skip
    return reference, [mutant for mutant, _ in changes], [number for _, number in changes]


# ---- running ---------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("proteins", type=Path, nargs="?")
    parser.add_argument("variants", type=Path, nargs="?")
    studies.add_arguments(parser, NAME)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--measure", type=Path, help=f"run to measure, into its {MEASURES}, and exit")
    parser.add_argument("--report", action="store_true", help="print the tables of recorded runs, and exit")
    given = parser.parse_args()
    if given.measure:
        measure(given)
        return
    if not given.report:
        run_study(given)
    report(studies.read(MEASURED / NAME))


def texts_of(given: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Return the proteins to train on, and the held-out ones that are scored. Writes both parts, unless they exist."""
    parts = [given.workdir / name for name in ("train.fasta", "held_out.fasta")]
    if not all(part.exists() for part in parts):
        given.workdir.mkdir(parents=True, exist_ok=True)
        for part, proteins in zip(parts, split(read_fasta(given.proteins)), strict=True):
            part.write_text("".join(f">{header}\n{sequence}\n" for header, sequence in proteins.items()))
    train, held_out = (list(read_fasta(part).values()) for part in parts)
    return train, scored(held_out)


def measure(given: argparse.Namespace) -> None:
    """Write what one run is measured by to its folder."""
    found = {
        "losses": losses(given.measure, texts_of(given)[1]),
        "rho": {file: rhos(given.measure, given.variants / file, *of) for file, of in ASSAYS.items()},
    }
    (given.measure / MEASURES).write_text(json.dumps(found))


def run_study(given: argparse.Namespace) -> None:
    """Run what is not recorded."""
    train, held_out = texts_of(given)
    study = Study(NAME, given.workdir, given.jobs)

    def wanted(jobs: Iterable[Job]) -> Iterator[Job]:
        return (job for job in jobs if fnmatch.fnmatch(job.name, given.only))

    study.run_chains(wanted(tuning(objective, study.measured, given)) for objective in OBJECTIVES)
    study.run(wanted(runs_of(study.measured(), given)))
    if not (ngrams := study.folder / "ngrams.json").exists():
        of_orders = {name: ngram_loss(train, held_out, order) for order, name in ((1, "unigrams"), (3, "trigrams"))}
        ngrams.write_text(json.dumps({"losses": of_orders, "residues": [*map(len, held_out)]}) + "\n")


def tuning(objective: str, measured: Callable[[], Mapping[str, Record]], given: argparse.Namespace) -> Iterator[Job]:
    """Yield the runs of studies.tuning for an objective."""
    name_of = functools.partial(_tuning_name, objective)
    for kind, rate in studies.tuning(name_of, RATES, measured):
        steps = TUNING if kind == "tune" else STEPS
        command = functools.partial(command_of, objective, 0, rate, steps, given)

        def record(workdir: Path, command: Callable[[Path], list[str]] = command) -> Record:
            shown = studies.shown(command(workdir), workdir, PROTEINS=str(given.workdir))
            return {"command": shown, "loss": studies.held_out_loss(workdir), **studies.time_of(workdir)}

        yield Job(name_of(kind, rate), command, record)


def _tuning_name(objective: str, kind: str, rate: float) -> str:
    return f"{objective}-{kind}-{rate:g}"


def runs_of(measured: Mapping[str, Record], given: argparse.Namespace) -> Iterator[Job]:
    """Yield the runs after tuning."""
    found = {name: studies.best_rate(functools.partial(_tuning_name, name), RATES, measured) for name in OBJECTIVES}
    for seed, (objective, rate) in itertools.product(range(given.seeds), found.items()):
        if rate:
            yield job(objective, seed, rate, given)


def command_of(
    objective: str, seed: int, rate: float, steps: int, given: argparse.Namespace, workdir: Path
) -> list[str]:
    """Return the train command of a run."""
    own = {
        "objective": objective, "seed": seed, "steps": steps, "optimizer.learning-rate": rate,
        "optimizer.warmup-steps": steps // 20, "eval.every-steps": steps, "checkpoint.every-steps": steps,
        "corpus": given.workdir / "train.fasta", "validation": given.workdir / "held_out.fasta", "workdir": workdir,
    }  # fmt: skip
    return ["xlnet_jax.train", *SETTINGS, *(word for name, value in own.items() for word in (f"--{name}", str(value)))]


def job(objective: str, seed: int, rate: float, given: argparse.Namespace) -> Job:
    """Return the training run of an objective and a seed."""

    command = functools.partial(command_of, objective, seed, rate, STEPS, given)

    def record(workdir: Path) -> Record:
        # In a process of its own, which gives its memory back.
        run_module(
            "benchmarks.proteins", given.proteins, given.variants, "--workdir", given.workdir, "--measure", workdir,
        )  # fmt: skip
        return {
            "command": studies.shown(command(workdir), workdir, PROTEINS=str(given.workdir)),
            "objective": objective,
            "loss": studies.held_out_loss(workdir),
            **json.loads((workdir / MEASURES).read_text()),
            **studies.time_of(workdir),
        }

    return Job(f"{objective}-seed-{seed}", command, record)


def losses(workdir: Path, proteins: Sequence[str]) -> dict[str, list[float]]:
    """Return the nats of the residues of each protein, by the name of a column."""
    pretrained = load(workdir)
    words = {"plm": f"random:{ORDERS}", "clm": "left-to-right", "mdlm": f"bound:{BOUND}"}
    names = {"likelihood": words.get(pretrained.objective)}
    if not pretrained.is_causal:
        names["given all others"] = "pseudo"
    found = {}
    for name, word in names.items():
        if word:
            scores = score_texts(pretrained, proteins, word, max_len=WINDOW)
            pairs = zip(scores, proteins, strict=True)
            found[name] = [round(-float(score.log_probs_P[: len(protein)].sum()), 3) for score, protein in pairs]
    return found


def rhos(workdir: Path, file: Path, column: str, orders: int) -> dict[str, Sequence[float]]:
    """Return Spearman's rho, with its interval over variants, of each way to score the variants of an assay."""
    pretrained, (reference, mutants, measured) = load(workdir), assay(file, column)
    by_default = score_variants(pretrained, reference, mutants)
    found = {"left-to-right" if pretrained.is_causal else "given the rest": correlate(by_default, measured)[:3]}
    if pretrained.objective == "plm":
        total = np.zeros(len(mutants))
        for k in range(1, orders + 1):
            total += score_variants(pretrained, reference, mutants, "random:1", seed=k)
            if k in CURVE:
                found[f"K={k}"] = correlate(total, measured)[:3]
    return found


def report(measured: dict[str, Record]) -> None:
    """Print the tables of losses and of correlations."""
    runs = {name: [run for run in measured.values() if run.get("objective") == name] for name in OBJECTIVES}
    keep_table("proteins-rates", *studies.rates_table(_tuning_name, OBJECTIVES, RATES, measured, f"{TUNING} steps"))
    keep_table("proteins-losses", *losses_table(runs, measured["ngrams"]))
    head, rows = ["Spearman's rho", *(file.partition("_")[0] for file in ASSAYS)], []
    for name, of in runs.items():
        for way in of[0]["rho"][next(iter(ASSAYS))] if of else ():
            by_assay = [[run["rho"][file][way] for run in of if way in run["rho"][file]] for file in ASSAYS]
            cells = (
                "{:.3f} ({:.3f} to {:.3f})".format(*np.mean(of_assay, 0)) if of_assay else "" for of_assay in by_assay
            )
            rows.append([f"{name}, {way}", *cells])
    keep_table("proteins-variants", head, rows)


def losses_table(runs: Mapping[str, Sequence[Record]], ngrams: Record) -> Table:
    """Return the losses of n-grams and objectives. The intervals of differences are over proteins."""
    per_residue, columns = 1 / np.mean(ngrams["residues"]), ("likelihood", "given all others")
    rows = [[name, "", f"{loss:.3f}", "", ""] for name, loss in ngrams["losses"].items()]
    nats = {
        name: {column: np.mean([run["losses"][column] for run in of], 0) for column in of[0]["losses"]}
        for name, of in runs.items() if of
    }  # fmt: skip
    for name, by_column in nats.items():
        means = [f"{by_column[column].mean() * per_residue:.3f}" if column in by_column else "" for column in columns]
        more = ""
        if name != "plm" and "likelihood" in by_column:
            differences = (by_column["likelihood"] - nats["plm"]["likelihood"]) * per_residue
            more = "{:+.3f} ({:+.3f} to {:+.3f})".format(differences.mean(), *interval(differences))
        rows.append([name, str(len(runs[name])), means[0], more, means[1]])
    return ["nats per residue", "seeds", "likelihood", "minus plm's", "given all others"], rows


if __name__ == "__main__":
    main()
