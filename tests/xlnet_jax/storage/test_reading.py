"""Files that are damaged, or made by a stranger, are refused in one line before they take memory or time."""

import os
import re
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
from etils import epath

from xlnet_jax.errors import InputError
from xlnet_jax.storage.reading import (
    Count,
    decode_json,
    demand_regular,
    demand_regular_files,
    inside,
    parse_json,
    read_array,
    read_arrays,
    read_document,
    read_json,
)


@dataclass(frozen=True)
class Part:
    name: str
    blocks: Count
    kind: Literal["a", "b"] = "a"


@dataclass(frozen=True)
class Form:
    parts: tuple[Part, ...]
    share: float = 0.5


@pytest.fixture(params=["FIFO", "device", "link", "folder", "nothing"])
def no_file(request, tmp_path):
    file = tmp_path / "file"
    make = {
        "FIFO": lambda: os.mkfifo(file),
        "device": lambda: file.symlink_to("/dev/zero"),
        "link": lambda: file.symlink_to("file"),
        "folder": file.mkdir,
        "nothing": lambda: None,
    }
    make[request.param]()
    return file


@pytest.mark.parametrize("read", [demand_regular, read_document, read_json])
def test_what_is_no_file_is_refused_at_once(no_file, read):
    with pytest.raises(InputError, match=r"file (is missing|cannot be read: .*|is a folder|is a pipe or a device)"):
        read(no_file)


def test_a_pipe_below_a_folder_is_found(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "sound").write_text("")
    demand_regular_files(tmp_path)
    os.mkfifo(tmp_path / "deep" / "pipe")
    with pytest.raises(InputError, match="deep/pipe is a pipe or a device and no file"):
        demand_regular_files(tmp_path)


def test_a_document_has_a_limit(tmp_path):
    (tmp_path / "large").write_bytes(bytes(11))
    with pytest.raises(InputError, match="large has 11 bytes, and at most 10 can be right"):
        read_document(tmp_path / "large", 10)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "Expecting value"),
        ("[" * 100_000, "recursion"),
        ("[]", "Expected object, got array"),
        ('{"parts": [{"name": "x", "blocks": -1}]}', r"Expected int >= 0 - at \$.parts\[0\].blocks"),
        (f'{{"parts": [{{"name": "x", "blocks": {"9" * 5000}}}]}}', "digits"),
        ('{"parts": [{"name": "\\ud800", "blocks": 1}]}', "surrogate"),
        ('{"parts": [], "share": null}', r"got null - at \$.share"),
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


@pytest.mark.parametrize("name", ["", "/etc/passwd", "a/../../b", "gs://b/x", "a\0b", "a\\..\\b"])
def test_a_name_does_not_lead_out_of_its_folder(tmp_path, name):
    with pytest.raises(InputError, match=r"index names '.*', which is no file of"):
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


FORMS = {"ids": (np.int32, 1), "continues": (np.bool_, 0)}


def test_some_arrays_of_an_archive_are_read(tmp_path):
    np.savez(tmp_path / "part.npz", ids=np.arange(3, dtype=np.int32), continues=np.array(True), other=np.zeros(2))
    found = read_arrays(epath.Path(tmp_path / "part.npz"), FORMS)
    assert {name: array.tolist() for name, array in found.items()} == {"ids": [0, 1, 2], "continues": True}


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"ids": np.zeros(3, np.int32)}, "no item named 'continues.npy' in the archive"),
        ({"ids": np.zeros(3)}, "ids is damaged: it holds float64 of shape"),
        ({"ids": np.array([{}], object)}, "Object arrays cannot be loaded"),
    ],
)
def test_an_archive_of_other_arrays_is_refused(tmp_path, arrays, reason):
    np.savez(tmp_path / "part.npz", **arrays)
    with pytest.raises(InputError, match=re.escape(reason)):
        read_arrays(epath.Path(tmp_path / "part.npz"), FORMS)


def test_a_damaged_archive_is_refused_before_it_expands(tmp_path):
    file = epath.Path(tmp_path / "part.npz")
    np.savez_compressed(file, ids=np.zeros(10**7, np.int32), continues=np.array(True))
    with pytest.raises(InputError, match="its array ids is compressed, or larger than the file"):
        read_arrays(file, FORMS)
    np.savez(file, ids=np.zeros(9, np.int32), continues=np.array(True))
    content = bytearray(file.read_bytes())
    content[content.index(b"\0" * 36)] = 1
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"part\.npz is damaged: Bad CRC-32"):
        read_arrays(file, FORMS)
    file.write_bytes(content[:100])
    with pytest.raises(InputError, match=r"part\.npz is damaged: File is not a zip file"):
        read_arrays(file, FORMS)


def test_json_of_any_form_is_decoded():
    assert decode_json("[1" + "0" * 30 + ", NaN]", "x")[0] == 10**30
    with pytest.raises(InputError, match=r"line 3 is not JSON \(Expecting value.*\); give an object"):
        decode_json("", "line 3", "give an object")
    with pytest.raises(InputError, match="line 3 is not JSON"):
        decode_json("[" * 10**5, "line 3")
