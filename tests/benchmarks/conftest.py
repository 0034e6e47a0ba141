"""Reports of made-up records change no result of the repository."""

import pytest

from benchmarks import results


@pytest.fixture(autouse=True)
def _results_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results.json")
