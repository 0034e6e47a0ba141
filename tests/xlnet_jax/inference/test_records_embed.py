"""Vectors of records and of their symbols, read as in pretraining."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pyarrow.parquet as pq
import pytest

from data_pipelines.records import RecordFormat
from data_pipelines.tokenizer import BOS, EOD, Tokenizer
from tests.xlnet_jax.random_models import SMALL, random_model
from xlnet_jax import InputError
from xlnet_jax.inference.embed import EmbedSettings, embed_files, embed_texts, embed_tokens
from xlnet_jax.models.heads import build_encoder
from xlnet_jax.models.inputs import text_inputs

LINES = ["TRBV1\tCASSF\t3 7", "TRBV2\tCASSPGFFFFF\t7 3 11", "TRBV1\tCAWF\t3"]
TOKENIZER = Tokenizer.of_symbols(LINES, RecordFormat(("v:word", "cdr3:protein", "items:item")))


@pytest.fixture(scope="module")
def records():
    return random_model(dataclasses.replace(SMALL, vocab_size=TOKENIZER.vocab_size), tokenizer=TOKENIZER)


def hidden_LD(model, line):
    """Return the hidden states of the symbols of a record between <s> and <eod>, with its fields as segments."""
    ids = np.array([[BOS, *TOKENIZER.encode_lines([line])[0], EOD]])
    inputs = text_inputs(jnp.asarray(ids), jnp.ones_like(ids), jnp.asarray(TOKENIZER.field_of_V[ids]))
    config = dataclasses.replace(model.model, mem_len=0)
    return np.asarray(build_encoder(config).apply({"params": model.params["backbone"]}, inputs).content_BLD)[0, 1:-1]


def test_each_symbol_has_the_vector_that_it_has_in_its_whole_record(records):
    for line, vectors_LD in zip(LINES, embed_tokens(records, LINES), strict=True):
        np.testing.assert_allclose(vectors_LD, hidden_LD(records, line), atol=2e-5)


@pytest.mark.parametrize(
    ("pooling", "of"), [("mean", lambda x: x.mean(0)), ("first", lambda x: x[0]), ("last", lambda x: x[-1])]
)
def test_a_record_has_the_vector_of_its_symbols_without_those_of_its_frame(records, pooling, of):
    expected = [of(hidden_LD(records, line)) for line in LINES]
    np.testing.assert_allclose(embed_texts(records, LINES, pooling), expected, atol=2e-5)


def test_a_record_that_is_read_in_segments_keeps_all_its_symbols(records):
    found = embed_tokens(records, LINES, max_len=6, mem_len=5)
    assert [len(of) for of in found] == [8, 15, 6]
    np.testing.assert_allclose(
        [of.mean(0) for of in found], embed_texts(records, LINES, max_len=6, mem_len=5), atol=2e-5
    )


def test_tokens_of_prose_have_vectors_too(model):
    texts = ["The list of names is new", "", "new"]
    found = embed_tokens(model, texts, normalize=True)
    pieces = [len(ids) for ids in model.tokenizer.encode_lines(texts)]
    assert [len(of) for of in found] == pieces
    np.testing.assert_allclose(np.linalg.norm(found[0], axis=1), 1, atol=1e-5)
    alone = embed_tokens(model, texts, specials=False)
    np.testing.assert_allclose(alone[0].mean(0), embed_texts(model, texts, "mean", specials=False)[0], atol=2e-5)


def test_the_command_reads_a_table_by_the_columns_of_the_checkpoint(records, tmp_path, monkeypatch):
    table = tmp_path / "table.tsv"
    rows = [line.split("\t") for line in LINES]
    table.write_text("\n".join(["cdr3\tname\tv\titems", *(f"{c}\tx{i}\t{v}\t{t}" for i, (v, c, t) in enumerate(rows))]))
    monkeypatch.setattr("xlnet_jax.checkpoints.formats.load_with_tokenizer", lambda *_: records)
    settings = EmbedSettings("run", text=(str(table),), out=str(tmp_path / "vectors.parquet"), id_field="name")
    assert embed_files(dataclasses.replace(settings, per="symbol")) == (3, 24, "each symbol")
    found = pq.read_table(settings.out).to_pydict()
    assert found["id"] == ["x0", "x1", "x2"]
    for vectors_LD, expected in zip(found["embedding"], embed_tokens(records, LINES), strict=True):
        np.testing.assert_allclose(vectors_LD, expected, atol=1e-6)
    assert embed_files(dataclasses.replace(settings, per="record", overwrite=True)) == (3, 24, "mean")
    np.testing.assert_allclose(
        pq.read_table(settings.out).to_pydict()["embedding"], embed_texts(records, LINES), atol=1e-6
    )


def test_what_cannot_be_written_or_pooled_ends_in_one_line(records, tmp_path):
    with pytest.raises(InputError, match=r"cannot hold a vector per symbol: give a name that ends in .parquet"):
        embed_files(EmbedSettings("run", text=("x.tsv",), out=str(tmp_path / "x.npy"), per="symbol"))
    with pytest.raises(InputError, match="is for prose: a record has no <cls>"):
        embed_texts(records, LINES, "cls")
