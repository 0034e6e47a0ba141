"""Checkpoints of records in Hugging Face's format: their symbols come back, and its tokenizer gives our ids."""

import dataclasses

import numpy as np
import pytest

import xlnet_jax
from data_pipelines.records import RecordFormat
from data_pipelines.tokenizer import BOS, EOD, Tokenizer
from tests.xlnet_jax.random_models import SMALL, random_model
from xlnet_jax.errors import InputError

FORMATS = {
    "sequence:protein": ["MKV", "LLKX", "A"],
    "items:item": ["3 17 5", "17 new▁hat", "5"],
    "1:smiles": ["CCl", "C[nH]c1ccccc1Br"],
}


def model_of(lines, *fields):
    tokenizer = Tokenizer.of_symbols(lines, RecordFormat(fields))
    return random_model(dataclasses.replace(SMALL, vocab_size=tokenizer.vocab_size), tokenizer=tokenizer)


@pytest.mark.parametrize("field", FORMATS)
def test_the_library_tokenizers_reads_a_record_between_its_ends_with_our_ids(field, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    model = model_of(FORMATS[field], field)
    xlnet_jax.save(model, tmp_path / "hf", "hf")
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "hf" / "tokenizer.json"))
    for line, ids in zip(FORMATS[field], model.tokenizer.encode_lines(FORMATS[field]), strict=True):
        assert theirs.encode(line).ids == [BOS, *ids, EOD]
        assert theirs.decode([BOS, *ids, EOD]) == line
    loaded = xlnet_jax.load(tmp_path / "hf")
    assert loaded.tokenizer.records.fields == (field,)
    np.testing.assert_allclose(
        xlnet_jax.embed_texts(loaded, FORMATS[field]), xlnet_jax.embed_texts(model, FORMATS[field]), atol=1e-6
    )


def test_records_of_several_fields_keep_their_symbols_and_say_what_transformers_lacks(tmp_path):
    model = model_of(["V1\tCAF", "V2\tCAS"], "v:word", "cdr3:protein")
    xlnet_jax.save(model, tmp_path / "native", "native")
    lines = xlnet_jax.convert(xlnet_jax.ConvertSettings(str(tmp_path / "native"), str(tmp_path / "hf"), to="hf"))
    assert any("transformers has no tokenizer for such records: symbols.json lists" in line for line in lines)
    assert not (tmp_path / "hf" / "tokenizer.json").exists()
    assert xlnet_jax.load(tmp_path / "hf").tokenizer.sha256 == model.tokenizer.sha256


def test_the_2019_code_cannot_read_records(tmp_path):
    with pytest.raises(InputError, match=r"needs a spiece.model, which this tokenizer is not: use `to` native"):
        xlnet_jax.save(model_of(["MKV"], "sequence:protein"), tmp_path / "tf1", "tf1")
