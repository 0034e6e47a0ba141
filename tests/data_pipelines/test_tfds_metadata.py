"""A dataset of TFDS brings no code, names no file outside its folder, and announces no more than it holds."""

import json
import os
import sys

import pytest
from etils import epath

from data_pipelines.tfds_text import check_metadata, open_dataset
from xlnet_jax.errors import InputError

TEXT = {"pythonClassName": "tensorflow_datasets.core.features.text_feature.Text", "text": {}}
FEATURES = {
    "pythonClassName": "tensorflow_datasets.core.features.features_dict.FeaturesDict",
    "featuresDict": {"features": {"text": TEXT}},
}
SPLIT = {"name": "train", "numBytes": "9", "shardLengths": ["2"], "filepathTemplate": "{SPLIT}-{SHARD_X_OF_Y}"}
INFO = {"name": "novels", "version": "1.0.0", "fileFormat": "tfrecord", "moduleName": "evil", "splits": [SPLIT]}
EVIL = "open('ran', 'w')\nclass F: pass\n"


def write(folder, features=FEATURES, info=INFO):
    (folder / "features.json").write_text(json.dumps(features))
    (folder / "dataset_info.json").write_text(json.dumps(info))
    return epath.Path(folder)


def test_sound_metadata_pass(tmp_path):
    check_metadata(write(tmp_path))


LEGACY = {"type": "dataset.evil.F", "content": {}}
NESTED = {"featuresDict": {"features": {"text": {"pythonClassName": "dataset.evil.F", "text": {}}}}}


@pytest.mark.parametrize(
    "features",
    [
        {**FEATURES, "pythonClassName": "dataset.evil.F"},
        {**FEATURES, **NESTED},
        {"python_class_name": "dataset.evil.F"},
        {**FEATURES, "jsonFeature": {"json": json.dumps(LEGACY)}},
        {"type": "tensorflow_datasets.core.features.Text", "content": json.dumps({"feature": [LEGACY]})},
        {**FEATURES, "pythonClassName": "os.system"},
        {**FEATURES, "pythonClassName": "tensorflow_datasets.core.features.x.\nos.F"},
        {**FEATURES, "pythonClassName": 7},
    ],
)
def test_code_that_a_dataset_names_is_not_imported(tmp_path, monkeypatch, features):
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "evil.py").write_text(EVIL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    write(tmp_path, features)
    with pytest.raises(InputError, match="code in a dataset does not run here"):
        open_dataset(str(tmp_path), None, "train", "text")
    assert not (tmp_path / "ran").exists()
    assert "dataset.evil" not in sys.modules


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"filepathTemplate": "../{SPLIT}"}, "which is no file of"),
        ({"filepathTemplate": "{SPLIT.__class__}"}, "none of TFDS's"),
        ({"filepathTemplate": "{0}"}, "none of TFDS's"),
        ({"filepath_template": "gs://bucket/{SPLIT}"}, "which is no file of"),
        ({"name": "../train"}, "which is no file of"),
        ({"shardLengths": ["9223372036854775807"]}, "a shard of 9223372036854775807 examples"),
        ({"shardLengths": ["1000000000000"]}, "announces 1,000,000,000,000 examples, and its files have"),
        ({"shardLengths": ["-1"]}, "a shard of -1 examples"),
        ({"shardLengths": "2"}, "is damaged: Expected array"),
    ],
)
def test_a_split_stays_in_its_folder_and_its_size(tmp_path, changed, message):
    write(tmp_path, info=INFO | {"splits": [SPLIT | changed]})
    with pytest.raises(InputError) as refused:
        check_metadata(epath.Path(tmp_path))
    assert message in str(refused.value)


def test_a_feature_is_no_path(tmp_path):
    """TFDS reads the labels of a feature from a file of its name."""
    write(tmp_path, {**FEATURES, "featuresDict": {"features": {"../../x": TEXT}}})
    with pytest.raises(InputError, match="which is no file of"):
        check_metadata(epath.Path(tmp_path))


def test_a_pipe_among_the_shards_is_found(tmp_path):
    write(tmp_path)
    os.mkfifo(tmp_path / "novels-train.tfrecord-00000-of-00001")
    with pytest.raises(InputError, match="is a pipe or a device"):
        check_metadata(epath.Path(tmp_path))
