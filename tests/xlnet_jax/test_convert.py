"""The convert command: its output and its errors."""

import json
from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import xlnet_jax
from tests.xlnet_jax.random_models import random_model
from xlnet_jax.errors import InputError

convert = import_module("xlnet_jax.convert")


def converted(*argv):
    return convert.main([str(word) for word in argv])


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders by their names: a checkpoint of Hugging Face, and one of ours."""
    places = {name: tmp_path_factory.mktemp("made") / name for name in ("hf", "native")}
    xlnet_jax.save(random_model(), places["hf"], "hf")
    xlnet_jax.save(random_model(), places["native"])
    return places


def test_the_command_names_formats_and_what_stays_behind(folders, tmp_path, capsys):
    assert converted(folders["hf"], tmp_path / "native") == 0
    out = capsys.readouterr().out
    assert f"{folders['hf']} (hf) -> {tmp_path / 'native'} (native)" in out
    assert "language model, 3 layers of 24" in out
    assert "note: no spiece.model: the tokenizer does not come along" in out
    assert converted(tmp_path / "native", tmp_path / "tf", "--to", "tf1") == 0
    assert "--mem_len=5" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["{hf}"], "Missing from python -m xlnet_jax.convert: TARGET"),
        (["{hf}", "{hf}"], "exists: name a folder that does not"),
        (["{native}", "{new}"], "is a native checkpoint already: give --to hf or --to tf1"),
        (["{native}", "{new}", "--to", "tf1", "--dtype", "bfloat16"], "--dtype bfloat16 is a type of the files of"),
    ],
)
def test_a_mistake_of_the_command_is_one_line(folders, tmp_path, argv, message):
    places = {**folders, "new": tmp_path / "new"}
    with pytest.raises(InputError) as mistake:
        converted(*[word.format(**places) for word in argv])
    assert message in str(mistake.value)
    assert "\n" not in str(mistake.value)
    assert not places["new"].exists()


def test_bfloat16_halves_the_file_and_keeps_rounded_weights(folders, tmp_path):
    model = random_model()
    for dtype in ("float32", "bfloat16"):
        converted(folders["native"], tmp_path / dtype, "--to", "hf", "--dtype", dtype)
        assert json.loads((tmp_path / dtype / "config.json").read_text())["dtype"] == dtype
    sizes = [(tmp_path / dtype / "model.safetensors").stat().st_size for dtype in ("float32", "bfloat16")]
    weights = sum(weight.nbytes for weight in jax.tree.leaves(model.params))
    assert sizes[0] - sizes[1] == pytest.approx(weights / 2, rel=0.01)
    loaded = xlnet_jax.load(tmp_path / "bfloat16")
    assert "weights in bfloat16, kept as float32" in loaded.notes
    jax.tree.map(
        lambda ours, theirs: np.testing.assert_array_equal(np.asarray(ours, jnp.bfloat16).astype(np.float32), theirs),
        model.params,
        loaded.params,
    )
