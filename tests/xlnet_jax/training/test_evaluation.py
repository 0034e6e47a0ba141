"""The held-out loss of a checkpoint: what training measured, for any checkpoint on any text."""

import json
from dataclasses import replace

import numpy as np
import pytest

import xlnet_jax
from data_pipelines import batches as made
from data_pipelines import sources
from data_pipelines.prepare.commands import prepare
from data_pipelines.tokenizer import EOD, SEP, UNK
from data_pipelines.windows import resized, steps_per_block
from tests.xlnet_jax.training.tiny_run import records_of
from xlnet_jax import EvaluateSettings, InputError
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.checkpoints.native import PretrainingRun, trained_mem_len
from xlnet_jax.training.evaluation import frequencies_V, held_out_batches, unigram_line

evaluate = COMMANDS["evaluate"]


def measured(tmp_path, *arguments):
    out = tmp_path / "measured.json"
    assert evaluate.main([*map(str, arguments), "--out", str(out), "--overwrite"]) == 0
    return json.loads(out.read_text())


def test_a_run_gets_its_own_number_again_and_the_numbers_beside_it_are_counted_as_stated(straight, tmp_path, capsys):
    found = measured(tmp_path, straight / "checkpoints" / "12")
    last = records_of(straight)[-1]
    assert found["loss"] == pytest.approx(last["loss"], abs=1e-6)
    assert found["unigram"] == pytest.approx(last["unigram"], abs=1e-6)
    out = capsys.readouterr().out
    assert f"loss        {last['loss']:.4f} nats per piece" in out
    assert "by the frequencies of the run's training text" in out
    # ---- counts -----------------------------------------------------------------------------------------------------
    run = PretrainingRun.of(straight)
    corpus = run.corpus()
    batches = held_out_batches(corpus, corpus.tokenizer, run.config)
    ids = np.concatenate([batch["input_ids"].ravel() for batch in batches])
    assert found["targets"] == sum(batch["target_weights"].sum() for batch in batches)
    assert found["windows"] == sum(len(batch["input_ids"]) for batch in batches)
    assert found["pieces"] == (ids >= EOD).sum() + (ids < SEP - 1).sum()
    text = "".join(corpus.tokenizer.pieces[i] for i in ids if i > EOD + 1)
    assert found["characters"] == len(text) + (ids == UNK).sum()
    assert found["words"] == text.count("▁")
    assert found["perplexity"] == pytest.approx(np.exp(found["loss"]))
    bits = found["loss"] / np.log(2)
    assert found["bits_per_character"] == pytest.approx(bits * found["pieces"] / found["characters"])
    assert found["bits_per_word"] == pytest.approx(bits * found["pieces"] / found["words"])


def test_a_text_gives_what_it_gives_as_the_held_out_part_of_a_corpus(straight, text, tmp_path):
    """Blocks, windows and targets are equal, whatever text the corpus was prepared for."""
    other = tmp_path / "other.txt"
    other.write_text("\n".join(text.read_text().splitlines()[:120]))
    run = PretrainingRun.of(straight)
    prepare(
        *(sources.find([str(file)]) for file in (text, other)), xlnet_jax.load(straight).tokenizer, tmp_path / "corpus",
        block_len=run.corpus().block_len, validation_fraction=0.05,
    )  # fmt: skip
    as_text = measured(tmp_path, straight, "--text", other)
    as_corpus = measured(tmp_path, straight, "--text", tmp_path / "corpus")
    assert as_text == as_corpus
    assert as_text["windows"] > run.config.eval.max_windows  # as many as the run measures of its own text are few
    # Weights from elsewhere bring no settings along, and no training text: the same windows by the command line.
    xlnet_jax.save(xlnet_jax.load(straight), tmp_path / "hf", "hf")
    d, m = run.config.data, run.config.model
    windows = (
        *("--data.batch-size", d.batch_size, "--data.seq-len", d.seq_len, "--data.windows-per-block", 4),
        *("--data.num-predict", d.num_predict, "--mem-len", m.mem_len, "--max-windows", run.config.eval.max_windows),
    )
    as_text = measured(tmp_path, straight, "--text", other, "--max-windows", run.config.eval.max_windows)
    theirs = measured(tmp_path, tmp_path / "hf", "--text", other, *windows)
    assert theirs["loss"] == pytest.approx(as_text["loss"], abs=1e-5)
    assert theirs["targets"] == as_text["targets"]
    assert theirs["unigram"] < as_text["unigram"]  # which knows the frequencies of this very text


def test_what_max_windows_leaves_out_is_said_and_the_other_lengths_follow_that_of_a_window(straight, tmp_path, capsys):
    run = PretrainingRun.of(straight)
    found = measured(tmp_path, straight, "--data.seq-len", "16", "--max-windows", "8")
    total = steps_per_block(run.corpus().block_len, resized(run.config.data, 16))
    total *= run.corpus().num_blocks("validation")
    told = f"windows     8 of 16 tokens, 8 per batch, memory 8; max-windows leaves {total - 8:,} out"
    assert told in capsys.readouterr().out
    assert found["targets"] <= 8 * run.config.data.num_predict // 2


def test_memory_is_that_of_the_run_or_the_papers(straight):
    loaded = xlnet_jax.load(straight)
    without = replace(loaded, model=replace(loaded.model, mem_len=0))  # as of a run, and as Hugging Face leaves it open
    run = PretrainingRun.of(straight)
    assert [trained_mem_len(*given) for given in ((loaded, run), (without, run), (without, None))] == [16, 0, 384]
    assert trained_mem_len(replace(without, objective="mdlm"), None) == 0  # its memory would be untrained


def test_what_cannot_be_measured_is_said_in_one_line(straight, text, tmp_path):
    for arguments, said in (
        (("--text", "nowhere.txt"), r"text nowhere\.txt: no such file or folder"),
        (("--text", straight / "corpus", text), r"is a prepared corpus: it stands alone"),
        (("--out", tmp_path / "x.txt"), r"x\.txt: give a name that ends in \.json"),
        (("--max-windows", "0"), r"--max-windows 0 must be at least 1"),
        (("--data.windows-per-block", "2", "--mem-len", "64"), r"model\.mem-len 64 can never be filled"),
    ):
        with pytest.raises(InputError, match=said):
            evaluate.main([str(straight), *map(str, arguments)])
    short = tmp_path / "short.txt"
    short.write_text("It is short.\n")
    with pytest.raises(
        InputError, match=r"has \d+ tokens, but needs one block of 78: .*lower --data\.windows-per-block"
    ):
        evaluate.main([str(straight), "--text", str(short)])
    xlnet_jax.save(xlnet_jax.load(straight), tmp_path / "converted")
    with pytest.raises(InputError, match=r"--text names no text, and there is no corpus beside the checkpoint"):
        evaluate.main([str(tmp_path / "converted")])


def test_held_out_batches_need_no_tensorflow_whose_import_takes_longer_than_they_do(straight, monkeypatch):
    monkeypatch.setattr(made, "tensorflow", None)
    run = PretrainingRun.of(straight)
    assert held_out_batches(run.corpus(), run.corpus().tokenizer, run.config)


def test_python_code_measures_without_a_command_line(straight):
    data = PretrainingRun.of(straight).config.data
    found = xlnet_jax.evaluate(EvaluateSettings(str(straight), max_windows=8))
    assert (found.config.data, found.measured.windows) == (data, 8)
    found = xlnet_jax.evaluate(straight, max_windows=16, data={"batch_size": 16})
    assert found.config.data == replace(data, batch_size=16)
    alone, grouped = (xlnet_jax.evaluate(straight, data={"group_sizes": [size]}) for size in (1, 4))
    assert grouped.config.data == replace(data, group_sizes=(4,))
    assert alone.measured == xlnet_jax.evaluate(straight).measured
    assert abs(grouped.measured.loss - alone.measured.loss) > 1e-5
    assert replace(grouped.measured, loss=alone.measured.loss) == alone.measured  # of the same targets
    with pytest.raises(InputError, match="`max_window` is not a setting: did you mean max_windows"):
        xlnet_jax.evaluate(straight, max_window=8)


def batches_of(ids):
    """Two batches of targets, and padding."""
    for part in np.array_split(ids, 2):
        padded = np.concatenate([part, np.full(5, UNK)])
        yield {"target_ids": padded[None], "target_weights": (np.arange(len(padded)) < len(part))[None].astype(float)}


def test_the_unigram_line_is_the_cross_entropy_of_the_targets():
    counts_V = np.array([5, 3, 2, 0])
    ids = np.array([1, 1, 2, 0, 1, 1])
    frequencies = (counts_V + 3 / 4) / (10 + 3)
    np.testing.assert_allclose(frequencies_V(counts_V), frequencies)
    assert unigram_line(counts_V, list(batches_of(ids)), None) == pytest.approx(-np.log(frequencies[ids]).mean())


@pytest.mark.parametrize("tokens", [300, 3_000])
def test_the_line_of_a_short_text_is_not_that_of_the_smoothing(tokens):
    """Counts plus one would put a text of a few thousand tokens close to the uniform line."""
    zipf_V = 1 / np.arange(1, 8_001)
    ids = np.random.default_rng(1).choice(8_000, tokens, p=zipf_V / zipf_V.sum())
    counts_V = np.bincount(ids, minlength=8_000)
    used = counts_V[counts_V > 0]
    lowest = -(used / tokens * np.log(used / tokens)).sum()  # of any unigram model on this text
    found = unigram_line(counts_V, list(batches_of(ids)), None)
    assert lowest < found < lowest + 0.7
    assert found < -np.log((counts_V[ids] + 1) / (tokens + 8_000)).mean()
