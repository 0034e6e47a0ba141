"""A file or folder that a failing body leaves as it was, on a disk and in a bucket."""

import contextlib
import errno
import os
import re

import pytest
from etils import epath

from xlnet_jax.errors import InputError
from xlnet_jax.storage.files import complete_file, disk_errors_as_os_error, write_durably
from xlnet_jax.storage.lock import lock
from xlnet_jax.storage.outputs import complete_folder, drop_leftovers, resumable_folder


@pytest.fixture(params=["disk", "gs"])
def home(request, tmp_path):
    if request.param == "disk":
        return epath.Path(tmp_path)
    request.getfixturevalue("bucket")
    request.getfixturevalue("monkeypatch").setattr("xlnet_jax.storage.lock.SECONDS_BETWEEN_BEATS", 0.5)
    return epath.Path("gs://bucket")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@contextlib.contextmanager
def failing(making):
    """Yield what `making` yields, and end its body in an error."""
    with contextlib.suppress(RuntimeError), making as made:
        yield made
        raise RuntimeError


def test_a_file_whose_writer_fails_keeps_its_old_content(home):
    write_durably(home / "a.json", b"old")
    with failing(complete_file(home / "a.json")) as file:
        file.write_bytes(b"ne")
    assert (home / "a.json").read_bytes() == b"old"
    write_durably(home / "a.json", b"new")
    assert (home / "a.json").read_bytes() == b"new"
    assert names(home) == ["a.json"]


def test_what_a_killed_process_left_beside_a_complete_folder_is_dropped(tmp_path):
    out = tmp_path / "f"
    out.mkdir()
    left = tmp_path / ".f.partial"
    (left / "work").mkdir(parents=True)
    (left / "work" / "encoded").write_text("")
    making = lock(left, out)
    drop_leftovers(out)  # another process still cleans up
    assert left.exists()
    making.release()
    drop_leftovers(out)
    assert names(tmp_path) == ["f"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("Error writing file: [OS error 28: ENOSPC No space left on device]", errno.ENOSPC),
        ("Error opening file: [OS error 5: EIO Input/output error] [source locations='x.cc:1']", errno.EIO),
        ("RESOURCE_EXHAUSTED: the quota of the bucket", errno.ENOSPC),
    ],
)
def test_what_libraries_say_of_a_disk_is_an_os_error(words, code):
    with pytest.raises(RuntimeError, match="out of memory"), disk_errors_as_os_error("runs/x"):
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")
    with pytest.raises(OSError, match=re.escape(os.strerror(code))) as raised, disk_errors_as_os_error("runs/x"):
        raise RuntimeError(words)
    assert (raised.value.errno, raised.value.filename) == (code, "runs/x")


def test_a_complete_folder_starts_empty_and_is_all_or_nothing(home):
    with failing(complete_folder(home / "f")) as folder:
        (folder / "half").write_text("")
    assert names(home) == []
    with failing(resumable_folder(home / "f")) as (folder, _):
        (folder / "left").write_text("")
    with complete_folder(home / "f") as folder:
        (folder / "whole").write_text("")
    assert names(home / "f") == ["whole"]
    assert names(home) == ["f"]


def test_a_resumable_folder_goes_on_with_what_it_had(home):
    # A name of its own: in a process that used buckets before, TensorFlow remembers for seconds which names exist.
    with failing(resumable_folder(home / "kept")) as (folder, work):
        (folder / "a").write_text("")
        (work / "notes").write_text("")
    with resumable_folder(home / "kept") as (folder, work):
        assert (names(folder), names(work)) == (["a"], ["notes"])
        (folder / "manifest.json").write_text("")
    assert names(home / "kept") == ["a", "manifest.json"]


def test_a_second_maker_of_one_folder_is_refused_and_harms_nothing(tmp_path):
    with complete_folder(tmp_path / "f") as folder:
        (folder / "a").write_text("")
        with (
            pytest.raises(InputError, match=rf"f is in use by process {os.getpid()} on .*: wait, or"),
            resumable_folder(tmp_path / "f"),
        ):
            raise AssertionError
    assert names(tmp_path / "f") == ["a"]
