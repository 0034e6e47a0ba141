import re

import pytest

from data_pipelines import sources
from data_pipelines.prepare.encoding import fingerprint
from xlnet_jax.errors import InputError


def lines_of(*paths, errors="strict"):
    return list(sources.read_lines(sources.find([str(path) for path in paths]), errors))


def files_of(name):
    (source,) = sources.find([str(name)])
    return [unit.path for unit in source.units]


@pytest.fixture
def text(tmp_path):
    def write(content, name="a.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def test_an_empty_file_among_others_is_passed_over(text):
    paths = [text(""), text("one\n", "b.txt")]
    assert lines_of(*paths) == ["one", ""]


def test_a_folder_stands_for_its_text_files_at_any_depth(text, tmp_path):
    wanted = [text("a", "a.txt"), text("b", "deep/er/b.txt")]
    text("no", "notes.md")
    text("no", ".hidden/c.txt")
    assert files_of(tmp_path) == [str(p) for p in sorted(wanted)]


def test_files_of_other_kinds_in_a_folder_are_told_of_once(tmp_path, capsys):
    for name in ("a.txt", "b.html", "c.pdf"):
        (tmp_path / name).write_text("A line.\n")
    sources.find([str(tmp_path)])
    sources.find([str(tmp_path)])
    assert re.fullmatch(rf"note: text {tmp_path}: 2 of its 3 files are left out, .*\n", capsys.readouterr().err)


def test_links_of_a_folder_are_followed_once_and_the_others_told_of(text, tmp_path, capsys):
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
    assert f"note: text {folder}: 2 of its 5 paths are links to others of them" in capsys.readouterr().err


def test_links_of_a_glob_are_followed_once_and_the_others_told_of(text, tmp_path, capsys):
    wanted = text("a", "a.txt")
    (tmp_path / "link.txt").symlink_to("a.txt")
    assert files_of(tmp_path / "*.txt") == [str(wanted)]
    assert f"{tmp_path}/*.txt: 1 of its 2 paths are links" in capsys.readouterr().err


def test_a_link_to_another_folder_of_texts_gives_its_files(text, tmp_path):
    text("b", "elsewhere/b.txt")
    wanted = [text("a", "folder/a.txt"), tmp_path / "folder" / "link" / "b.txt"]
    (tmp_path / "folder" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "itself").symlink_to("folder")
    assert files_of(tmp_path / "folder") == [str(path) for path in wanted]
    assert files_of(tmp_path / "itself") == [str(path).replace("/folder/", "/itself/") for path in wanted]


def test_a_folder_without_text_files_stands_for_all_its_files(text, tmp_path):
    wanted = [text("a", "part-0"), text("b", "part-1")]
    assert files_of(tmp_path) == [str(p) for p in wanted]


def test_a_glob_stands_for_the_files_that_match_in_sorted_order(text, tmp_path):
    wanted = [text("1", "n1.txt"), text("2", "n2.txt")]
    text("no", "m.txt")
    (tmp_path / "n3.txt").mkdir()
    assert files_of(tmp_path / "n*.txt") == [str(p) for p in wanted]


def test_a_file_whose_name_looks_like_a_glob_is_that_file(text):
    path = text("a", "what[1].txt")
    assert files_of(path) == [str(p) for p in [path]]


@pytest.mark.parametrize("name", ["nowhere.txt", "*.txt", ""])
def test_a_source_that_is_not_there_is_named(tmp_path, name):
    with pytest.raises(InputError, match=rf"{re.escape(name)}: no such file or folder, or nothing in it"):
        files_of(tmp_path / name)


def test_a_fingerprint_depends_on_contents_and_their_order_but_not_on_names(text):
    def print_of(*paths):
        units = tuple(unit for path in paths for unit in sources.find([str(path)])[0].units)
        return fingerprint(sources.Source("name", "given", units), "strict")

    a, b, copy = text("a"), text("b", "b.txt"), text("a", "copy.txt")
    joined = text("ab", "ab.txt")
    assert print_of(a, b) == print_of(copy, b)
    assert print_of(a, b) != print_of(b, a)
    assert print_of(a, b) != print_of(joined)
