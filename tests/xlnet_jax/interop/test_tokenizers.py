"""The settings of a tokenizer go to Hugging Face and come back."""

import dataclasses
import json

import pytest

import xlnet_jax
from data_pipelines.tokenizer import Tokenizer, TokenizerSettings
from tests.xlnet_jax.random_models import SMALL, random_model

SETTINGS = [
    TokenizerSettings(lower=True),
    TokenizerSettings(keep_accents=True),
    TokenizerSettings(remove_space=False),
    TokenizerSettings("nfkc", split_digit_commas=False),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_every_setting_goes_there_and_comes_back(reference, tmp_path, settings):
    tokenizer = Tokenizer((reference / "data" / "spiece.model").read_bytes(), settings)
    model = random_model(dataclasses.replace(SMALL, vocab_size=tokenizer.vocab_size), tokenizer=tokenizer)
    folder = tmp_path / "hf"
    xlnet_jax.save(model, folder, "hf")
    again = xlnet_jax.load(folder).tokenizer
    assert again.foreign is None  # read by its SentencePiece model, not by its tokenizer.json
    assert again.settings == settings
    theirs = json.loads((folder / "tokenizer_config.json").read_text())
    assert theirs["keep_accents"] == (settings.keep_accents or settings.normalization == "nfkc")
    if theirs.pop("xlnet_jax")["normalization"] == "english":  # theirs has no word for another
        (folder / "tokenizer_config.json").write_text(json.dumps(theirs))
        assert xlnet_jax.load(folder).tokenizer.settings == settings
    ours = TokenizerSettings("none", split_digit_commas=False)  # a file of ours goes first
    (folder / "tokenizer_settings.json").write_text(json.dumps(ours.to_json()))
    assert xlnet_jax.load(folder).tokenizer.settings == ours
