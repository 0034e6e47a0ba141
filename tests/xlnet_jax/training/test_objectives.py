"""A run of each objective by the command, and its checkpoint under the other commands."""

import json
import math
import shutil
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest

import xlnet_jax
from data_pipelines.tokenizer import EOD, SPECIAL_PIECES, UNK
from data_pipelines.tokenizer.pieces import PieceTables
from data_pipelines.windows import steps_per_block
from tests.xlnet_jax.training.tiny_run import arguments, assert_same, state_of
from xlnet_jax import InputError, train
from xlnet_jax.checkpoints.run import Run
from xlnet_jax.inference import log_probs
from xlnet_jax.inference.factorize import fill_in
from xlnet_jax.interop.weights import flatten
from xlnet_jax.objectives.presets import demo, with_objective
from xlnet_jax.objectives.registry import validate
from xlnet_jax.settings.config import ReplacedConfig
from xlnet_jax.training.evaluate import _units
from xlnet_jax.training.evaluation import Content, Measured, content_of, held_out_batches
from xlnet_jax.training.initial import begin_from, params_of
from xlnet_jax.training.metrics import read_records

convert = import_module("xlnet_jax.convert")
evaluate = import_module("xlnet_jax.evaluate")
factorize = import_module("xlnet_jax.factorize")
finetune = import_module("xlnet_jax.finetune")

CLM = "--objective clm --data.num-predict None --data.reuse-len 32 --data.perm-size 32".split()
RTD = "--objective rtd --model.mem-len 0 --data.reuse-len 0 --data.perm-size 32".split()
DAE = "--objective mlm --model.mem-len 16 --data.reuse-len 16 --data.pair-loss next".split()  # with memory


def measured(tmp_path, *arguments):
    out = tmp_path / "measured.json"
    assert evaluate.main([*map(str, arguments), "--out", str(out), "--overwrite"]) == 0
    return json.loads(out.read_text())


def last_held_out(workdir):
    return [r for r in read_records(workdir / "metrics.jsonl") if r["split"] == "validation"][-1]


# ---- clm ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def causal(text, tmp_path_factory):
    """The workdir of a run that was interrupted inside a block."""
    folder = tmp_path_factory.mktemp("clm") / "run"
    words = [*CLM, "--optimizer.decay-steps", "12", "--eval.max-windows", "1000"]
    assert train.main(arguments(text, folder, *words, "--steps", "6")) == 0
    assert (folder / "checkpoints" / "6" / "mems").exists()
    assert train.main(arguments(text, folder, *words)) == 0
    return SimpleNamespace(folder=folder, words=words)


def test_a_causal_run_that_was_interrupted_ends_with_the_bits_of_one_that_was_not(causal, text, tmp_path):
    assert train.main(arguments(text, tmp_path / "straight", *causal.words)) == 0
    assert_same(state_of(causal.folder), state_of(tmp_path / "straight"))


@pytest.fixture(scope="module")
def causal_batches(causal):
    run = Run.of(causal.folder)
    return held_out_batches(run.corpus(), run.corpus().tokenizer, run.config)


def test_every_token_behind_the_first_of_a_block_is_predicted_once(causal, causal_batches):
    """Although the rows of a batch do not divide the blocks: what is read again has no weight."""
    corpus = Run.of(causal.folder).corpus()
    blocks = corpus.num_blocks("validation")
    assert blocks % 8
    tokens, _ = corpus.read("validation", np.arange(blocks))
    predicted = np.concatenate([batch["target_ids"][batch["target_weights"] > 0] for batch in causal_batches])
    np.testing.assert_array_equal(np.sort(predicted), np.sort(tokens[:, 1:].ravel()))


def test_a_causal_loss_is_that_of_reading_each_block_alone_in_segments(causal, tmp_path):
    found, model, run = measured(tmp_path, causal.folder), xlnet_jax.load(causal.folder), Run.of(causal.folder)
    tokens, _ = run.corpus().read("validation", np.arange(run.corpus().num_blocks("validation")))
    of_blocks = [log_probs.with_memory(model, ids, segment_len=32, mem_len=16) for ids in tokens]
    assert found["loss"] == pytest.approx(-np.concatenate(of_blocks).mean(), abs=1e-5)


def test_a_causal_loss_is_told_in_the_units_of_the_literature(causal, causal_batches, tmp_path, capsys):
    found = measured(tmp_path, causal.folder)
    assert found["loss"] == pytest.approx(last_held_out(causal.folder)["loss"], abs=1e-6)
    corpus = Run.of(causal.folder).corpus()
    ids = np.concatenate([batch["target_ids"][batch["target_weights"] > 0] for batch in causal_batches])
    text = "".join("?" if i == UNK else corpus.tokenizer.pieces[i] for i in ids if i == UNK or i >= len(SPECIAL_PIECES))
    nats = found["loss"] * found["targets"]
    assert found["targets"] == len(ids)
    assert found["bits_per_character"] == pytest.approx(nats / math.log(2) / len(text))
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / len(text.replace("▁", " ").encode()))
    assert found["word_perplexity"] == pytest.approx(math.exp(nats / text.count("▁")))
    out = capsys.readouterr().out
    assert f"{found['perplexity']:,.2f} a piece, {found['word_perplexity']:,.2f} a word" in out
    assert f"{found['bits_per_character']:.4f} a character, {found['bits_per_byte']:.4f} a byte" in out
    assert f"counted     {len(ids):,} pieces and 0 ends of documents: {len(text):,} characters" in out
    assert f"unknown     0.00% of the pieces: 0 of {len(ids):,} are <unk>" in out


def test_an_end_of_a_document_counts_as_a_word_of_one_character():
    """And a piece that is a byte counts as a character where it is the first of one."""
    pieces = [*SPECIAL_PIECES, "▁né", "e", "<0xC3>", "<0xA9>"]
    tables = PieceTables.of(pieces, [*[None] * 11, 0xC3, 0xA9])
    tokenizer = SimpleNamespace(vocab_size=len(pieces), tables=tables)
    ids = np.array([[9, 10, EOD, UNK, 11, 12, 9, 9]])
    batch = {"target_ids": ids, "target_weights": np.array([[1, 1, 1, 1, 1, 1, 1, 0]])}
    content = content_of([batch], tokenizer, "clm")
    assert content == Content(
        pieces=6, characters=3 + 1 + 1 + 1 + 3, bytes=4 + 1 + 1 + 2 + 4, words=2, unknown=1, documents=1
    )
    numbers = Measured("clm", math.log(2), 7, 0.0, 1, content, {}).numbers()  # a bit a piece
    assert numbers["bits_per_character"] == pytest.approx(7 / (9 + 1))
    assert numbers["bits_per_byte"] == pytest.approx(7 / (12 + 1))
    assert numbers["word_perplexity"] == pytest.approx(2 ** (7 / (2 + 1)))
    without_spaces = Measured("clm", math.log(2), 3001, 0.0, 1, replace(content, words=1, documents=1), {})
    assert without_spaces.numbers()["word_perplexity"] is None
    assert "a word" not in next(_units(without_spaces))


def test_a_causal_checkpoint_is_evaluated_with_another_memory_than_in_training(causal, tmp_path, capsys):
    """Transformer-XL's eval.py: shorter segments beside a longer memory, every row seeing the same length."""
    words = ("--data.seq-len", "16", "--mem-len", "48", "--same-length", "--clamp-len", "40")
    longer = measured(tmp_path, causal.folder, *words)
    assert "of 16 tokens, 8 a batch, memory 48" in capsys.readouterr().out
    none = measured(tmp_path, causal.folder, "--mem-len", "0")
    assert longer["targets"] == none["targets"]  # the same text
    assert longer["loss"] != none["loss"]
    with pytest.raises(InputError, match=r"model\.mem-len 999 can never be filled: the \d+ windows in a block of corp"):
        evaluate.main([str(causal.folder), "--mem-len", "999", "--data.windows-per-block", "999"])


# ---- prefix ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prefixed(text, tmp_path_factory):
    """The workdir of a run by this objective."""
    folder = tmp_path_factory.mktemp("prefix") / "run"
    words = (
        "--objective prefix --model.mem-len 0 --data.reuse-len 0 --data.perm-size 32 --data.num-predict None".split()
    )
    assert train.main(arguments(text, folder, *words, "--steps", "6")) == 0
    return SimpleNamespace(folder=folder)


def test_a_prefix_loss_is_told_in_the_units_of_the_text_that_it_predicts(prefixed, tmp_path, capsys):
    found = measured(tmp_path, prefixed.folder)
    assert found["loss"] == pytest.approx(last_held_out(prefixed.folder)["loss"], abs=1e-6)
    run = Run.of(prefixed.folder)
    batches = held_out_batches(run.corpus(), run.corpus().tokenizer, run.config)
    weights = np.concatenate([batch["target_weights"] for batch in batches])
    assert 0 < found["targets"] == weights.sum() < weights.size
    assert found["pieces"] + found["documents"] == found["targets"]
    nats = found["loss"] * found["targets"]
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / (found["bytes"] + found["documents"]))
    assert f"{found['bits_per_byte']:.4f} a byte" in capsys.readouterr().out


def test_a_prefix_checkpoint_predicts_from_left_to_right(prefixed):
    """A piece by what is before it alone: the scores of a text's beginning are those of the whole."""
    model = xlnet_jax.load(prefixed.folder)
    assert (model.objective, model.model.attn_type) == ("prefix", "bi")
    ids = model.tokenizer.encode_lines(["She was very happy and said no more of it"])[0]
    whole, part = log_probs.causal_log_likelihoods(model, [ids, ids[:5]], batch_tokens=256)
    np.testing.assert_allclose(whole[:4], part, rtol=0, atol=1e-5)
    (score,) = xlnet_jax.score_texts(model, ["She was very happy"])
    assert np.isfinite(score.log_likelihood)
    with pytest.raises(InputError, match=r"has learned the pieces behind a prefix \(prefix\).*no query stream"):
        fill_in(model, "She was very happy", ["very"])


# ---- mlm ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def masked(text, tmp_path_factory):
    """The workdir of a run with memory and pairs of texts."""
    folder = tmp_path_factory.mktemp("mlm") / "run"
    assert train.main(arguments(text, folder, *DAE, "--steps", "6")) == 0
    return folder


def test_a_masked_loss_makes_no_claim_on_the_likelihood_of_a_text(masked, tmp_path, capsys):
    found = measured(tmp_path, masked)
    last = last_held_out(masked)
    for name in ("loss", "pair_loss", "pair_accuracy"):
        assert found[name] == pytest.approx(last[name], abs=1e-6)
    assert found["pseudo_perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert not {name for name in found if name.startswith("bits") or name.endswith("perplexity")} - {
        "pseudo_perplexity"
    }
    out = capsys.readouterr().out
    assert "a masked piece: no likelihood of the text follows" in out
    assert f"pairs       {last['pair_loss']:.4f} nats, {last['pair_accuracy']:.2%} right" in out
    training = [r for r in read_records(masked / "metrics.jsonl") if r["split"] == "train"]
    assert all(0 < r["pair_loss"] < 3 and 0 <= r["pair_accuracy"] <= 1 for r in training)


# ---- rtd ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def detecting(text, tmp_path_factory):
    """A run whose last checkpoints are of the steps 4 and 6."""
    folder = tmp_path_factory.mktemp("rtd") / "run"
    words = [*RTD, "--optimizer.decay-steps", "12", "--steps", "6"]
    assert train.main(arguments(text, folder, *words)) == 0
    return SimpleNamespace(folder=folder, words=words)


def test_a_run_of_two_networks_goes_on_with_the_bits_of_one_that_was_not_interrupted(detecting, text, tmp_path):
    shutil.copytree(detecting.folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "6")
    assert train.main(arguments(text, tmp_path / "run", *detecting.words)) == 0
    assert_same(state_of(detecting.folder, 6), state_of(tmp_path / "run", 6))
    with pytest.raises(InputError, match=r"rtd\.generator-share: 0\.25 there, 0\.5 here"):
        train.main(arguments(text, tmp_path / "run", *detecting.words, "--rtd.generator-share", "0.5"))


def test_detection_is_told_beside_the_loss_of_the_generator(detecting, tmp_path, capsys):
    records = list(read_records(detecting.folder / "metrics.jsonl"))
    last = last_held_out(detecting.folder)
    assert {r["split"] for r in records if "detection_loss" in r} == {"train", "validation"}
    found = measured(tmp_path, detecting.folder)
    for name in ("loss", "detection_loss", "detection_accuracy", "replaced_share"):
        assert found[name] == pytest.approx(last[name], abs=1e-6)
    assert found["weighted_detection_loss"] == pytest.approx(50 * found["detection_loss"])
    assert 0 < found["replaced_share"] <= 6 / 32  # no more than are targets
    assert found["pseudo_perplexity"] == pytest.approx(math.exp(found["loss"]))
    right, replaced = (f"{found[name]:.2%}" for name in ("detection_accuracy", "replaced_share"))
    told = f"detection   {found['detection_loss']:.4f} nats a token, {right} right, where {replaced} are replaced"
    assert told in capsys.readouterr().out


def test_a_network_that_has_learned_from_replaced_tokens_goes_on_elsewhere(detecting, text, tmp_path, capsys):
    """To Hugging Face and back, to another objective, and to a task; its generator by its own settings alone."""
    assert convert.main([str(detecting.folder), str(tmp_path / "hf"), "--to", "hf"]) == 0
    assert "no place for generator: left behind" in capsys.readouterr().out
    ours, there = (flatten(xlnet_jax.load(folder).params) for folder in (detecting.folder, tmp_path / "hf"))
    assert {path for path in ours if not path.startswith("generator/")} == there.keys()
    for path, array in there.items():
        np.testing.assert_array_equal(ours[path], array)

    def start(init, **rtd):
        config = replace(with_objective(demo(), "rtd"), rtd=ReplacedConfig(**rtd))
        config, given = begin_from(str(init), config, None, config)
        return params_of(given, config)

    assert start(detecting.folder)[1] == []
    assert {path.partition("/")[0] for path in start(tmp_path / "hf")[1]} == {"generator"}
    with pytest.raises(InputError, match=r"generator/.* is .*, and here it would be .*rtd\.generator_share"):
        start(detecting.folder, generator_share=0.5)
    with pytest.raises(InputError, match="the checkpoint has no generator/"):
        evaluate.main([str(tmp_path / "hf"), "--text", str(text), "--data.seq-len", "32"])
    with pytest.raises(InputError, match=r"has learned which pieces are replaced \(rtd\).*no query stream"):
        factorize.main([str(detecting.folder), "--text", "She was very happy", "--targets", "very"])


# ---- rows without a block -------------------------------------------------------------------------------------------


def test_no_measure_of_held_out_text_depends_on_the_batch_size(causal, detecting):
    """The blocks fill whole batches of no size here, and the largest batch not once."""
    for folder in (causal.folder, detecting.folder):
        corpus = Run.of(folder).corpus()
        blocks = corpus.num_blocks("validation")
        assert 8 < blocks < 64
        assert blocks % 8
        first, other = (
            xlnet_jax.evaluate(folder, data={"batch_size": size}, max_windows=10**6).measured for size in (8, 64)
        )
        assert first.windows == blocks * steps_per_block(corpus.block_len, Run.of(folder).config.data)
        assert (other.content, other.targets, other.windows) == (first.content, first.targets, first.windows)
        assert other.unigram == pytest.approx(first.unigram, rel=1e-6)
        assert other.loss == pytest.approx(first.loss, rel=1e-5)
        assert other.besides == pytest.approx(first.besides, rel=1e-5)
    assert {"detection_loss", "detection_accuracy", "replaced_share"} <= first.besides.keys()


# ---- under the other commands ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["clm", "prefix", "rtd"])
def test_a_checkpoint_is_finetuned_and_keeps_its_network_and_the_name_of_its_objective(objective, request, tmp_path):
    run = request.getfixturevalue({"clm": "causal", "prefix": "prefixed", "rtd": "detecting"}[objective])
    table = tmp_path / "table.csv"
    table.write_text("label,text\n" + "good,It was very good\nbad,It was very bad\n" * 4)
    words = ["--task", "classification", "--init", run.folder, "--train", table, "--steps", "1"]
    words += ["--data.batch-size", "8", "--data.seq-len", "16", "--workdir", tmp_path / "finetuned"]
    assert finetune.main([str(word) for word in words]) == 0
    before, after = xlnet_jax.load(run.folder), xlnet_jax.load(tmp_path / "finetuned")
    assert (after.objective, after.head.task) == (objective, "classification")
    assert (after.model.attn_type, after.model.positions) == (before.model.attn_type, before.model.positions)


def test_a_causal_row_goes_on_seeing_what_is_before_it_alone_and_cls_sees_all(causal, masked):
    """In vectors, and so in finetuning."""
    texts = ["She was very happy", "She said no more of it"]
    for folder, is_same in ((causal.folder, True), (masked, False)):
        model = xlnet_jax.load(folder)
        first, last = (xlnet_jax.embed_texts(model, texts, pooling=pooling) for pooling in ("first", "cls"))
        assert np.allclose(first[0], first[1], rtol=0, atol=1e-6) == is_same
        assert not np.allclose(last[0], last[1], rtol=0, atol=1e-3)


def test_a_checkpoint_goes_into_the_formats_that_can_hold_it(causal, masked, tmp_path, capsys):
    with pytest.raises(InputError, match=r"cannot hold a network without segment encodings \(model\.num-segments 0\)"):
        convert.main([str(causal.folder), str(tmp_path / "causal"), "--to", "hf"])
    assert not (tmp_path / "causal").exists()
    assert convert.main([str(masked), str(tmp_path / "masked"), "--to", "hf"]) == 0
    assert "no place for pair_head/logits/bias" in capsys.readouterr().out
    ours, there = (flatten(xlnet_jax.load(folder).params) for folder in (masked, tmp_path / "masked"))
    assert {path for path in ours if not path.startswith("pair_head")} == there.keys()


def test_a_run_starts_from_another_objective_where_the_network_allows_it(causal, masked):
    def start(init, objective):
        config = with_objective(demo(), objective)
        config, there = begin_from(str(init), config, None, config)
        validate(config)
        return params_of(there, config)

    params, drawn = start(masked, "plm")
    assert drawn == ["backbone/mask_embedding"]
    assert params.keys() == {"backbone", "output_bias"}  # what judged pairs stays behind
    assert start(masked, "mlm")[1] == []
    assert start(causal.folder, "clm")[1] == []
    with pytest.raises(InputError, match=r"clm with model\.attn-type bi: a row must not see what it predicts"):
        start(masked, "clm")
    with pytest.raises(InputError, match=r"mlm with model\.attn-type uni: rows must see what is on both sides"):
        start(causal.folder, "mlm")
