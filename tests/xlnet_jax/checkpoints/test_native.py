"""Checkpoints of this project: which one of a folder is read, and what is refused in one line."""

import dataclasses
import json
import shutil

import orbax.checkpoint as ocp
import pytest

import xlnet_jax
from tests.xlnet_jax.random_models import random_model
from xlnet_jax.checkpoints import native
from xlnet_jax.checkpoints.listing import CONFIG
from xlnet_jax.errors import InputError


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint without checksums, so that nothing but the readers finds damage."""
    folder = tmp_path_factory.mktemp("native") / "saved"
    xlnet_jax.save(dataclasses.replace(random_model(), objective="prefix"), folder)
    (folder / "checksums.json").unlink()
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "checkpoint")


def change(file, **changes):
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "pln"}, r"metadata: objective pln must be one of plm, .*: did you mean plm\?"),
        ({"data": {"reuse_len": -1}}, r"at \$\.data\.reuse_len"),
        ({"format_version": 2}, "metadata has format_version 2: this xlnet_jax reads version 1 of checkpoint files"),
    ],
)
def test_settings_of_a_checkpoint_have_their_types(folder, changes, message):
    change(folder / CONFIG, **changes)
    with pytest.raises(InputError, match=message):
        native.read(folder)


def test_results_choose_the_checkpoint(tmp_path):
    for step in (1, 2):
        (tmp_path / "checkpoints" / str(step) / "params").mkdir(parents=True)
    assert native.find(tmp_path) == tmp_path / "checkpoints" / "2"
    results = {"format_version": 1, "checkpoint": "checkpoints/1", "metrics": {"f1": None}}
    (tmp_path / "results.json").write_text(json.dumps(results))
    assert native.find(tmp_path) == tmp_path / "checkpoints" / "1"


def test_results_that_lead_out_of_the_folder_are_refused(tmp_path):
    (tmp_path / "results.json").write_text(json.dumps({"format_version": 1, "checkpoint": "../other"}))
    with pytest.raises(InputError, match="which is not in"):
        native.find(tmp_path)


def test_chunks_that_are_larger_than_their_array_are_refused(folder):
    arrays = ocp.PyTreeCheckpointer().restore(folder / "params")
    shutil.rmtree(folder / "params")
    ocp.PyTreeCheckpointer(use_ocdbt=False).save(folder / "params", arrays)
    assert xlnet_jax.load(folder).objective == "prefix"
    file = next((folder / "params").glob("*/.zarray"))
    form = json.loads(file.read_text())
    file.write_text("[" * 100_000)
    with pytest.raises(InputError, match=r"\.zarray is damaged: "):
        xlnet_jax.load(folder)
    file.write_text(json.dumps(form | {"chunks": [10**9] * len(form["chunks"])}))
    with pytest.raises(InputError, match=r"params is damaged: it claims 1,000,[\d,]+ bytes, but has"):
        xlnet_jax.load(folder)
