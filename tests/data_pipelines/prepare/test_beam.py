"""Preparation on Apache Beam makes the same corpus as on this machine."""

import sys
from functools import partial

import pytest

from data_pipelines import sources
from data_pipelines.prepare import encoding
from data_pipelines.prepare.runners import run_here, run_with_beam
from tests.data_pipelines import corpus_of
from xlnet_jax.errors import InputError

NOVEL = sources.embedded()[1]


@pytest.fixture
def run(tmp_path, trained):
    def run(names, out, runner):
        return corpus_of(names, trained, tmp_path / out, fraction=0.1, weights=(0.7, 0.3), runner=runner)

    return run


def test_beam_makes_the_same_bytes_as_the_cores_of_this_machine(run, tmp_path, monkeypatch):
    pytest.importorskip("apache_beam", reason="the extra [beam] is not installed")
    monkeypatch.setattr(encoding, "PART_CHARS", 30_000)
    monkeypatch.setattr(encoding, "GROUP_BYTES", 2_000)
    with open(NOVEL) as novel:
        chapters = novel.read().split("\n\n")
    for number, chapter in enumerate(chapters[:12]):
        (tmp_path / f"chapter-{number:02}.txt").write_text(chapter)
    (tmp_path / "rest.txt").write_text("\n\n".join(chapters[12:]))
    names = [tmp_path / "chapter-*.txt", tmp_path / "rest.txt"]
    beam, here = run(names, "beam", partial(run_with_beam, runner="Direct")), run(names, "here", run_here)
    assert beam.manifest == here.manifest
    assert beam.manifest.splits["train"].source_blocks[0] > 0
    for file in (f for f in here.folder.iterdir() if not f.is_dir()):
        assert file.read_bytes() == (beam.folder / file.name).read_bytes(), file.name
    assert not (tmp_path / ".beam.partial").exists()


def test_a_runner_that_beam_does_not_know_is_named(run):
    pytest.importorskip("apache_beam", reason="the extra [beam] is not installed")
    with pytest.raises(InputError, match=r"`runner` Foo: Unexpected pipeline runner: FooRunner\. Valid values are"):
        run(sources.embedded(), "beam", partial(run_with_beam, runner="Foo"))


def test_without_beam_the_extra_is_named(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(InputError, match=r"`runner` needs Apache Beam: pip install -e '\.\[beam\]' in the clone"):
        run(sources.embedded(), "beam", partial(run_with_beam, runner="Dataflow"))
