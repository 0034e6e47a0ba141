"""Train small networks with vocabularies of 1,000 to 16,000 pieces on 0.3 to 55 MB of text, for the law behind
`train --minutes`.

    python -m benchmarks.dial novels.txt [--others FOLDER] [--only '*-16-*'] [--jobs 2] [--workdir runs/dial]
    python -m benchmarks.dial --fit

Each run is a normal train command on a part of the text, with its own tokenizer. The parts are chapters in random
order, of which a smaller part is the beginning of a larger one; all runs have the same held-out chapters. FOLDER has
the other kinds of text of `OTHERS`; a part of each is held out.

--fit fits the law to the runs of `FITTED` and `OTHERS`, to `LONGEST` and to the runs of benchmarks/modern.py, writes
xlnet_jax/training/dial_law.json, and prints the runs, with the errors of those that were not fitted. The runs of
benchmarks/modern.py have 8,000 pieces and two layers, read far more tokens, and are measured with fewer targets, which
are easier: the fit includes the difference. Their learning rate is twice as high, so their D0 is taken for half. Priors
hold what the few runs leave open: alpha and beta near those of benchmarks/modern.py alone, delta near 0, and R near
15.4 (Muennighoff et al. 2023).

The runs of `TIMED` are those of users, `train --minutes`, on one core.
"""

import argparse
import fnmatch
import json
import math
import random
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from benchmarks import fit_scaling, studies
from benchmarks.modern import flags
from benchmarks.results import keep_table
from benchmarks.studies import Job, Record, Study
from data_pipelines.corpus import Corpus
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.training.dial import SEQ_LEN, recipe, share_to_hold_out
from xlnet_jax.training.dial_law import FILE, DialLaw, trigram_gain

NAME = "dial"
BATCH_SIZE = 16
HELD_OUT = 300_000
"""characters"""
ENGLISH_TOKENS, ENGLISH_UNIGRAM = 15e6, 6.461
"""tokens of the corpus of benchmarks/modern.py, and the unigram line of its held-out text"""


@dataclass(frozen=True)
class Run:
    """One pretraining run of the study."""

    layers: int
    width: int
    vocab_size: int
    megabytes: float
    """size of the text"""
    steps: int
    text: str = ""
    """file of another kind of text; nothing = novels"""

    @property
    def name(self) -> str:
        kind = f"{Path(self.text).stem}-" * bool(self.text)
        return f"{kind}{self.layers}x{self.width}-{self.vocab_size}-{self.megabytes:g}-{self.steps}"

    def command(self, texts: Path, workdir: Path) -> list[str]:
        """Return module and arguments of the run. texts: folder of the texts of its kind."""
        values = recipe(self.layers, self.width, self.vocab_size, BATCH_SIZE, self.steps)
        of_text: dict[str, Any] = {
            "corpus": str(texts / f"{self.megabytes:g}.txt"), "validation": str(texts / "held-out.txt"),
        }  # fmt: skip
        if self.text:
            share = share_to_hold_out(1e6 * self.megabytes)
            of_text = {"corpus": str(texts / self.text), "data.validation-fraction": share}
        settings = {name.replace("_", "-"): value for name, value in values.items()} | {
            "eval.every-steps": self.steps, "eval.max-windows": 1024, "log.every-steps": max(self.steps // 50, 1),
            "checkpoint.every-steps": self.steps, "checkpoint.keep": 1, "workdir": str(workdir),
        }  # fmt: skip
        return ["xlnet_jax.train", *flags(settings | of_text)]

    def record(self, texts: Path, workdir: Path) -> Record:
        """Return the results of the run."""
        command = studies.shown(self.command(texts, workdir), workdir, TEXTS=str(texts))
        return {"command": command, **asdict(self), **results_of(workdir, self.steps)}


def results_of(workdir: Path, steps: int) -> Record:
    """Return the results of a run of so many steps, and what the law asks of its text."""
    corpus, tables = Corpus(workdir / "corpus"), Tokenizer.load(workdir / "tokenizer").tables
    counts, held_out = corpus.unigram_counts, studies.rows_of(workdir, "validation")[-1]
    return {
        "tokens": steps * BATCH_SIZE * (SEQ_LEN - 2),
        "text_tokens": corpus.num_blocks("train") * corpus.block_len,
        "trigrams": trigram_gain(corpus),
        "characters_per_piece": round(float(counts @ tables.characters / counts.sum()), 4),
        "loss": held_out["loss"],
        "unigram": held_out["unigram"],
        **studies.time_of(workdir),
    }


FITTED = (
    Run(2, 64, 1000, 16, 800), Run(2, 64, 4000, 16, 800), Run(2, 64, 16000, 16, 400), Run(2, 64, 1000, 0.3, 600),
    Run(2, 64, 1000, 16, 200), Run(2, 128, 1000, 0.3, 300), Run(6, 64, 1000, 4, 500),
)  # fmt: skip
TESTED = (Run(2, 64, 2000, 1, 800), Run(4, 64, 2000, 16, 600), Run(3, 96, 4000, 4, 500), Run(2, 64, 8000, 60, 600))
"""which the law predicts"""
OTHERS = (
    Run(2, 64, 2000, 3, 600, "de.txt"), Run(2, 128, 4000, 3, 1500, "de.txt"), Run(2, 128, 4000, 3, 3000, "de.txt"),
    Run(2, 64, 1000, 0.3, 300, "code.jsonl"), Run(2, 64, 1000, 0.3, 600, "code.jsonl"),
    Run(2, 64, 2000, 2.9, 600, "speeches.txt"), Run(2, 128, 4000, 2.9, 1500, "speeches.txt"),
    Run(2, 64, 2000, 0.5, 600, "zh.txt"),
)  # fmt: skip
"""Runs to which T is fitted. `de.txt` has paragraphs, list items and headings of German HTML pages, each line
once and a page a document, of the Debian packages debian-handbook, debian-reference-de, developers-reference-de,
harden-doc, installation-guide-amd64, debian-faq-de and maint-guide-de; `code.jsonl` modules of Python's library;
`speeches.txt` speeches of US presidents; `zh.txt` the handbook in Chinese."""


@dataclass(frozen=True)
class Timed:
    """One run of `train --minutes`."""

    minutes: int
    text: str = ""
    """file of another kind of text; nothing = 16 MB of novels"""

    @property
    def name(self) -> str:
        return f"{Path(self.text).stem or 'novels'}-{self.minutes}-minutes"

    def command(self, texts: Path, workdir: Path) -> list[str]:
        """Return module and arguments of the run. texts: folder of the text."""
        settings = {"corpus": str(texts / (self.text or "16.txt")), "minutes": self.minutes, "workdir": str(workdir)}
        return ["xlnet_jax.train", *flags(settings)]

    def record(self, texts: Path, workdir: Path) -> Record:
        """Return the sizes that the run chose, and its results."""
        config = json.loads((workdir / "config.json").read_text())
        model = config["model"]
        return {
            "command": studies.shown(self.command(texts, workdir), workdir, TEXTS=str(texts)),
            **asdict(self),
            "layers": model["num_layers"],
            "width": model["d_model"],
            "vocab_size": model["vocab_size"],
            "steps": config["steps"],
            **results_of(workdir, config["steps"]),
        }


LONGEST = Timed(15)
"""which is fitted too: the modern runs that are as long have another learning rate"""
TIMED = (LONGEST, Timed(15, "de.txt"), Timed(5, "de.txt"), Timed(5, "code.jsonl"))


PRIORS = {
    "alpha": (0.33, 0.03),
    "beta": (0.37, 0.03),
    "delta": (0.0, 0.02),
    "depth": (0.5, 0.5),
    "R": (math.log(15.4), 0.5),
}
"""mean and standard deviation; of R, those of its logarithm"""
NOISE = 0.02
"""nats by which equal runs differ"""


def fit(measured: dict[str, Record]) -> DialLaw:
    """Return the law of the runs that are fitted."""
    rows = [measured[run.name] for run in FITTED]
    others = [measured[run.name] for run in OTHERS]
    known = DialLaw(*[0.0] * 10, **facts_of(rows), errors=(), errors_of_others=())
    facts = [(*place_of(known, r), r["unigram"] - r["loss"]) for r in (*rows, *others, measured[LONGEST.name])]
    old = list(modern_runs().values())
    read = [(2, r["parameters"], 8_000, r["tokens"] * 126 / 128, ENGLISH_TOKENS, 1.0) for r in old]
    is_old = [False] * len(facts) + [True] * len(old)
    facts += [(*place, ENGLISH_UNIGRAM - r["loss"]) for place, r in zip(read, old, strict=True)]
    names = ("G", "A", "alpha", "B", "delta", "beta", "D0", "R", "depth", "T")

    def law_at(point: np.ndarray) -> DialLaw:
        G, A, alpha, B, delta, beta, D0, R, depth, T, _ = map(float, point)
        values = G, math.exp(A), alpha, math.exp(B), delta, beta, 1e6 * D0, math.exp(R), depth, T
        return replace(known, **dict(zip(names, values, strict=True)))

    def errors(point: np.ndarray) -> np.ndarray:
        law = law_at(point)
        at_rate = {False: law, True: replace(law, D0=law.D0 / 2)}
        missed = [
            at_rate[old].gain(*row[:6]) - row[6] + point[-1] * old for row, old in zip(facts, is_old, strict=True)
        ]
        prior = [(point[names.index(name)] - mean) / spread for name, (mean, spread) in PRIORS.items()]
        return np.concatenate([np.array(missed) / NOISE, prior])

    starts = [(3.5, 3.8 + a, 0.33, 5.1 + b, 0.0, 0.37, 0.2, 2.7, 0.5, 0.5, 0.2) for a in (-1, 0) for b in (0, 1)]
    best = min((least_squares(errors, start, loss="soft_l1") for start in starts), key=lambda found: found.cost).x
    law, tested = law_at(best), [measured[run.name] for run in (*TESTED, *TIMED) if run is not LONGEST]
    of_others = errors_of(law, [*others, *(record for record in tested if record.get("text"))])
    return replace(law, errors=errors_of(law, tested), errors_of_others=of_others)


def errors_of(law: DialLaw, records: list[Record]) -> tuple[float, ...]:
    """Return how much the law misses runs by, in nats per piece."""
    return tuple(round(abs(error_of(law, record)), 4) for record in records)


def parameters_of(record: Record) -> int:
    """Return the weights of the matrices in layers."""
    return 13 * record["layers"] * record["width"] ** 2


def error_of(law: DialLaw, record: Record) -> float:
    """Return the loss of a run minus the one by the law, in nats per piece."""
    return float(record["loss"] - record["unigram"] + law.gain(*place_of(law, record)))


def of_trigrams(law: DialLaw, record: Record) -> float:
    """Return r of the text of a run: 1 for the texts that the law is fitted to."""
    has_own_text = record.get("text") or "minutes" in record
    return law.of_trigrams(*record["trigrams"], record["vocab_size"]) if has_own_text else 1.0


def place_of(law: DialLaw, record: Record) -> tuple[int, int, int, int, int, float]:
    """Return the arguments of `DialLaw.gain` for a run."""
    sizes = record["layers"], parameters_of(record), record["vocab_size"], record["tokens"], record["text_tokens"]
    return *sizes, of_trigrams(law, record)


def modern_runs() -> dict[str, Record]:
    """Return the runs of benchmarks/modern.py that its law was fitted to, and the largest."""
    runs, largest = fit_scaling.runs_of(*fit_scaling.STUDIES["muon"][:3])
    return {str(number): run for number, run in enumerate(runs)} | {"largest": largest[0]}


def facts_of(rows: list[Record]) -> dict[str, Any]:
    """Return what the law knows of the runs' texts and sizes."""
    of_pieces: dict[int, list[Record]] = {}
    for row in rows:
        of_pieces.setdefault(row["vocab_size"], []).append(row)
    kinds = ("unigram", "characters_per_piece")
    vocabularies = [(n, *(round(mean(r[kind] for r in of_pieces[n]), 3) for kind in kinds)) for n in sorted(of_pieces)]
    sampled = np.array([(1, math.log(r["trigrams"][0]), math.log(r["vocab_size"]), r["trigrams"][1]) for r in rows])
    trigrams = np.linalg.lstsq(sampled[:, :3], sampled[:, 3])[0]
    facts = {
        "parameters": [*map(parameters_of, rows), *(r["parameters"] for r in modern_runs().values())],
        "pieces": [r["vocab_size"] for r in rows],
        "million tokens read": [r["tokens"] / 1e6 for r in (*rows, *modern_runs().values())],
        "million tokens of text": [r["text_tokens"] / 1e6 for r in rows] + [ENGLISH_TOKENS / 1e6],
        "passes": [r["tokens"] / r["text_tokens"] for r in rows],
    }  # fmt: skip
    ranges = {name: (min(numbers), max(numbers)) for name, numbers in facts.items()}
    ranges["passes"] = 0.0, ranges["passes"][1]
    return {"vocabularies": tuple(vocabularies), "trigrams": tuple(map(float, trigrams)), "ranges": ranges}


def report(law: DialLaw, measured: dict[str, Record]) -> None:
    """Print the runs and the law, and keep the tables."""
    head = ("network", "pieces", "MB", "tokens read", "passes", "held-out loss", "by the law")
    rows = []
    for run in (*FITTED, *TESTED):
        if r := measured.get(run.name):
            bits = r["loss"] / r["characters_per_piece"] / math.log(2)
            rows.append([*cells_of(law, r), f"{bits:.3f}", "yes" if run in FITTED else "no"])
    keep_table("dial-runs", (*head, "bits per character", "fitted"), rows)
    others = [
        [f"`{r['text']}`", f"{of_trigrams(law, r):.2f}", *cells_of(law, r)]
        for run in OTHERS
        if (r := measured.get(run.name))
    ]
    keep_table("dial-others", ("text", "r", *head), others)
    of_time = [
        [
            f"`{r['text']}`" if r["text"] else "novels", str(r["minutes"]), f"{r['seconds'] / 60:.1f}",
            f"{r['layers']} x {r['width']}", f"{r['vocab_size']:,}", f"{of_trigrams(law, r):.2f}", f"{r['loss']:.3f}",
            f"{r['loss'] - error_of(law, r):.3f}",
        ]
        for run in TIMED
        if (r := measured.get(run.name))
    ]  # fmt: skip
    keep_table(
        "dial-timed", ("text", "minutes", "took", "network", "pieces", "r", "held-out loss", "by the law"), of_time
    )
    names = ("G", "A", "alpha", "B", "delta", "beta", "D0", "R", "depth", "T")
    values = [(name, f"{getattr(law, name):.4g}") for name in names]
    missed = f"{mean(law.errors):.3f}", f"{max(law.errors):.3f}"
    of_errors = "mean error of the runs that were not fitted", "largest"
    keep_table("dial-law", ("", "value"), [*values, *zip(of_errors, missed, strict=True)])


def cells_of(law: DialLaw, r: Record) -> list[str]:
    """Return the cells of a run: sizes, and its loss beside the one by the law."""
    size = f"{r['layers']} x {r['width']}", f"{r['vocab_size']:,}", f"{r['megabytes']:g}", f"{r['tokens']:,}"
    passes = f"{r['tokens'] / r['text_tokens']:.1f}"
    return [*size, passes, f"{r['loss']:.3f}", f"{r['loss'] - error_of(law, r):.3f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("novels", type=Path, nargs="?")
    parser.add_argument("--others", type=Path, help="folder with other kinds of text; without it, they are left out")
    parser.add_argument("--fit", action="store_true", help="fit the law to the recorded runs, and exit")
    studies.add_arguments(parser, NAME)
    given = parser.parse_args()
    if given.fit:
        measured = studies.read(studies.MEASURED / NAME)
        law = fit(measured)
        FILE.write_text(json.dumps(asdict(law)) + "\n")
        report(law, measured)
        return
    if not given.novels:
        parser.error("give novels.txt, or --fit")
    texts = given.workdir / "texts"
    write_texts(given.novels, texts)
    runs = [run for run in (*TESTED, *FITTED, *OTHERS, *TIMED) if fnmatch.fnmatch(run.name, given.only)]
    jobs = []
    for run in runs:
        if folder := given.others if run.text else texts:
            jobs.append(Job(run.name, partial(run.command, folder), partial(run.record, folder)))
    Study(NAME, given.workdir, given.jobs).run(jobs)


def write_texts(novels: Path, folder: Path) -> None:
    """Write the parts of the text and the held-out chapters."""
    folder.mkdir(parents=True, exist_ok=True)
    chapters = [chapter.strip("\n") for chapter in novels.read_text().split("\n\n") if chapter.strip()]
    random.Random(0).shuffle(chapters)

    def write(name: str, characters: float, begin: int) -> int:
        end, size = begin, 0
        while size < characters and end < len(chapters):
            size, end = size + len(chapters[end]), end + 1
        (folder / f"{name}.txt").write_text("\n\n".join(chapters[begin:end]) + "\n")
        return end

    begin = write("held-out", HELD_OUT, 0)
    for megabytes in sorted({run.megabytes for run in (*FITTED, *TESTED)}):
        write(f"{megabytes:g}", megabytes * 1e6, begin)


if __name__ == "__main__":
    main()
