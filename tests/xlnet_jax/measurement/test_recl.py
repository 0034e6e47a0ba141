"""Relative effective context lengths, from losses made by hand and by the command."""

import dataclasses
import itertools
import re
from types import SimpleNamespace

import numpy as np
import pytest

import xlnet_jax
from data_pipelines import sources
from data_pipelines.prepare.commands import prepare
from data_pipelines.tokenizer import EOD, Tokenizer
from tests.xlnet_jax.random_models import CAUSAL, random_model
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.errors import InputError
from xlnet_jax.inference.log_probs import by_window
from xlnet_jax.measurement.recl import THRESHOLD, effective_context_lengths, gains

command = COMMANDS["recl"]

# One token in ten is hard, and gains by a longer context: e^-2, then e^-0.05 in perplexity, then nothing.
HARD = {10: 5.0, 20: 3.0, 30: 2.95, 40: 2.95}


def one_hard_token(length):
    return np.array([[2.0] * 9 + [HARD[length]]])


def test_lengths_end_where_the_next_step_gains_too_little():
    found = effective_context_lengths(one_hard_token, [10, 20, 30, 40], [1.0, 0.1], THRESHOLD)
    # Over all tokens the second step gains 1 - e^-0.005, over the hardest tenth 1 - e^-0.05.
    assert found == {1.0: [20], 0.1: [30]}
    assert gains(one_hard_token(10), one_hard_token(20), 1.0) == pytest.approx([1 - np.exp(-0.2)])
    assert gains(one_hard_token(20), one_hard_token(30), 0.1) == pytest.approx([1 - np.exp(-0.05)])
    # A token that a longer context makes worse counts as it was.
    assert gains(np.array([[3.0, 3.0]]), np.array([[2.0, 9.0]]), 1.0) == pytest.approx([1 - np.exp(-0.5)])
    coarse = effective_context_lengths(one_hard_token, [10, 20, 30, 40], [0.1], 0.1)
    assert coarse == {0.1: [20]}
    # A model that still gains at the longest context gets a bound.
    assert effective_context_lengths(one_hard_token, [10, 20, 30], [0.1], THRESHOLD) == {0.1: [30]}


def test_a_model_that_is_weak_with_a_short_context_gains_nothing_by_it():
    """The weak model improves with every step, but never beyond the other model's shortest context."""
    weak = {10: 4.0, 20: 3.0, 30: 2.5, 40: 2.0}

    def losses(length):
        return np.array([[2.0, 2.0], [weak[length], weak[length]]])

    found = effective_context_lengths(losses, [10, 20, 30, 40], [1.0], THRESHOLD)
    assert found == {1.0: [10, 10]}
    alone = effective_context_lengths(lambda length: losses(length)[1:], [10, 20, 30, 40], [1.0], THRESHOLD)
    assert alone == {1.0: [40]}


STEP, LONGEST, TOKENS = 4, 12, 20


@pytest.fixture(scope="module")
def folder(causal, model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("recl")
    with open(sources.embedded()[0]) as novels:
        other = Tokenizer.train([line.strip() for line in itertools.islice(novels, 300)], 300, "english")
    bias = causal.params["output_bias"] + np.random.default_rng(1).normal(size=800).astype(np.float32)
    for name, saved in {
        "one": causal,
        "two": dataclasses.replace(causal, params={**causal.params, "output_bias": bias}),
        "foreign": random_model(dataclasses.replace(CAUSAL, vocab_size=300), tokenizer=other),
        "permuted": model,
    }.items():
        xlnet_jax.save(saved, folder / name)
    (folder / "text.txt").write_text("It is a truth universally acknowledged.\nHe said so.\n\nEmma was handsome.\n" * 9)
    (folder / "short.txt").write_text("He said so.\n")
    return folder


def settings(folder):
    return f"--text {folder / 'text.txt'} --step {STEP} --longest {LONGEST} --tokens {TOKENS}".split()


def test_the_table_has_the_lengths_of_each_checkpoint_of_the_group(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr("xlnet_jax.measurement.recl.THRESHOLD", 1e-9)  # random networks gain little
    names = [str(folder / name) for name in ("one", "two")]
    assert command.main([*names, *settings(folder)]) == 0
    printed = capsys.readouterr().out
    models = [xlnet_jax.load(name) for name in names]
    documents = [["It is a truth universally acknowledged.", "He said so."], ["Emma was handsome."]] * 9
    encoded = [[*models[0].tokenizer.encode_lines(lines), np.array([EOD])] for lines in documents]
    ids = np.concatenate([ids for document in encoded for ids in document])[: LONGEST + TOKENS].astype(np.int32)
    targets = np.arange(LONGEST, LONGEST + TOKENS)
    expected = effective_context_lengths(
        lambda length: -np.stack([by_window(model, ids, length, targets) for model in models]),
        [4, 8, 12], [1.0, 0.5, 0.1], 1e-9,
    )  # fmt: skip
    assert printed.startswith(f"{TOKENS} pieces of {folder / 'text.txt'}, with 4, 8, … 12 before each")
    rows = [[cell.strip() for cell in line.split("│")[2:-1]] for line in printed.splitlines() if line.startswith("│")]
    for row, of_shares in zip(rows, zip(*expected.values(), strict=True), strict=True):
        assert row == [f"{'>= ' if length == LONGEST else ''}{length}" for length in of_shares]
    assert len(rows) == 2


def test_runs_are_measured_on_the_text_that_the_first_one_holds_out(causal, folder, tmp_path, capsys, monkeypatch):
    text = sources.find([str(folder / "text.txt")])
    corpus = prepare((), text, causal.tokenizer, tmp_path / "c", block_len=40, validation_fraction=0)
    run = SimpleNamespace(folder="runs/mine", corpus=lambda: corpus)
    monkeypatch.setattr("xlnet_jax.checkpoints.native.PretrainingRun.of", lambda name: run)
    words = settings(folder)[2:]
    tables = []
    for text_of_run in ([], ["--text", str(folder / "text.txt")]):
        assert command.main([str(folder / "one"), *words, *text_of_run]) == 0
        tables.append(capsys.readouterr().out.split("\n", 1))
    assert tables[0][0].startswith("20 pieces of the held-out text of runs/mine, with 4, 8, … 12 before each")
    assert tables[0][1] == tables[1][1]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "give one or several checkpoints that were trained with --objective clm"),
        (["{}/one", "{}/permuted"], "permuted: the checkpoint was trained to predict pieces in permuted orders (plm)"),
        (["{}/one", "{}/foreign"], "foreign: its tokenizer differs from that of"),
        (
            ["{}/one", "--text", "{}/short.txt"],
            "pieces are too few for a context of 256: give more text, or lower --longest",
        ),
    ],
)
def test_a_mistake_of_the_command_is_one_line(folder, argv, said):
    with pytest.raises(InputError, match=re.escape(said)):
        command.main([word.format(folder) for word in argv])
