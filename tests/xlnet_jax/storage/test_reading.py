"""Files that are damaged, of another version, or made by a stranger, are refused in one line before they take memory or
time."""

import json
import os
import re
from dataclasses import dataclass

import numpy as np
import pytest
from etils import epath

from xlnet_jax.errors import InputError
from xlnet_jax.storage.reading import (
    Count,
    inside,
    parse_json,
    read_array,
    read_arrays,
    read_document,
    read_versioned,
    require_regular_files,
    write_versioned,
)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (os.mkfifo, "is a pipe or a device, not a file"),
        (lambda file: file.symlink_to("/dev/zero"), "is a pipe or a device, not a file"),
        (lambda file: file.symlink_to("file"), "cannot be read: "),
        (lambda file: file.mkdir(), "is a folder, not a file"),
        (lambda file: None, "is missing"),
    ],
    ids=["FIFO", "device", "link", "folder", "nothing"],
)
def test_what_is_no_file_is_refused_at_once(tmp_path, make, kind):
    make(tmp_path / "file")
    with pytest.raises(InputError, match=f"file {kind}"):
        read_document(tmp_path / "file")


def test_a_pipe_below_a_folder_and_a_document_without_end_are_refused(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "large").write_bytes(bytes(11))
    assert require_regular_files(tmp_path) == 11
    with pytest.raises(InputError, match="large is too large: it has 11 bytes, at most 10 are allowed"):
        read_document(tmp_path / "large", 10)
    os.mkfifo(tmp_path / "deep" / "pipe")
    with pytest.raises(InputError, match="deep/pipe is a pipe or a device, not a file"):
        require_regular_files(tmp_path)


@dataclass(frozen=True)
class Part:
    name: str
    blocks: Count


@dataclass(frozen=True)
class Form:
    parts: tuple[Part, ...]
    share: float = 0.5


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "Expecting value"),
        ("[" * 100_000, "recursion"),
        ("[]", "Expected object, got array"),
        ('{"parts": [{"name": "x", "blocks": -1}]}', r"Expected int >= 0 - at \$.parts\[0\].blocks"),
        (f'{{"parts": [{{"name": "x", "blocks": {"9" * 5000}}}]}}', "digits"),
        ('{"parts": [{"name": "\\ud800", "blocks": 1}]}', "surrogate"),
        (b'{"parts": "\xc3"}', "decode"),
    ],
)
def test_a_document_of_another_form_is_refused_in_one_line(content, reason):
    sound = '{"parts": [{"name": "x", "blocks": 3, "more": []}], "share": 1}'
    assert parse_json(sound, "form.json", Form) == Form((Part("x", 3),), 1.0)
    with pytest.raises(InputError, match=rf"(?s)^form\.json is damaged: .*{reason}.*; mend it$") as refused:
        parse_json(content, "form.json", Form, "mend it")
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300
    assert "`" not in str(refused.value)  # a command would print it as a flag


@pytest.mark.parametrize(
    ("content", "found"), [({"a": 1}, "no format_version"), ({"format_version": 2}, "format_version 2")]
)
def test_another_version_and_none_are_refused_with_the_one_that_is_read(tmp_path, content, found):
    file = tmp_path / "x.json"
    write_versioned(file, "run", {"a": 1})
    assert json.loads(file.read_text()) == {"format_version": 1, "a": 1}
    assert read_versioned(file, "run") == {"a": 1}
    file.write_text(json.dumps(content))
    with pytest.raises(InputError, match=f"x.json has {found}: this xlnet_jax reads version 1 of run files; make it"):
        read_versioned(file, "run", dict, "make it again")


@pytest.mark.parametrize("name", ["", "/etc/passwd", "a/../../b", "gs://b/x", "a\0b", "a\\..\\b"])
def test_a_name_does_not_lead_out_of_its_folder(tmp_path, name):
    with pytest.raises(InputError, match=r"index names '.*', which is not in"):
        inside(epath.Path(tmp_path), name, "index")


@pytest.mark.parametrize("name", ["*", "a/**/b", "model-0000?.safetensors", "[a-z]", "folder/"])
def test_a_name_is_not_a_pattern(tmp_path, name):
    with pytest.raises(InputError, match=r"index names '.*', which is a pattern and not a file"):
        inside(epath.Path(tmp_path), name, "index")


@pytest.mark.parametrize("shape", ["(1000000000000,)", "(4,)", "(5, 1)", "x()"])
def test_an_array_whose_header_does_not_fit_its_file_is_refused(tmp_path, shape):
    np.save(tmp_path / "x.npy", np.arange(5))
    assert read_array(epath.Path(tmp_path) / "x.npy", np.int64, rank=1).tolist() == [0, 1, 2, 3, 4]
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + np.arange(5).tobytes()
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(InputError, match=r"x\.npy is damaged"):
        read_array(epath.Path(tmp_path) / "x.npy", np.int64, rank=1)


IDS, CONTINUES = np.arange(10**6, dtype=np.int32), np.array(True)


@pytest.mark.parametrize(
    ("save", "arrays", "reason"),
    [
        (np.savez, {"ids": IDS}, "no item named 'continues.npy' in the archive"),
        (np.savez, {"ids": IDS.astype(float)}, "ids is damaged: it contains float64 of shape"),
        (np.savez, {"ids": np.array([{}], object)}, "Object arrays cannot be loaded"),
        (np.savez_compressed, {"ids": IDS, "continues": CONTINUES}, "its array ids is compressed or larger than the"),
    ],
)
def test_some_arrays_of_an_archive_are_read_and_others_are_refused(tmp_path, save, arrays, reason):
    file, forms = epath.Path(tmp_path / "part.npz"), {"ids": (np.int32, 1), "continues": (np.bool_, 0)}
    np.savez(file, ids=IDS, continues=CONTINUES, other=np.zeros(2))
    assert [array.size for array in read_arrays(file, forms).values()] == [10**6, 1]
    save(file, **arrays)
    with pytest.raises(InputError, match=re.escape(reason)):
        read_arrays(file, forms)
