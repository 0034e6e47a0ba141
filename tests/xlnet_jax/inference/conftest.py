"""Tokenizer and networks that several files share: a program is compiled once for all of them."""

import dataclasses

import pytest

import xlnet_jax
from data_pipelines.tokenizer import Tokenizer, TokenizerSettings
from tests.xlnet_jax.random_models import CAUSAL, SMALL, random_model


@pytest.fixture(scope="session")
def tokenizer(reference):
    return Tokenizer((reference / "data" / "spiece.model").read_bytes(), TokenizerSettings())


@pytest.fixture(scope="session")
def model(tokenizer):
    return random_model(dataclasses.replace(SMALL, vocab_size=800), tokenizer=tokenizer)


@pytest.fixture(scope="session")
def causal(tokenizer):
    return random_model(dataclasses.replace(CAUSAL, vocab_size=800), tokenizer=tokenizer)


@pytest.fixture(scope="session")
def checkpoint(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "hf"
    xlnet_jax.save(model, folder, "hf")
    return folder
