"""Pretrain the English network of benchmarks/eight_tasks.py: continue `tiny` on the text of the tasks.

    python -m benchmarks.english NOVELS DATA [--init runs/tiny/mostly] [--workdir runs/en]

The recorded network starts from the last but one stage of benchmarks/tiny.py.

The network reads the text of the tasks' training files in DATA, without labels, and none of the evaluation files. It
also reads English novels (NOVELS), so that it does not forget them. In a third of the windows the tasks' sentences and
words are repeated (benchmarks/twice.py), so that the network learns to look up these, too.
"""

import argparse
import csv
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.studies import run_module
from benchmarks.twice import sentences_twice, words_twice

WEIGHTS = {"tasks": 0.5, "novels": 0.15, "sentences_twice": 0.2, "words_twice": 0.15}
"""share of each text among the windows"""
DOCUMENTS = 2_500
"""number for each kind of text in which every sentence is repeated"""
SETTINGS = """--preset demo --optimizer.method adamw --steps 3500 --data.num-predict 32 --optimizer.learning-rate 0.003
    --optimizer.matrix-rate 0.5 --optimizer.warmup-steps 200 --eval.every-steps 500 --eval.max-windows 512
    --log.every-steps 100 --checkpoint.every-steps 500 --checkpoint.keep 2""".split()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("novels", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--init", default="tiny")
    parser.add_argument("--workdir", type=Path, default=Path("runs/en"))
    given = parser.parse_args()
    texts, corpus = (given.workdir.with_name(f"{given.workdir.name}-{part}") for part in ("texts", "corpus"))
    if not corpus.exists():
        texts.mkdir(parents=True, exist_ok=True)
        for name, documents in documents_of(texts_of(given.data)).items():
            (texts / f"{name}.txt").write_text("\n\n".join(documents) + "\n")
        sources = [given.novels if name == "novels" else texts / f"{name}.txt" for name in WEIGHTS]
        run_module("data_pipelines.prepare", "--source", *sources, "--weights", *WEIGHTS.values(),
             "--tokenizer", "tiny", "--block-len", 1152, "--validation-fraction", 0.02, "--out", corpus)  # fmt: skip
    run_module("xlnet_jax.train", *SETTINGS, "--init", given.init, "--corpus", corpus, "--workdir", given.workdir)


# ---- the tasks' text -------------------------------------------------------------------------------------------------


def texts_of(data: Path) -> list[list[str]]:
    """Return documents from the training files of all tasks, each a list of sentences or passages."""

    def columns(path: str, *numbers: int, header: bool = True) -> list[str]:
        with (data / path).open(newline="") as file:
            rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
        return [row[number] for row in rows[header:] for number in numbers]

    def read(path: str) -> Any:
        return json.loads((data / path).read_text())

    paragraphs = (paragraph for article in read("squad/train.json")["data"] for paragraph in article["paragraphs"])
    return [
        *_grouped(whole(columns("glue/SST-2/train.tsv", 0)), 20),
        *_grouped(columns("glue/CoLA/train.tsv", 3, header=False), 20),
        *_grouped(columns("glue/STS-B/train.tsv", 7, 8), 40),
        *_grouped(columns("glue/RTE/train.tsv", 1, 2), 16),
        *_grouped([paragraph["context"] for paragraph in paragraphs], 6),
        *_grouped([" ".join(turns) for turns, *_ in read("dream/train.json")], 6),
    ]


def whole(phrases: Iterable[str], at_least: int = 10) -> list[str]:
    """Return the rows of SST-2 with `at_least` words that are not phrases of other rows, longest first."""
    found: list[str] = []
    text = ""
    for phrase in sorted({phrase.strip() for phrase in phrases}, key=lambda phrase: (-len(phrase), phrase)):
        if len(phrase.split()) >= at_least and phrase not in text:
            found.append(phrase)
            text += f"\n{phrase}"
    return found


def _grouped(lines: Sequence[str], number: int) -> list[list[str]]:
    return [list(lines[begin : begin + number]) for begin in range(0, len(lines), number)]


def documents_of(texts: list[list[str]]) -> dict[str, list[str]]:
    """Return the documents of each text except the novels."""
    lines = [line for text in texts for line in text]
    draw = random.Random(0)
    return {
        "tasks": ["\n".join(text) for text in draw.sample(texts, len(texts))],
        "sentences_twice": sentences_twice(lines, DOCUMENTS, draw),
        "words_twice": words_twice("\n".join(lines), DOCUMENTS, draw),
    }


if __name__ == "__main__":
    main()
