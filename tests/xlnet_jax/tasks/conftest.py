"""A checkpoint to finetune, and a table of texts with labels."""

import pytest

import xlnet_jax
from data_pipelines import sources
from data_pipelines.tokenizer import Tokenizer
from tests.xlnet_jax.random_models import random_model
from xlnet_jax.settings.config import ModelConfig

GOOD = ["a lovely walk", "the happiest of days", "she smiled at him", "it was delightful", "a charming young lady"]
BAD = ["a dreadful rain", "the saddest of days", "she frowned at him", "it was tedious and wrong", "a vain young man"]


@pytest.fixture(scope="session")
def tokenizer():
    return Tokenizer.train((GOOD + BAD) * 20, 55, "english")


@pytest.fixture(scope="session")
def pretrained(tokenizer, tmp_path_factory):
    """The folder of a tiny network with random weights."""
    model = ModelConfig(
        vocab_size=tokenizer.vocab_size, num_layers=1, d_model=16, num_heads=2, d_head=8, d_ff=32, mem_len=0,
        init_std=0.1,
    )  # fmt: skip
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


@pytest.fixture(scope="session")
def english():
    """A tokenizer of 300 pieces, learned from the novels that come with the package."""
    lines = [line for line in sources.read_lines(sources.find(sources.embedded()[:1])) if line]
    return Tokenizer.train(lines[:300], 300, "english")
