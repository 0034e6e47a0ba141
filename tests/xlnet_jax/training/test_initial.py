"""Start from a checkpoint of any format: with its sizes, weights and tokenizer; contradictions are refused."""

import shutil

import numpy as np
import pytest

import xlnet_jax
from tests.xlnet_jax.random_models import HEADS, random_model
from tests.xlnet_jax.training.tiny_run import arguments, records_of, state_of
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.errors import InputError
from xlnet_jax.interop.weights import flatten

train = COMMANDS["train"]

STANDING = ("--optimizer.learning-rate", "1e-20")  # no step moves anything


def run_from(init, text, workdir, *more):
    """Train three steps under the demo's own sizes: those of the checkpoint must win."""
    words = arguments(text, workdir)
    data = [w for i, w in enumerate(words) if not (w.startswith("--model.") or words[i - 1].startswith("--model."))]
    return train.main([*data, "--model.mem-len", "16", "--steps", "3", "--init", str(init), *STANDING, *more])


@pytest.mark.parametrize("fmt", ["run", "hf"])
def test_a_run_starts_from_the_weights_and_tokenizer_of_any_format(straight, text, tmp_path, fmt, capsys):
    init, following = straight, tmp_path / "next"
    if fmt != "run":
        init = tmp_path / fmt
        xlnet_jax.save(xlnet_jax.load(straight), init, fmt)
    assert run_from(init, text, following) == 0
    assert f"init        weights of {init}\n" in capsys.readouterr().out
    started, there = (flatten(p) for p in (state_of(following, 3)[0], state_of(straight)[0]))
    assert started.keys() == there.keys()
    for path in there:
        np.testing.assert_allclose(started[path], there[path], rtol=0, atol=1e-6)
    assert (following / "tokenizer/spiece.model").read_bytes() == (straight / "tokenizer/spiece.model").read_bytes()
    held_out = [[r["loss"] for r in records_of(w) if r["split"] == "validation"][-1] for w in (straight, following)]
    np.testing.assert_allclose(held_out[0], held_out[1], rtol=1e-5)


def test_a_finetuned_checkpoint_keeps_its_body_and_says_what_is_drawn_afresh(straight, text, tmp_path, capsys):
    body = xlnet_jax.load(straight)
    finetuned = random_model(body.model, HEADS["classification"], body.tokenizer)
    del finetuned.params["backbone"]["mask_embedding"]
    xlnet_jax.save(finetuned, tmp_path / "tf", "tf1")
    assert run_from(tmp_path / "tf", text, tmp_path / "next") == 0
    assert "randomly initialized: backbone/mask_embedding, output_bias" in capsys.readouterr().out
    started = state_of(tmp_path / "next", 3)[0]
    np.testing.assert_allclose(
        started["backbone"]["word_embedding"], finetuned.params["backbone"]["word_embedding"], atol=1e-6
    )


def test_what_contradicts_the_weights_is_refused(straight, text, tmp_path, reference):
    with pytest.raises(InputError, match=r"model\.num-layers 2: the weights of --init .* have 1"):
        run_from(straight, text, tmp_path / "a", "--model.num-layers", "2")
    other = reference / "data" / "spiece.model"
    with pytest.raises(InputError, match=r"spiece\.model does not belong to the weights"):
        run_from(straight, text, tmp_path / "b", "--tokenizer", str(other))
    xlnet_jax.save(random_model(), tmp_path / "bare", "hf")
    with pytest.raises(InputError, match="has no tokenizer: give --tokenizer"):
        run_from(tmp_path / "bare", text, tmp_path / "c")
    with pytest.raises(InputError, match=r"has 800 pieces, the weights of --init .* 40"):
        run_from(tmp_path / "bare", text, tmp_path / "d", "--tokenizer", str(other))
    with pytest.raises(InputError, match="no such folder"):
        run_from(tmp_path / "nowhere", text, tmp_path / "e")


def test_a_run_goes_on_when_its_source_is_gone_or_spelled_otherwise(tmp_path, straight, text, monkeypatch):
    shutil.copytree(straight / "checkpoints" / "12", tmp_path / "source")
    monkeypatch.chdir(tmp_path)
    settings = ("--optimizer.decay-steps", "20")
    assert run_from("source", text, tmp_path / "next", *settings) == 0
    shutil.rmtree(tmp_path / "source")
    assert run_from(tmp_path / "source", text, tmp_path / "next", *settings, "--steps", "5") == 0
    assert (tmp_path / "next" / "checkpoints" / "5").is_dir()
