"""The settings of a tokenizer go to Hugging Face and come back."""

import dataclasses
import json

import pytest

import xlnet_jax
from data_pipelines.tokenizer import Settings, Tokenizer
from tests.xlnet_jax.random_models import SMALL, random_model

SETTINGS = [
    Settings(lower=True),
    Settings(keep_accents=True),
    Settings(remove_space=False),
    Settings("nfkc", split_digit_commas=False),
]


@pytest.fixture
def saved(reference, tmp_path):
    """Writes a Hugging Face folder with a tokenizer of these settings."""

    def saved(settings):
        tokenizer = Tokenizer((reference / "data" / "spiece.model").read_bytes(), settings)
        model = random_model(dataclasses.replace(SMALL, vocab_size=tokenizer.vocab_size), tokenizer=tokenizer)
        xlnet_jax.save(model, tmp_path / "hf", "hf")
        return tmp_path / "hf", json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())

    return saved


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_every_setting_goes_there_and_comes_back(saved, settings):
    folder, theirs = saved(settings)
    again = xlnet_jax.load(folder).tokenizer
    assert again.foreign is None  # read by its SentencePiece model, not by its tokenizer.json
    assert again.settings == settings
    assert theirs["keep_accents"] == (settings.keep_accents or settings.normalization == "nfkc")
    if theirs.pop("xlnet_jax")["normalization"] == "nfkc":  # which theirs has no word for
        return
    (folder / "tokenizer_config.json").write_text(json.dumps(theirs))
    assert xlnet_jax.load(folder).tokenizer.settings == settings


def test_our_own_settings_file_goes_before_what_theirs_says(saved):
    folder, _ = saved(Settings(lower=True))
    ours = Settings("none", split_digit_commas=False)
    (folder / "tokenizer_settings.json").write_text(json.dumps(ours.to_json()))
    assert xlnet_jax.load(folder).tokenizer.settings == ours
