"""results.json names a checkpoint of its own folder, or is refused in one line."""

import json

import pytest

from xlnet_jax.checkpoints import native
from xlnet_jax.errors import InputError


def test_results_choose_the_checkpoint(tmp_path):
    for step in (1, 2):
        (tmp_path / "checkpoints" / str(step) / "params").mkdir(parents=True)
    assert native.find(tmp_path) == tmp_path / "checkpoints" / "2"
    (tmp_path / "results.json").write_text(json.dumps({"checkpoint": "checkpoints/1", "metrics": {"f1": None}}))
    assert native.find(tmp_path) == tmp_path / "checkpoints" / "1"


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ({"checkpoint": "../other"}, "which is no file of"),
        ({"checkpoint": "/etc"}, "which is no file of"),
        ({"checkpoint": ["checkpoints/1"]}, "is damaged: Expected"),
        ({"metrics": {"accuracy": [0.5]}}, "is damaged: Expected"),
        ([], "is damaged: Expected"),
    ],
)
def test_damaged_results_are_refused(tmp_path, results, message):
    (tmp_path / "results.json").write_text(json.dumps(results))
    with pytest.raises(InputError, match=message):
        native.find(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": 7}, "Expected str | null, got int - at $.objective"),
        ({"data": {"reuse_len": "x"}}, "at $.data.reuse_len"),
        ({"data": {"reuse_len": -1}}, "at $.data.reuse_len"),
        ({"data": []}, "at $.data"),
        ({"model": None}, "at $.model"),
        ({"head": [1]}, "at $.head"),
        ({"hugging_face": "x"}, "at $.hugging_face"),
    ],
)
def test_settings_of_a_checkpoint_have_their_types(tmp_path, changes, message):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "metadata").write_text(json.dumps({"model": {}, "objective": "plm"} | changes))
    with pytest.raises(InputError) as refused:
        native.read(tmp_path)
    assert message in str(refused.value)
