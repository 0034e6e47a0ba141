"""Pretrain the Chinese network of benchmarks/eight_tasks.py on a handbook and the text of two tasks, without labels.

    python -m benchmarks.chinese HANDBOOK DATA [--workdir runs/zh]

HANDBOOK is a text in Chinese; DATA has chnsenticorp/train.tsv and people_daily_ner/train.txt. The network does not read
the evaluation files. A piece is a character, because people_daily_ner labels characters.
"""

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path

from benchmarks.studies import run_module

TASKS = ("chnsenticorp/train.tsv", "people_daily_ner/train.txt")
SETTINGS = """--preset demo --optimizer.method adamw
    --steps 4000 --data.token-level character --model.vocab-size 6000 --model.num-layers 2
    --model.d-model 192 --model.num-heads 6 --model.d-head 32 --model.d-ff 768 --model.init-std 0.0653
    --data.num-predict 32 --optimizer.learning-rate 0.004 --optimizer.matrix-rate 0.3333 --optimizer.warmup-steps 200
    --eval.every-steps 2000 --eval.max-windows 1024 --log.every-steps 250 --checkpoint.every-minutes 5
    --checkpoint.keep 1""".split()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("handbook", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--workdir", type=Path, default=Path("runs/zh"))
    given = parser.parse_args()
    text = given.workdir.with_name(f"{given.workdir.name}-text.txt")
    text.parent.mkdir(parents=True, exist_ok=True)
    reviews, sentences = ((given.data / name).read_text() for name in TASKS)
    documents = [given.handbook.read_text().strip(), *reviews_of(reviews), *paragraphs_of(sentences)]
    text.write_text("\n\n".join(documents) + "\n")
    run_module("xlnet_jax.train", *SETTINGS, "--corpus", text, "--workdir", given.workdir)


def reviews_of(table: str) -> Iterator[str]:
    """Yield the text of each row of ChnSentiCorp as a document."""
    for row in csv.DictReader(table.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE):
        yield row["text_a"].strip()


def paragraphs_of(labelled: str) -> Iterator[str]:
    """Yield the sentences of "character label" lines, 20 to a document."""
    sentences = ["".join(line.split()[0] for line in part.splitlines()) for part in labelled.strip().split("\n\n")]
    for begin in range(0, len(sentences), 20):
        yield "\n".join(sentences[begin : begin + 20])


if __name__ == "__main__":
    main()
