"""Do what the cells of launch/colab do with their files, through the library: the first word names the cell."""

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from etils import epath

import xlnet_jax
from data_pipelines import sources
from tests.fuzz.samples import NETWORK
from xlnet_jax.plots.curves import draw_curves
from xlnet_jax.training.watch.metrics import read_records

LAYOUT = {"batch_size": 2, "seq_len": 16, "reuse_len": 8, "perm_size": 8, "num_predict": 4, "windows_per_block": 4}


def _picture() -> None:
    """Draw the curves of a run so far."""
    records = list(read_records(epath.Path("in/run/metrics.jsonl")))
    unigram = next((record["unigram"] for record in records if "unigram" in record), math.nan)
    draw_curves(records, unigram, epath.Path("out/live.png"), "plm", "a title")


def _fill_in() -> None:
    """Load a run, and fill gaps in the lines of a text."""
    xlnet = xlnet_jax.load("in/run")
    lines = sources.read_lines(sources.find(["in/few.txt"]), "replace")
    for text in itertools.islice((line for line in lines if line[:1].isalpha()), 2):
        xlnet_jax.fill_in(xlnet, text, [word for word in text.split() if word.isalpha()][1::4])


def _paragraphs() -> None:
    """Read the paragraphs that become examples."""
    for line in sources.read_lines(sources.find(["in/text.txt.gz"]), "strict"):
        line.replace('"', "").split()


def _pretrain() -> None:
    """Pretrain on a text, or go on where the run was interrupted."""
    network = {**NETWORK, "vocab_size": 50, "mem_len": 8}
    log = {"every_steps": 1}
    config = xlnet_jax.preset(
        "demo", corpus="in/text.txt", workdir="out/run", steps=1, model=network, data=LAYOUT,
        optimizer={"warmup_steps": 0}, log=log, eval={"max_windows": 2},
    )  # fmt: skip
    xlnet_jax.pretrain(config)


def _batches() -> None:
    """Draw batches for a training loop of one's own."""
    tokenizer = xlnet_jax.load("in/native").tokenizer
    config = xlnet_jax.preset("demo", data=LAYOUT, model={"mem_len": 8})
    for _ in xlnet_jax.batch_source("in/corpus", tokenizer, config).iterate(0, 3):
        continue


def _finetune() -> None:
    """Finetune on values that were written as JSON Lines, and predict."""
    small = {"steps": 1, "data": {"batch_size": 2, "seq_len": 16, "buckets": (16,)}, "optimizer": {"warmup_steps": 0}}
    result = xlnet_jax.finetune(
        task="classification", init="in/native", train="in/table.jsonl", workdir="out/tuned", **small
    )
    xlnet_jax.load(result.checkpoint).predict(["The sea was calm."])


def _predict() -> None:
    """Predict with a finetuned checkpoint."""
    xlnet_jax.predict("in/tuned", ["The sea was calm.", "Nobody knew."])


CELLS: dict[str, Callable[[], None]] = {
    "picture": _picture,
    "fill-in": _fill_in,
    "paragraphs": _paragraphs,
    "pretrain": _pretrain,
    "batches": _batches,
    "finetune": _finetune,
    "predict": _predict,
}


def main(argv: Sequence[str]) -> int:
    """Run the cell that the command line names; return 0."""
    Path("out").mkdir(exist_ok=True)
    CELLS[argv[0]]()
    return 0
