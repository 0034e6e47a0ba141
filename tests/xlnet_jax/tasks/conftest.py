"""A checkpoint to finetune, and a table of texts with labels."""

from dataclasses import replace

import pytest

import xlnet_jax
from data_pipelines import sources
from data_pipelines.tokenizer import Tokenizer
from tests.xlnet_jax.random_models import random_model
from tests.xlnet_jax.tasks.task_runs import tiny
from xlnet_jax.__main__ import COMMANDS

finetune = COMMANDS["finetune"]

TINY = (
    "--task classification --steps 12 --optimizer.warmup-steps 2 --optimizer.learning-rate 0.02 --data.batch-size 8 "
    "--data.seq-len 32 --data.buckets 32 --selection.every-steps 4 --checkpoint.every-steps 4 --log.every-steps 1 "
    "--model.init-std 1 --model.dropout 0"
).split()

GOOD = ["a lovely walk", "the happiest of days", "she smiled at him", "it was delightful", "a charming young lady"]
BAD = ["a dreadful rain", "the saddest of days", "she frowned at him", "it was tedious and wrong", "a vain young man"]


@pytest.fixture(scope="session")
def tokenizer():
    return Tokenizer.train((GOOD + BAD) * 20, 55, "english")


@pytest.fixture(scope="session")
def pretrained(tokenizer, tmp_path_factory):
    """The folder of a tiny network with random weights."""
    model = replace(tiny(tokenizer.vocab_size), dropout=0.1, attention_dropout=0.1, init_std=0.1)
    folder = tmp_path_factory.mktemp("pretrained") / "checkpoint"
    xlnet_jax.save(random_model(model, None, tokenizer), folder)
    return folder


@pytest.fixture(scope="session")
def table(tmp_path_factory):
    """A TSV file: label, text."""
    rows = [f"{label}\t{text}" for texts, label in ((GOOD, "good"), (BAD, "bad")) for text in texts]
    path = tmp_path_factory.mktemp("table") / "table.tsv"
    path.write_text("\n".join(["label\ttext", *rows]) + "\n")
    return path


def words(pretrained, table, workdir, *more):
    files = ["--train", str(table), "--eval", str(table), "--predict", str(table)]
    return [*TINY, "--init", str(pretrained), *files, "--workdir", str(workdir), *more]


@pytest.fixture(scope="session")
def finetuned(pretrained, table, tmp_path_factory):
    """The workdir of a finetuning run."""
    workdir = tmp_path_factory.mktemp("finetuned") / "run"
    assert finetune.main(words(pretrained, table, workdir)) == 0
    return workdir


@pytest.fixture(scope="session")
def english():
    """A tokenizer of 300 pieces, learned from the novels that come with the package."""
    lines = [line for line in sources.read_lines(sources.find(sources.embedded()[:1])) if line]
    return Tokenizer.train(lines[:300], 300, "english")
