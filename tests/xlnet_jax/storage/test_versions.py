"""A file of another version, or without one, is refused by the one check that every reader makes."""

import json
import re

import pytest

from xlnet_jax.errors import InputError
from xlnet_jax.storage.reading import read_versioned, write_versioned


def test_what_is_written_is_read_without_its_version(tmp_path):
    write_versioned(tmp_path / "x.json", "results", {"metrics": {"f1": 0.5}})
    assert json.loads((tmp_path / "x.json").read_text()) == {"format_version": 1, "metrics": {"f1": 0.5}}
    assert read_versioned(tmp_path / "x.json", "results") == {"metrics": {"f1": 0.5}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a": 1}, "x.json has no format_version: this xlnet_jax reads version 1 of run files; make it again"),
        ({"format_version": 2}, "x.json has format_version 2: this xlnet_jax reads version 1 of run files; make it"),
        ({"format_version": True}, "x.json has format_version true: this xlnet_jax reads version 1 of run files"),
        ({"format_version": [1]}, "x.json has format_version [1]: this xlnet_jax reads version 1 of run files"),
        ([1], "x.json is damaged: Expected object, got array; make it again"),
    ],
)
def test_another_version_and_none_are_refused_with_the_one_that_is_read(tmp_path, content, message):
    (tmp_path / "x.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=re.escape(message)):
        read_versioned(tmp_path / "x.json", "run", dict, "make it again")
