"""The convert command: its output and its errors."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import xlnet_jax
from tests.xlnet_jax.random_models import random_model
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.errors import InputError

convert = COMMANDS["convert"]


def converted(*argv):
    return convert.main([str(word) for word in argv])


@pytest.fixture(scope="module")
def native(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "native"
    xlnet_jax.save(random_model(), folder)
    return folder


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["{native}"], "Missing from python -m xlnet_jax.convert: TARGET"),
        (["{native}", "{native}", "--to", "hf"], "exists: name a folder that does not"),
        (["{native}", "{native}/checksums.json/x", "--to", "hf"], "you cannot write to"),
        (["{native}", "{new}"], "is a native checkpoint already: give --to hf or --to tf1"),
        (["{native}", "{new}", "--to", "tf1", "--dtype", "bfloat16"], "--dtype bfloat16 is a type of the files of"),
    ],
)
def test_a_mistake_of_the_command_is_one_line(native, tmp_path, argv, message):
    with pytest.raises(InputError) as mistake:
        converted(*[word.format(native=native, new=tmp_path / "new") for word in argv])
    assert message in str(mistake.value)
    assert "\n" not in str(mistake.value)
    assert not (tmp_path / "new").exists()


def test_the_command_names_formats_and_what_stays_behind_and_bfloat16_halves_the_file(native, tmp_path, capsys):
    assert converted(native, tmp_path / "tf", "--to", "tf1") == 0
    assert "--mem_len=5" in capsys.readouterr().out
    model = random_model()
    for dtype in ("float32", "bfloat16"):
        converted(native, tmp_path / dtype, "--to", "hf", "--dtype", dtype)
        out = capsys.readouterr().out
        assert f"{native} (native) -> {tmp_path / dtype} (hf)" in out
        assert "language model, 3 layers of 24" in out
        assert json.loads((tmp_path / dtype / "config.json").read_text())["dtype"] == dtype
    sizes = [(tmp_path / dtype / "model.safetensors").stat().st_size for dtype in ("float32", "bfloat16")]
    weights = sum(weight.nbytes for weight in jax.tree.leaves(model.params))
    assert sizes[0] - sizes[1] == pytest.approx(weights / 2, rel=0.01)
    loaded = xlnet_jax.load(tmp_path / "bfloat16")
    assert "weights in bfloat16, kept as float32" in loaded.notes
    assert any("no spiece.model" in note for note in loaded.notes)
    jax.tree.map(
        lambda ours, theirs: np.testing.assert_array_equal(np.asarray(ours, jnp.bfloat16).astype(np.float32), theirs),
        model.params,
        loaded.params,
    )
