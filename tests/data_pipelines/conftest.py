"""Fixtures: a folder with a text and a tokenizer, the command that prepares it, and batches of a part of the embedded
novels."""

import itertools
import sys

import pytest

from data_pipelines import sources, windows
from data_pipelines.batches import BatchSource
from data_pipelines.objectives import plm
from data_pipelines.tokenizer import Tokenizer
from tests.data_pipelines import corpus_of
from xlnet_jax import __main__ as command
from xlnet_jax.settings.config import DataConfig

DATA = DataConfig(batch_size=12, seq_len=64, reuse_len=32, perm_size=16, num_predict=11, windows_per_block=4)
MEM_LEN = 48


def prepared(texts, tokenizer, data, folder):
    """Prepare a corpus of these files, with blocks of the length that the settings need."""
    return corpus_of(texts, tokenizer, folder, block_len=windows.block_len(data), fraction=0.1)


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    """Batches of permutation language modeling."""
    folder = tmp_path_factory.mktemp("corpus")
    text = folder / "text.txt"
    with open(sources.embedded()[0]) as novels:
        text.write_text("".join(itertools.islice(novels, 600)))
    tokenizer = Tokenizer.train(sources.read_lines(sources.find([str(text)])), 600, "english")
    corpus = prepared([text], tokenizer, DATA, folder / "blocks")
    return BatchSource(corpus, "train", tokenizer.is_word_start, DATA, MEM_LEN, 5, plm.FILLING)


@pytest.fixture(scope="session")
def novels():
    """The first lines of the embedded training text."""
    lines = filter(None, sources.read_lines(sources.find(sources.embedded()[:1])))
    return list(itertools.islice(lines, 1500))


@pytest.fixture(scope="session")
def english(novels):
    return Tokenizer.train(novels, 1000, "auto")


@pytest.fixture(scope="package")
def text():
    """The first chapters of the embedded novels, documents with blank lines between them."""
    lines = sources.read_lines(sources.find(sources.embedded()[:1]))
    return "\n".join(line for line, _ in zip(lines, range(400), strict=False)) + "\n"


@pytest.fixture(scope="package")
def trained(text):
    return Tokenizer.train(text.split("\n"), 300, "english")


@pytest.fixture
def place(tmp_path, trained, text, monkeypatch):
    """Return a folder to work in, with a valid text and a tokenizer."""
    trained.save(tmp_path / "tokenizer")
    (tmp_path / "good.txt").write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(place, monkeypatch, capsys):
    """Run the command and return (exit code, standard error)."""

    def run(*argv, out="corpus"):
        words = ["prepare", "--tokenizer", "tokenizer", "--out", out, "--block-len", "64", *argv]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as stop:
            command.run(command.COMMANDS["prepare"].main)
        return stop.value.code, capsys.readouterr().err

    return run


@pytest.fixture
def refused(run, place):
    """Run the command, check that it refuses its source and writes nothing, and return its one line of error."""

    def refused(*argv, out="corpus", keeps=False):
        code, err = run(*argv, out=out)
        assert (code, err.count("\n")) == (2, 1), err
        assert err.startswith("error: ")
        assert len(err) < 600
        assert not (place / "corpus").exists()
        assert (place / ".corpus.partial").exists() == keeps
        return err

    return refused
