"""The model that comes with the package: its files, its held-out loss, and its name wherever a checkpoint is named."""

import re
from dataclasses import replace

import jax
import pytest

import xlnet_jax
from data_pipelines import sources
from xlnet_jax.errors import InputError
from xlnet_jax.objectives.presets import demo
from xlnet_jax.settings.resolution import Resolution
from xlnet_jax.storage import hub
from xlnet_jax.tasks.defaults import DEFAULTS
from xlnet_jax.training.initial import begin_from

FOLDER = hub.bundled_folder("tiny")
CARD = (FOLDER / "README.md").read_text()
_, NOVEL = sources.embedded()


@pytest.fixture(scope="module")
def tiny():
    return xlnet_jax.load("tiny")


def test_it_is_small_enough_to_come_along(tiny):
    size = sum(weight.size for weight in jax.tree.leaves(tiny.params))
    assert size < 7_000_000
    assert f"{size:,} parameters" in CARD
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 16e6


def test_its_loss_on_a_novel_that_it_has_not_seen_is_that_of_its_card():
    """The card has the loss of the whole novel, as its command prints it; here are some windows of it."""
    loss, unigram, _ = map(float, re.search(r"\| Northanger Abbey \| (\S+) \| (\S+) \| (\S+) \|", CARD).groups())
    measured = xlnet_jax.evaluate("tiny", text=NOVEL, max_windows=64).measured
    assert measured.loss == pytest.approx(3.6018, abs=2e-3)
    assert (loss, unigram) == pytest.approx((measured.loss, measured.unigram), abs=0.02)
    assert loss < unigram - 1.8


def test_it_fills_gaps_with_words_that_fit(tiny):
    (gap,) = xlnet_jax.fill_in(tiny, "The carriage stopped at the door of the house.", ["door"], likeliest=3)
    assert "door" in [piece.strip("▁") for piece, _ in gap.likeliest]


def test_a_path_of_that_name_wins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    with pytest.raises(InputError, match="no checkpoint in tiny"):
        xlnet_jax.load("tiny")
    with pytest.raises(InputError, match=r"nor tiny, which comes with this package.*; did you mean tiny"):
        xlnet_jax.load("tinny")


@pytest.mark.parametrize("start", [demo(), DEFAULTS["cola"]()], ids=["train", "finetune"])
def test_a_run_records_the_name(start, tmp_path):
    settings, again = (Resolution(replace(start, init="tiny", workdir=str(tmp_path))) for _ in range(2))
    loaded = begin_from(settings, None)
    assert settings.config.init == "tiny"
    assert settings.config.model.d_model == loaded.model.d_model
    assert begin_from(again, settings.final()) is None
    assert again.config.init == "tiny"
