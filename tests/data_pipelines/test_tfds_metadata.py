"""A TFDS dataset can run no code, read no file outside its folder, and announce no more examples than its files can
hold."""

import json
import sys

import pytest

from data_pipelines.tfds_text import open_dataset
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


def slices_of(folder):
    return open_dataset(str(folder), "train", "text", "strict")


LEGACY = {"type": "dataset.evil.F", "content": {}}
NESTED = {"featuresDict": {"features": {"text": {"pythonClassName": "dataset.evil.F", "text": {}}}}}


@pytest.mark.parametrize(
    "features",
    [
        {**FEATURES, "pythonClassName": "dataset.evil.F"},
        {**FEATURES, **NESTED},
        LEGACY,
        {"type": "tensorflow_datasets.core.features.features_dict.FeaturesDict", "content": {"text": LEGACY}},
    ],
)
def test_code_that_a_dataset_names_is_not_imported(tmp_path, monkeypatch, features):
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "evil.py").write_text(EVIL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    write(tmp_path, features)
    with pytest.raises(InputError, match="code in datasets is never run"):
        slices_of(tmp_path)
    assert not (tmp_path / "ran").exists()
    assert "dataset.evil" not in sys.modules


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"filepathTemplate": "../{SPLIT}"}, "which is not in"),
        ({"filepathTemplate": "*-{SPLIT}"}, "which is a pattern and not a file"),
        ({"filepathTemplate": "{0}"}, "is damaged"),
        ({"shardLengths": ["9223372036854775807"]}, "claims 9,223,372,036,854,775,807 bytes"),
    ],
)
def test_a_split_stays_in_its_folder_and_its_size(tmp_path, changed, message):
    write(tmp_path)
    assert [part.split for part in slices_of(tmp_path)] == ["train[0:2]"]
    write(tmp_path, info=INFO | {"splits": [SPLIT | changed]})
    with pytest.raises(InputError, match=message):
        slices_of(tmp_path)
