"""Names stand for files: a file, a glob, or a folder, whose links are followed; and texts have fingerprints."""

import re

import pytest

from data_pipelines import sources
from data_pipelines.prepare.encoding import fingerprint
from xlnet_jax.errors import InputError

PARTS = ["part/part-0", "part/part-1"]


def files_of(name):
    (source,) = sources.find([str(name)])
    return [unit.path for unit in source.units]


@pytest.fixture
def text(tmp_path):
    def write(content, name="a.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path

    return write


def test_an_empty_file_among_others_is_passed_over(text):
    found = sources.find([str(text("")), str(text("one\n", "b.txt"))])
    assert list(sources.read_lines(found)) == ["one", ""]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("", ["a.txt", "deep/er/b.txt", "n1.txt", "n2.txt", "what[1].txt"]),
        ("part", PARTS),
        ("deep", ["deep/er/b.txt"]),
        ("n*.txt", ["n1.txt", "n2.txt"]),
        ("what[1].txt", ["what[1].txt"]),
    ],
)
def test_a_folder_stands_for_its_texts_and_a_glob_for_the_files_that_match(text, tmp_path, name, wanted, capsys):
    for file in ("a.txt", "deep/er/b.txt", "notes.md", ".hidden/c.txt", "n1.txt", "n2.txt", "what[1].txt", *PARTS):
        text("a", file)
    (tmp_path / "n3.txt").mkdir()
    found = files_of(tmp_path / name)
    if name == "":
        told = rf"note: text {tmp_path}: skipped 3 of 8 files, .*\n"
        assert re.fullmatch(told, capsys.readouterr().err)
    assert found == [str(tmp_path / file) for file in wanted]


def test_links_are_followed_and_each_file_is_read_once(text, tmp_path):
    outside = text("o", "outside/deep/o.txt")
    folder = tmp_path / "folder"
    inside = [text("a", "folder/a.txt"), text("b", "folder/sub/b.txt")]
    links = {
        "to-file.txt": inside[0], "to-sub": folder / "sub", "to-itself": folder, "sub/up": "..", "z": outside.parent,
        "to-outside": outside.parent.parent, ".hidden": tmp_path / "secret", "sub/o-again.txt": outside,
    }  # fmt: skip
    text("no", "secret/s.txt")
    for name, target in links.items():
        (folder / name).symlink_to(target)
    (outside.parent / "back").symlink_to(folder)
    assert files_of(folder) == [
        str(path) for path in (folder / "a.txt", folder / "sub" / "b.txt", folder / "sub" / "o-again.txt")
    ]
    (tmp_path / "outside" / "deep" / "link.txt").symlink_to(outside)
    assert files_of(tmp_path / "outside" / "deep" / "*.txt") == [str(outside)]


@pytest.mark.parametrize("name", ["nowhere.txt", "*.txt", ""])
def test_a_source_that_is_not_there_is_named(tmp_path, name):
    with pytest.raises(InputError, match=rf"{re.escape(name)}: no such file or folder, or it is empty"):
        files_of(tmp_path / name)


def test_a_fingerprint_depends_on_contents_and_their_order_but_not_on_names(text):
    def print_of(*paths):
        units = tuple(unit for path in paths for unit in sources.find([str(path)])[0].units)
        return fingerprint(sources.Source("name", "given", units))

    a, b, copy = text("a"), text("b", "b.txt"), text("a", "copy.txt")
    joined = text("ab", "ab.txt")
    assert print_of(a, b) == print_of(copy, b)
    assert print_of(a, b) != print_of(b, a)
    assert print_of(a, b) != print_of(joined)
