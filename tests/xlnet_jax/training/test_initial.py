"""Start from a checkpoint of any format: with its sizes, weights and tokenizer; contradictions are refused."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

import xlnet_jax
from tests.xlnet_jax.random_models import HEADS, SMALL, random_model
from tests.xlnet_jax.training.tiny_run import arguments, records_of, state_of
from xlnet_jax import train
from xlnet_jax.errors import InputError
from xlnet_jax.interop.weights import flatten
from xlnet_jax.objectives.presets import demo
from xlnet_jax.training.initial import begin_from

STANDING = ("--optimizer.learning-rate", "1e-20")  # no step moves anything


def run_from(init, text, workdir, *more):
    """Train three steps under the demo's own sizes: those of the checkpoint must win."""
    data = [word for word in arguments(text, workdir) if word]
    data = [w for i, w in enumerate(data) if not (w.startswith("--model.") or data[i - 1].startswith("--model."))]
    return train.main([*data, "--model.mem-len", "16", "--steps", "3", "--init", str(init), *STANDING, *more])


@pytest.mark.parametrize("fmt", ["run", "hf"])
def test_a_run_starts_from_the_weights_and_tokenizer_of_any_format(straight, text, tmp_path, fmt, capsys):
    init = straight
    if fmt != "run":
        init = tmp_path / fmt
        xlnet_jax.save(xlnet_jax.load(straight), init, fmt)
    assert run_from(init, text, tmp_path / "next") == 0
    assert f"init        weights of {init}\n" in capsys.readouterr().out
    started, there = (flatten(p) for p in (state_of(tmp_path / "next", 3)[0], state_of(straight)[0]))
    assert started.keys() == there.keys()
    for path in there:
        np.testing.assert_allclose(started[path], there[path], rtol=0, atol=1e-6)
    assert (tmp_path / "next/tokenizer/spiece.model").read_bytes() == (straight / "tokenizer/spiece.model").read_bytes()
    held_out = [
        [r["loss"] for r in records_of(w) if r["split"] == "validation"][-1] for w in (straight, tmp_path / "next")
    ]
    np.testing.assert_allclose(held_out[0], held_out[1], rtol=1e-5)
    assert json.loads((tmp_path / "next/config.json").read_text())["model"]["d_model"] == 16


def test_a_finetuned_checkpoint_keeps_its_body_and_says_what_is_drawn_afresh(straight, text, tmp_path, capsys):
    body = xlnet_jax.load(straight)
    head = HEADS["classification"]
    finetuned = random_model(body.model, head, body.tokenizer)
    del finetuned.params["backbone"]["mask_embedding"]
    xlnet_jax.save(finetuned, tmp_path / "tf", "tf1")
    assert run_from(tmp_path / "tf", text, tmp_path / "next") == 0
    assert "drawn afresh: backbone/mask_embedding, output_bias" in capsys.readouterr().out
    started = state_of(tmp_path / "next", 3)[0]
    np.testing.assert_allclose(
        started["backbone"]["word_embedding"], finetuned.params["backbone"]["word_embedding"], atol=1e-6
    )


def test_what_contradicts_the_weights_is_refused(straight, text, tmp_path, reference):
    with pytest.raises(InputError, match=r"model\.num-layers 2: the weights of --init .* have 1"):
        run_from(straight, text, tmp_path / "a", "--model.num-layers", "2")
    network = dataclasses.replace(demo().model, mem_len=16, num_layers=5)
    with pytest.raises(InputError, match=r"model\.num-layers 5: the weights of `init` .* have 1"):
        begin_from(str(straight), dataclasses.replace(demo(), model=network), None, demo())
    other = reference / "data" / "spiece.model"
    with pytest.raises(InputError, match=r"spiece\.model does not belong to the weights"):
        run_from(straight, text, tmp_path / "b", "--tokenizer", str(other))
    xlnet_jax.save(random_model(), tmp_path / "bare", "hf")
    with pytest.raises(InputError, match="came without a tokenizer: give --tokenizer"):
        run_from(tmp_path / "bare", text, tmp_path / "c")
    with pytest.raises(InputError, match=r"has 800 pieces, the weights of --init .* 40"):
        run_from(tmp_path / "bare", text, tmp_path / "d", "--tokenizer", str(other))
    with pytest.raises(InputError, match="no such folder"):
        run_from(tmp_path / "nowhere", text, tmp_path / "e")


def test_wide_heads_survive_the_way_through_a_run(tmp_path, straight, text):
    """num_heads x d_head need not be d_model."""
    tokenizer = xlnet_jax.load(straight).tokenizer
    wide = random_model(dataclasses.replace(SMALL, vocab_size=400, d_head=10), tokenizer=tokenizer)
    xlnet_jax.save(wide, tmp_path / "wide", "tf1")
    assert run_from(tmp_path / "wide", text, tmp_path / "next") == 0
    assert xlnet_jax.load(tmp_path / "next").params["backbone"]["layers"]["attention"]["q"].shape == (3, 24, 4, 10)


def test_a_run_goes_on_when_its_source_is_gone_or_spelled_otherwise(tmp_path, straight, text, monkeypatch):
    shutil.copytree(straight / "checkpoints" / "12", tmp_path / "source")
    monkeypatch.chdir(tmp_path)
    settings = ("--optimizer.decay-steps", "20")
    assert run_from("source", text, tmp_path / "next", *settings) == 0
    shutil.rmtree(tmp_path / "source")
    assert run_from(tmp_path / "source", text, tmp_path / "next", *settings, "--steps", "5") == 0
    assert (tmp_path / "next" / "checkpoints" / "5").is_dir()


@pytest.mark.parametrize(
    ("weights", "workdir", "weights_now", "is_the_run"),
    [
        ("{gone}/c/pretrained", "{gone}/c/task", "c/pretrained", True),
        ("{gone}/c/pretrained", "c/task", "c/pretrained", True),  # named relative to a folder that is not known
        ("{gone}/c/pretrained", "task", "c/pretrained", True),
        ("{gone}/c/pretrained", "{there}/c/task", "c/pretrained", True),  # moved a second time
        ("{gone}/c/pretrained", "{gone}/c/task", "c/other", False),
        ("{gone}/c/pretrained", "{gone}/c/task", "pretrained", False),  # does not lie beside the workdir
        ("{gone}/c/pretrained", "{gone}/d/task", "c/pretrained", False),  # did not
        ("{gone}/c/pretrained", "d/task", "c/pretrained", False),
        ("{there}/pretrained", "{there}/task", "c/pretrained", False),  # there are two of them
    ],
)
def test_weights_that_moved_with_their_run_are_those_it_started_from(
    tmp_path, weights, workdir, weights_now, is_the_run
):
    places = {"gone": tmp_path / "gone", "there": tmp_path / "there"}
    (places["there"] / "pretrained").mkdir(parents=True)
    there = dataclasses.replace(demo(), init=weights.format(**places), workdir=workdir.format(**places))
    config = dataclasses.replace(demo(), workdir=str(tmp_path / "now/c/task"))
    init = str(tmp_path / "now" / weights_now)
    if is_the_run:
        found, start = begin_from(init, config, there, demo())
        assert (found.init, start) == (there.init, None)
    else:
        with pytest.raises(InputError, match="no such folder"):  # reads the weights
            begin_from(init, config, there, demo())
