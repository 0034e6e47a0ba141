"""Lines of metrics.jsonl that are no records are passed over."""

import json

import pytest
from etils import epath

from xlnet_jax.training.metrics import read_records

SOUND = {"step": 3, "split": "train", "loss": 1.5, "gradient_norm": None}


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        "{",
        "[]",
        '{"step": 1',
        json.dumps(SOUND | {"step": "3"}),
        json.dumps(SOUND | {"step": None}),
        json.dumps(SOUND | {"loss": "low"}),
        json.dumps(SOUND | {"loss": [1]}),
        json.dumps(SOUND | {"split": {}}),
        json.dumps({"step": 3, "split": "train"}),
        json.dumps(SOUND | {"step": 10**30}),
    ],
)
def test_a_damaged_line_is_passed_over(tmp_path, line):
    file = epath.Path(tmp_path / "metrics.jsonl")
    file.write_text(f'{{"format_version": 1}}\n{line}\n{json.dumps(SOUND)}\n')
    (record,) = read_records(file)
    assert record["step"] == 3
    assert record["loss"] == 1.5
    assert record["gradient_norm"] != record["gradient_norm"]
