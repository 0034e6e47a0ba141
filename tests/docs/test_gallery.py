"""The gallery shows the commands that `benchmarks.gallery` runs, and pictures of the scores that it kept."""

import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import gallery, results
from benchmarks.gallery import EXAMPLES, PAGE, Example
from tests.docs.pictures import assert_same_picture
from xlnet_jax.__main__ import COMMANDS

NAMES = [example.name for example in EXAMPLES]


@pytest.fixture
def show(monkeypatch):
    """An example that prints what a tokenizer has."""
    kept = {}
    monkeypatch.setattr(gallery, "keep", lambda name, result, command: kept.update({name: (result, command)}))
    monkeypatch.setattr(gallery, "read", dict)
    monkeypatch.setattr(gallery, "time", SimpleNamespace(monotonic=iter((10.0, 100.0)).__next__))
    monkeypatch.setattr(gallery, "draw", lambda result, file: None)

    def rows(work):
        return [("pieces", re.search(r"[\d,]+ pieces", (work / "shown.txt").read_text())[0])]

    example = Example("show", "number", ("data_pipelines.tokenizer show tiny > shown.txt",), rows)
    monkeypatch.setattr(gallery, "EXAMPLES", (*EXAMPLES, example))
    return example, kept


def test_each_section_has_the_commands_and_the_scores_of_an_example():
    sections = re.split(r"^## .*\n", PAGE.read_text(), flags=re.MULTILINE)[1:]
    shown = [re.search(r"<!--gallery-(\w+)-->", section)[1] for section in sections]
    assert sorted(shown) == sorted(NAMES)
    for section, name in zip(sections, shown, strict=True):
        example = EXAMPLES[NAMES.index(name)]
        (block,) = re.findall(r"^```bash\n.*?^```$", section, re.DOTALL | re.MULTILINE)
        assert block == gallery.block(example), f"docs/gallery.md: the commands of {name} are not those that are run"
        assert f"]({gallery.picture(example).name})" in section


@pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)
def test_the_shown_block_has_the_words_of_the_commands(example):
    shown = gallery.block(example).replace("\\\n", " ").splitlines()[1:-1]
    assert [line.split() for line in shown] == [line.split() for line in gallery.lines_of(example)]


@pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)
def test_the_commands_can_be_parsed(example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train", "dev"):  # `compare` looks for them
        Path("novel").mkdir(exist_ok=True)
        Path(f"novel/{name}.csv").touch()
    for line in gallery.lines_of(example):
        _, _, module, *words = shlex.split(line.partition(" > ")[0])
        COMMANDS[module.rpartition(".")[2]].parse(words)


@pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)
def test_pictures_are_drawn_from_the_scores(example, tmp_path):
    file = gallery.picture(example)
    gallery.draw(results.read()[f"gallery-{example.name}"], tmp_path / file.name)
    assert_same_picture(tmp_path / file.name)
    assert file.stat().st_size < 60_000


@pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)
def test_scores_stand_beside_a_baseline(example):
    names = [name for name, _ in results.read()[f"gallery-{example.name}"]["rows"]]
    of_network = [bool(gallery.OF_NETWORK.match(name)) for name in names]
    assert any(of_network)
    assert not all(of_network)


def test_a_command_runs_once(show, tmp_path, capfd):
    example, kept = show
    gallery.run(example, tmp_path)
    assert kept["gallery-show"][0]["rows"] == [["pieces", "8,000 pieces"]]
    assert kept["gallery-show"][1] == "python -m benchmarks.gallery show"
    (times,) = (table["rows"] for name, (table, _) in kept.items() if name == gallery.TIMES)
    assert [row[:2] for row in times] == [["show", "1.5"]]
    del kept[gallery.TIMES]
    (tmp_path / "shown.txt").write_text("5 pieces")
    capfd.readouterr()
    gallery.run(example, tmp_path)
    assert kept["gallery-show"][0]["rows"] == [["pieces", "5 pieces"]]
    assert "$ python" not in capfd.readouterr().out
    assert gallery.TIMES not in kept


def test_a_missing_file_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["gallery", "search", "--data", str(tmp_path), "--workdir", str(tmp_path / "w")])
    with pytest.raises(SystemExit) as stopped:
        gallery.main()
    assert stopped.value.code == 2
    wanted = f"search needs {tmp_path}/cranfield; docs/gallery.md says where it comes from"
    assert wanted in " ".join(capsys.readouterr().err.split())


def test_bm25_prefers_rare_words_and_short_texts():
    scores = gallery.bm25(["the wing of the aircraft", "the wing", "the heat", "the heat of the plate and of the wing"])
    assert np.argmax(scores("wing")) == 1
    assert np.argmax(scores("the aircraft")) == 0
    assert not scores("nothing").any()
    idf = np.log(1 + (4 - 1 + 0.5) / 1.5)  # of a word in one of four texts, whose lengths are 5, 2, 2 and 9
    assert scores("aircraft")[0] == pytest.approx(idf / (1 + 1.2 * (0.25 + 0.75 * 5 / 4.5)))


def test_trigrams_back_off():
    guess = gallery.trigrams("a b c a b c a b d x b e x b e y b e z b e".split())
    assert guess("a", "b") == "c"
    assert guess("q", "b") == "e"
    assert guess("q", "q") == "b"
