"""Jobs of a study: their order, their records, and what is not run again."""

import json

import pytest

from benchmarks import studies
from benchmarks.studies import Job, Study


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "MEASURED", tmp_path / "measured")
    return Study("copies", tmp_path / "workdirs", 2)


def copying(source, target):
    """Return a job that copies a JSON file, and fails where there is none."""
    return Job(target.stem, lambda _: ["json.tool", str(source), str(target)], lambda _: json.loads(target.read_text()))


def test_the_jobs_of_a_chain_run_in_their_order_and_once(study, tmp_path):
    files = [tmp_path / f"{name}.json" for name in "abcd"]
    files[0].write_text('{"loss": 1}')
    chains = [[copying(files[0], files[1]), copying(files[1], files[2])], [copying(files[0], files[3])]]
    study.run_chains(chains)
    assert study.measured() == {name: {"loss": 1} for name in "bcd"}
    files[0].unlink()
    study.run_chains(chains)  # would fail without its source


def test_a_job_that_fails_ends_its_chain_and_keeps_no_record(study, tmp_path):
    missing, there = tmp_path / "missing.json", tmp_path / "there.json"
    there.write_text("{}")
    with pytest.raises(SystemExit, match=r"b ended with exit code \d+: .*output\.txt"):
        study.run_chains([[copying(missing, tmp_path / "b.json"), copying(there, tmp_path / "c.json")]])
    assert not study.measured()
