"""Measure what --balance gains where labels are rare: the task is to predict which novel a paragraph is from, with 90%
from one and 5% from each of two others.

    python -m benchmarks.balance [--seeds 3] [--workdir runs/balance]

The novels are those that come with the package. Each seed draws its paragraphs for training, for the choice of a
checkpoint and for the test. tiny is finetuned with each --balance and equal settings, for 100 and for 300 steps; the F1
on the second set chooses the checkpoint, for all alike. The numbers are of the test set, means over the seeds; the
gains are paired. As a last control, the probabilities of `none` are divided by a power of the frequencies of the
labels, chosen on the second set too."""

import argparse
import itertools
import statistics
from pathlib import Path

import numpy as np

import xlnet_jax
from benchmarks.results import keep_table
from data_pipelines import sources

NOVELS = {"pride": "PRIDE AND PREJUDICE", "sense": "SENSE AND SENSIBILITY", "emma": "EMMA"}
"""label and first line of each, in the order of the file"""
PARTS = {"train": (810, 45, 45), "dev": (270, 15, 15), "test": (450, 25, 25)}
"""paragraphs of each novel"""
STEPS = (100, 300)
HEAD = ("balance", "macro-F1", "recall of the rare labels", "accuracy", "gain in macro-F1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workdir", type=Path, default=Path("runs/balance"))
    given = parser.parse_args()
    rows = []
    for steps in STEPS:
        rows += rows_of(steps, given)
    keep_table("balance", HEAD, rows)


def rows_of(steps: int, given: argparse.Namespace) -> list[list[str]]:
    """Return the rows of the table for runs of this length."""
    found: dict[str, list[np.ndarray]] = {}
    for seed in range(given.seeds):
        files = parts_of(given.workdir / f"data-{seed}", seed)
        for balance in ("none", "weights", "sampling"):
            dev, test = probabilities_of(files, balance, seed, steps, given.workdir)
            found.setdefault(balance, []).append(scores(test, "test"))
            if balance == "none":
                frequencies = np.array(PARTS["train"]) / sum(PARTS["train"])
                powers = np.linspace(0, 2, 41)
                best = max(powers, key=lambda power, dev=dev, f=frequencies: scores(dev / f**power, "dev")[0])
                found.setdefault("none, divided by frequencies", []).append(scores(test / frequencies**best, "test"))
    none = np.array(found["none"])
    rows = []
    for name, of_seeds in found.items():
        gains = (np.array(of_seeds) - none)[:, 0].tolist()
        gain = f"{statistics.mean(gains):+.3f} ± {statistics.stdev(gains) / len(gains) ** 0.5:.3f}"
        gain = "" if name == "none" else gain
        rows.append([f"{name}, {steps} steps", *(f"{value:.3f}" for value in np.mean(of_seeds, axis=0)), gain])
    return rows


def parts_of(folder: Path, seed: int) -> dict[str, Path]:
    """Write the parts of a seed, and return their files. The rows are in the order of the labels."""
    lines = Path(sources.embedded()[0]).read_text().splitlines()
    begins = [*map(lines.index, NOVELS.values()), len(lines)]
    rng = np.random.default_rng(seed)
    left = []
    for begin, end in itertools.pairwise(begins):
        paragraphs = sorted({line for line in lines[begin:end] if len(line.split()) >= 20})
        left.append(iter(rng.permutation(paragraphs)))
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for part, counts in PARTS.items():
        rows = ["text\tlabel"]
        for label, paragraphs, count in zip(NOVELS, left, counts, strict=True):
            rows += [f"{text}\t{label}" for text in itertools.islice(paragraphs, count)]
        files[part] = folder / f"{part}.tsv"
        files[part].write_text("\n".join(rows) + "\n")
    return files


def probabilities_of(files: dict[str, Path], balance: str, seed: int, steps: int, folder: Path) -> list[np.ndarray]:
    """Finetune, and return the probabilities of the labels for the second and the third set, [examples, labels]."""
    workdir = folder / f"{seed}-{balance}-{steps}"
    xlnet_jax.finetune(
        init="tiny", task="classification", train=(str(files["train"]),), eval=(str(files["dev"]),),
        predict=(str(files["test"]),), workdir=str(workdir), balance=balance, seeds=(seed,), steps=steps,
        **{"data.batch_size": 16, "data.seq_len": 48, "data.buckets": (48,), "selection.metric": "f1",
           "selection.every_steps": 100, "log.every_steps": 100},
    )  # fmt: skip
    tables = [workdir / "predictions" / part / "predictions.tsv" for part in ("eval", "predict")]
    read = [[line.split("\t") for line in table.read_text().splitlines()] for table in tables]
    columns = [read[0][0].index(f"p({label})") for label in NOVELS]
    return [np.array([[float(row[column]) for column in columns] for row in rows[1:]]) for rows in read]


def scores(probabilities: np.ndarray, part: str) -> np.ndarray:
    """Return macro-F1, the mean recall of the rare labels, and accuracy."""
    true, predicted = np.repeat(range(len(NOVELS)), PARTS[part]), probabilities.argmax(1)
    confusion = np.zeros((len(NOVELS), len(NOVELS)))
    np.add.at(confusion, (true, predicted), 1)
    hits = np.diag(confusion)
    f1, recall = 2 * hits / (confusion.sum(0) + confusion.sum(1)), hits / confusion.sum(1)
    return np.array([f1.mean(), recall[1:].mean(), (true == predicted).mean()])


if __name__ == "__main__":
    main()
