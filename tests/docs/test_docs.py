"""The examples of the documentation print what they say."""

import doctest
import itertools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import xlnet_jax
from data_pipelines import sources
from data_pipelines.tokenizer import Tokenizer
from tests.xlnet_jax.random_models import random_params
from xlnet_jax.config import ModelConfig
from xlnet_jax.interop.pretrained import Pretrained

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def demo_run(tmp_path, monkeypatch):
    """A folder in which runs/austen-demo is a checkpoint, small and untrained."""
    with open(sources.embedded()[0]) as novels:
        tokenizer = Tokenizer.train([line.strip() for line in itertools.islice(novels, 300)], 300, "english")
    config = ModelConfig(vocab_size=300, num_layers=2, d_model=16, num_heads=2, d_head=8, d_ff=32)
    xlnet_jax.save(Pretrained(config, random_params(config, None), None, tokenizer), tmp_path / "runs/austen-demo")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def my_text(tmp_path, monkeypatch):
    """A folder in which my.txt is the embedded novels."""
    (tmp_path / "my.txt").write_bytes(Path(sources.embedded()[0]).read_bytes())
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("page", ["model.md", "tokenizer.md"])
def test_the_examples_print_what_they_say(page, demo_run, my_text):
    failed, tried = doctest.testfile(str(DOCS / page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert tried > 10
    assert failed == 0


@pytest.mark.parametrize("page", ["tokenizer.md"])
def test_the_commands_print_what_they_say(page, my_text):
    blocks = re.findall(r"^```console\n(.*?)^```$", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    commands = [part.partition("\n") for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    assert commands
    for command, _, said in commands:
        words = [sys.executable, *shlex.split(command.removeprefix("python "))]
        assert subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout == said
