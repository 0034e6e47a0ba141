"""A folder with a text and a tokenizer, and the command that prepares it."""

import sys

import pytest

from data_pipelines import sources
from data_pipelines.prepare import __main__
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax import cli


@pytest.fixture(scope="package")
def text():
    """The first chapters of the embedded novels, documents with blank lines between them."""
    lines = sources.read_lines(sources.find(sources.embedded()[:1]), "strict")
    return "\n".join(line for line, _ in zip(lines, range(400), strict=False)) + "\n"


@pytest.fixture(scope="package")
def trained(text):
    return Tokenizer.train(text.split("\n"), 300, "english")


@pytest.fixture
def place(tmp_path, trained, text, monkeypatch):
    """A folder to work in: a good text, and a tokenizer."""
    trained.save(tmp_path / "tokenizer")
    (tmp_path / "good.txt").write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(place, monkeypatch, capsys):
    """Runs the command; returns (exit code, standard error)."""

    def run(*argv, out="corpus"):
        words = ["prepare", "--tokenizer", "tokenizer", "--out", out, "--block-len", "64", *argv]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as stop:
            cli.run(__main__.main)
        return stop.value.code, capsys.readouterr().err

    return run
