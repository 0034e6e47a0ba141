"""A run of each objective by the command, and its checkpoint under the other commands."""

import math
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import xlnet_jax
from data_pipelines.tokenizer import EOD, SPECIAL_PIECES, UNK
from data_pipelines.tokenizer.pieces import PieceTables
from tests.xlnet_jax.training.test_evaluation import measured
from tests.xlnet_jax.training.tiny_run import arguments, assert_same, state_of
from xlnet_jax import InputError
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.checkpoints.native import PretrainingRun
from xlnet_jax.inference import log_probs
from xlnet_jax.inference.attention import attention_weights
from xlnet_jax.inference.words import fill_in
from xlnet_jax.interop.weights import flatten
from xlnet_jax.measurement.evaluate import _units
from xlnet_jax.objectives.language_model import objective_of
from xlnet_jax.objectives.presets import demo, with_objective
from xlnet_jax.settings.config import ReplacedConfig
from xlnet_jax.settings.resolution import Resolution
from xlnet_jax.training.evaluation import Content, Measured, content_of, frequencies_V, held_out_batches
from xlnet_jax.training.initial import begin_from, params_of
from xlnet_jax.training.metrics import read_records

convert = COMMANDS["convert"]
train = COMMANDS["train"]
evaluate = COMMANDS["evaluate"]
factorize = COMMANDS["factorize"]
finetune = COMMANDS["finetune"]

CLM = "--objective clm --data.num-predict None --data.reuse-len 32 --data.perm-size 32 --eval.max-windows 1000".split()
PREFIX = "--objective prefix --model.mem-len 0 --data.reuse-len 0 --data.perm-size 32 --data.num-predict None".split()
DAE = "--objective mlm --model.mem-len 16 --data.reuse-len 16 --data.pair-loss next".split()  # with memory
RTD = "--objective rtd --model.mem-len 0 --data.reuse-len 0 --data.perm-size 32".split()
SHORT = ["--optimizer.decay-steps", "12", "--steps", "6"]


@pytest.fixture(scope="module")
def causal(text, tmp_path_factory):
    """The workdir of a run that was interrupted inside a block."""
    folder = tmp_path_factory.mktemp("clm") / "run"
    assert train.main(arguments(text, folder, *CLM, *SHORT)) == 0
    assert (folder / "checkpoints" / "6" / "mems").exists()
    assert train.main(arguments(text, folder, *CLM, "--optimizer.decay-steps", "12")) == 0
    return folder


@pytest.fixture(scope="module")
def short_run(text, tmp_path_factory):
    def of(*words):
        folder = tmp_path_factory.mktemp("short") / "run"
        assert train.main(arguments(text, folder, *words, *SHORT)) == 0
        return folder

    return of


@pytest.fixture(scope="module")
def prefixed(short_run):
    return short_run(*PREFIX)


@pytest.fixture(scope="module")
def diffused(short_run):
    return short_run(*PREFIX, "--objective", "mdlm")


@pytest.fixture(scope="module")
def masked(short_run):
    """The workdir of a run with memory and pairs of texts."""
    return short_run(*DAE)


@pytest.fixture(scope="module")
def detecting(short_run):
    """The workdir of a run whose checkpoints are of the steps 4 and 6."""
    return short_run(*RTD)


def assert_as_in_training(found, workdir, *names):
    last = [r for r in read_records(workdir / "metrics.jsonl") if r["split"] == "validation"][-1]
    assert {name: found[name] for name in names} == pytest.approx({name: last[name] for name in names}, abs=1e-6)


# ---- clm ------------------------------------------------------------------------------------------------------------


def test_a_causal_run_that_was_interrupted_ends_with_the_bits_of_one_that_was_not(causal, text, tmp_path):
    assert train.main(arguments(text, tmp_path / "straight", *CLM)) == 0
    assert_same(state_of(causal), state_of(tmp_path / "straight"))


def test_a_causal_loss_is_that_of_reading_each_block_alone_in_segments(causal, tmp_path):
    found, model, corpus = measured(tmp_path, causal), xlnet_jax.load(causal), PretrainingRun.of(causal).corpus()
    tokens, _ = corpus.read("validation", np.arange(corpus.num_blocks("validation")))
    of_blocks = log_probs.causal_beside_likeliest(model, list(tokens), segment_len=32, mem_len=16)
    assert found["loss"] == pytest.approx(-np.concatenate(of_blocks)[:, 0].mean(), abs=1e-5)


def test_a_causal_loss_is_told_in_the_units_of_the_literature(causal, tmp_path, capsys):
    found, run = measured(tmp_path, causal), PretrainingRun.of(causal)
    assert_as_in_training(found, causal, "loss")
    corpus = run.corpus()
    batches = held_out_batches(corpus, corpus.tokenizer, run.config)
    ids = np.concatenate([batch["target_ids"][batch["target_weights"] > 0] for batch in batches])
    text = "".join("?" if i == UNK else corpus.tokenizer.pieces[i] for i in ids if i == UNK or i >= len(SPECIAL_PIECES))
    nats = found["loss"] * found["targets"]
    assert found["targets"] == len(ids)
    assert found["bits_per_character"] == pytest.approx(nats / math.log(2) / len(text))
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / len(text.replace("▁", " ").encode()))
    assert found["word_perplexity"] == pytest.approx(math.exp(nats / text.count("▁")))
    out = capsys.readouterr().out
    assert f"{found['perplexity']:,.2f} per piece, {found['word_perplexity']:,.2f} per word" in out
    assert f"{found['bits_per_character']:.4f} per character, {found['bits_per_byte']:.4f} per byte" in out
    assert f"counted     {len(ids):,} pieces and 0 ends of documents: {len(text):,} characters" in out
    assert f"unknown     0.00% of the pieces: 0 of {len(ids):,} are <unk>" in out


def test_an_end_of_a_document_counts_as_a_word_of_one_character():
    """And a piece that is a byte counts as a character where it is the first of one."""
    pieces = [*SPECIAL_PIECES, "▁né", "e", "<0xC3>", "<0xA9>"]
    tables = PieceTables.of(pieces, [*[None] * 11, 0xC3, 0xA9])
    tokenizer = SimpleNamespace(vocab_size=len(pieces), tables=tables, records=None, unknown_ids=[UNK])
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
    assert "per word" not in next(_units(without_spaces))


def test_a_causal_checkpoint_is_evaluated_with_another_memory_than_in_training(causal, tmp_path, capsys):
    """Transformer-XL's eval.py: shorter segments beside a longer memory, every row seeing the same length."""
    words = ("--data.seq-len", "16", "--mem-len", "48", "--same-length", "--clamp-len", "40")
    longer = measured(tmp_path, causal, *words)
    assert "of 16 tokens, 8 per batch, memory 48" in capsys.readouterr().out
    none = measured(tmp_path, causal, "--mem-len", "0")
    assert longer["targets"] == none["targets"]  # the same text
    assert longer["loss"] != none["loss"]


# ---- prefix ---------------------------------------------------------------------------------------------------------


def test_a_prefix_checkpoint_predicts_from_left_to_right(prefixed):
    """A piece by what is before it alone: the scores of a text's beginning are those of the whole."""
    model = xlnet_jax.load(prefixed)
    assert (model.objective, model.model.attn_type) == ("prefix", "bi")
    ids = model.tokenizer.encode_lines(["She was very happy and said no more of it"])[0]
    whole, part = log_probs.causal_beside_likeliest(model, [ids, ids[:5]], batch_tokens=256)
    np.testing.assert_allclose(whole[:4], part, rtol=0, atol=1e-5)
    with pytest.raises(InputError, match=r"predict the pieces \w+ a prefix \(prefix\).*no query stream"):
        fill_in(model, "She was very happy", ["very"])


# ---- mdlm -----------------------------------------------------------------------------------------------------------


def test_a_bound_is_told_as_one_in_the_units_of_the_text_of_the_windows(diffused, tmp_path, capsys):
    found, run = measured(tmp_path, diffused), PretrainingRun.of(diffused)
    assert_as_in_training(found, diffused, "loss")
    corpus = run.corpus()
    batches = held_out_batches(corpus, corpus.tokenizer, run.config)
    ids = np.concatenate([batch["target_ids"][batch["row_weights"] > 0].ravel() for batch in batches])
    text = "".join("?" if i == UNK else corpus.tokenizer.pieces[i] for i in ids if i == UNK or i >= len(SPECIAL_PIECES))
    assert found["targets"] == len(ids) == found["pieces"] + found["documents"]
    bits = found["loss"] * len(ids) / math.log(2)
    assert found["bits_per_character"] == pytest.approx(bits / (len(text) + found["documents"]))
    frequency = -np.log(frequencies_V(corpus.unigram_counts))
    assert found["unigram"] == pytest.approx(frequency[ids].mean(), rel=0.05)  # of the masked ones
    out = capsys.readouterr().out
    assert f"perplexity  at most {found['perplexity']:,.2f} per piece" in out
    assert f"bits        at most {found['bits_per_piece']:.4f} per piece" in out


def test_a_diffusion_checkpoint_scores_in_any_order_and_has_no_query_stream(diffused):
    model = xlnet_jax.load(diffused)
    assert model.objective == "mdlm"
    (score,) = xlnet_jax.score_texts(model, ["She was very happy"], ["left-to-right", "random:2"])
    assert len(set(score.log_likelihoods_O.tolist())) == 3
    (gap,) = fill_in(model, "She was very happy", ["very"])
    assert gap.likeliest[0][1] >= gap.probability
    with pytest.raises(
        InputError, match=r"`targets`: the checkpoint \(mdlm\) has no query stream: leave `targets` out"
    ):
        attention_weights(model, ["She was very happy"], [[1]])


# ---- mlm ------------------------------------------------------------------------------------------------------------


def test_a_masked_loss_makes_no_claim_on_the_likelihood_of_a_text(masked, tmp_path, capsys):
    found = measured(tmp_path, masked)
    assert_as_in_training(found, masked, "loss", "pair_loss", "pair_accuracy")
    assert found["pseudo_perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert [name for name in found if name.startswith("bits") or "perplexity" in name] == ["pseudo_perplexity"]
    out = capsys.readouterr().out
    assert "per masked piece: no likelihood of the text follows" in out
    assert f"pairs       {found['pair_loss']:.4f} nats, {found['pair_accuracy']:.2%} right" in out


# ---- rtd ------------------------------------------------------------------------------------------------------------


def test_a_run_of_two_networks_goes_on_with_the_bits_of_one_that_was_not_interrupted(detecting, text, tmp_path):
    shutil.copytree(detecting, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "6")
    again = arguments(text, tmp_path / "run", *RTD, *SHORT)
    assert train.main(again) == 0
    assert_same(state_of(detecting, 6), state_of(tmp_path / "run", 6))
    with pytest.raises(InputError, match=r"rtd\.generator-share: 0\.25 there, 0\.5 here"):
        train.main([*again, "--rtd.generator-share", "0.5"])


def test_detection_is_told_beside_the_loss_of_the_generator(detecting, tmp_path, capsys):
    found = measured(tmp_path, detecting)
    assert_as_in_training(found, detecting, "loss", "detection_loss", "detection_accuracy", "replaced_share")
    assert found["weighted_detection_loss"] == pytest.approx(50 * found["detection_loss"])
    assert 0 < found["replaced_share"] <= 6 / 32  # no more than are targets
    right, replaced = (f"{found[name]:.2%}" for name in ("detection_accuracy", "replaced_share"))
    told = f"detection   {found['detection_loss']:.4f} nats per token, {right} right, where {replaced} are replaced"
    assert told in capsys.readouterr().out


def start(init, objective, **rtd):
    """Return the parameters that a run by this objective takes from a checkpoint, and the names of those it draws."""
    config = replace(with_objective(demo(), objective), rtd=ReplacedConfig(**rtd))
    settings = Resolution(replace(config, init=str(init)))
    return params_of(begin_from(settings, None), objective_of(settings.final()))


def test_a_network_that_has_learned_from_replaced_tokens_goes_on_elsewhere(detecting, text, tmp_path, capsys):
    """To Hugging Face and back, and to the same objective; its generator by its own settings alone."""
    assert convert.main([str(detecting), str(tmp_path / "hf"), "--to", "hf"]) == 0
    assert "cannot hold it: generator" in capsys.readouterr().out
    assert start(detecting, "rtd")[1] == []
    assert {path.partition("/")[0] for path in start(tmp_path / "hf", "rtd")[1]} == {"generator"}
    with pytest.raises(InputError, match=r"generator/.* is .*, and here it would be .*rtd\.generator_share"):
        start(detecting, "rtd", generator_share=0.5)
    with pytest.raises(InputError, match="the checkpoint has no generator/"):
        evaluate.main([str(tmp_path / "hf"), "--text", str(text), "--data.seq-len", "32"])
    with pytest.raises(InputError, match="with rtd, which has no likelihood: it predicts which pieces"):
        factorize.main([str(detecting), "--text", "She was very happy", "--targets", "very"])


# ---- all ------------------------------------------------------------------------------------------------------------


def test_no_measure_of_held_out_text_depends_on_the_batch_size(causal, detecting):
    """The blocks fill whole batches of no size here, and the largest batch not once."""
    blocks = PretrainingRun.of(causal).corpus().num_blocks("validation")
    assert 8 < blocks < 64
    assert blocks % 8
    for folder in (causal, detecting):
        first, other = (
            xlnet_jax.evaluate(folder, data={"batch_size": size}, max_windows=10**6).measured.numbers()
            for size in (8, 64)
        )
        assert first.pop("objective") == other.pop("objective")
        assert other == pytest.approx(first, rel=1e-5)


@pytest.mark.parametrize("fixture", ["causal", "detecting"])
def test_a_checkpoint_is_finetuned_and_keeps_its_network_and_its_objective(fixture, request, tmp_path):
    pretrained = request.getfixturevalue(fixture)
    table = tmp_path / "table.csv"
    table.write_text("label,text\n" + "good,It was very good\nbad,It was very bad\n" * 4)
    words = ["--task", "classification", "--init", pretrained, "--train", table, "--steps", "1"]
    words += ["--data.batch-size", "8", "--data.seq-len", "16", "--workdir", tmp_path / "finetuned"]
    assert finetune.main([str(word) for word in words]) == 0
    before, after = xlnet_jax.load(pretrained), xlnet_jax.load(tmp_path / "finetuned")
    assert (after.objective, after.head.task) == (before.objective, "classification")
    assert (after.model.attn_type, after.model.positions) == (before.model.attn_type, before.model.positions)


def test_a_checkpoint_goes_into_the_formats_that_can_hold_it(causal, masked, tmp_path, capsys):
    with pytest.raises(
        InputError, match=r"cannot hold a network without segment encodings \(--model\.num-segments 0\)"
    ):
        convert.main([str(causal), str(tmp_path / "causal"), "--to", "hf"])
    assert not (tmp_path / "causal").exists()
    assert convert.main([str(masked), str(tmp_path / "masked"), "--to", "hf"]) == 0
    assert "cannot hold it: pair_head/logits/bias" in capsys.readouterr().out
    ours, there = (flatten(xlnet_jax.load(folder).params) for folder in (masked, tmp_path / "masked"))
    assert {path for path in ours if not path.startswith("pair_head")} == there.keys()


def test_a_run_starts_from_another_objective_where_the_network_allows_it(causal, masked):
    params, drawn = start(masked, "plm")
    assert drawn == ["backbone/mask_embedding"]
    assert params.keys() == {"backbone", "output_bias"}  # what judged pairs stays behind
    assert start(masked, "mlm")[1] == []
    assert start(causal, "clm")[1] == []
