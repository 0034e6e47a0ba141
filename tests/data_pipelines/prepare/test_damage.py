"""Files that an interrupted `prepare` left are refused where they are damaged, and used again where they are sound."""

import json
from unittest import mock

import numpy as np
import pytest

from data_pipelines import sources
from data_pipelines.prepare import prepare
from data_pipelines.prepare.encoding import load
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.storage.versions import with_version

LINES = [f"{name} saw {other}." for name in ("Anna", "Ben", "Clara") for other in ("the sea", "a hill", "nobody")] * 9


@pytest.fixture
def call(tmp_path):
    """Return a function that prepares the same text into the same folder."""
    (tmp_path / "text.txt").write_text("\n\n".join(LINES))
    tokenizer = Tokenizer.train(LINES, 36, "english")
    text = sources.find([str(tmp_path / "text.txt")])
    return lambda: prepare(text, None, tokenizer, tmp_path / "corpus", block_len=32, validation_fraction=0.2)


@pytest.fixture
def left(call, tmp_path):
    """Folder that a call left which was stopped when all shards were there."""
    with (
        mock.patch("data_pipelines.prepare.shards.write_tfds_metadata", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        call()
    return tmp_path / ".corpus.partial"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tokens": np.zeros(3, np.int64)}, "tokens is damaged: it holds int64"),
        ({"tokens": np.array([{}], object)}, "tokens is damaged: it holds object"),
        ({"tokens": np.full(3, 40, np.int32)}, "its arrays do not agree"),
        ({"starts": np.zeros(3, np.uint8)}, "its arrays do not agree"),
        ({"line_starts": np.array([10**4])}, "numbers out of range|do not agree"),
        ({"document_tokens": np.array([2**62])}, "numbers out of range"),
        ({"document_tokens": np.array([-1])}, "numbers out of range"),
        ({"document_hashes": np.zeros(1, np.uint64)}, "its arrays do not agree"),
        ({"format_version": 2}, "format_version 2: this xlnet_jax reads version 1 of parts files"),
    ],
)
def test_a_damaged_part_is_refused_with_what_to_do_and_made_anew(call, left, change, reason):
    (part,) = left.glob("work/encoded-*/*.npz")
    names = ("tokens", "starts", "document_tokens", "document_hashes", "line_starts", "continues")
    arrays = dict(zip(names, load(str(part), *names), strict=True))
    np.savez(part, **(with_version("parts", arrays) | change))
    for report in left.glob("finished/*.json"):
        report.unlink()
    with pytest.raises(InputError, match=rf"npz.* ({reason}).*; delete it, and give the same command again"):
        call()
    part.unlink()
    assert call().num_blocks("train") > 1


@pytest.mark.parametrize(
    "change",
    [
        {"shard": None},
        {"counts": [1, [2]]},
        {"counts": [1]},
        {"tokens": float("nan")},
        {"lines": -1},
        {"documents": "3"},
    ],
    ids=str,
)
def test_a_damaged_report_of_a_shard_is_refused_with_what_to_do_and_made_anew(call, left, change):
    report = next(left.glob("finished/corpus-train*.json"))
    report.write_text(json.dumps(json.loads(report.read_text()) | change))
    with pytest.raises(InputError, match=r"json is damaged: .*; delete it, and give the same command again"):
        call()
    report.unlink()
    assert call().num_blocks("train") > 1
