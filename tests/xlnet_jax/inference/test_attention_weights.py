"""Attention weights are those that the network reads by, of the rows and keys that the text has."""

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest

from data_pipelines.tokenizer import Settings, Tokenizer
from tests.xlnet_jax.random_models import BERT, CAUSAL, SMALL, random_model
from xlnet_jax import InputError
from xlnet_jax.inference.attention_weights import attention_weights
from xlnet_jax.models.encoder import build_encoder
from xlnet_jax.models.inputs import text_inputs

TEXTS = ["The list of names is new", "Names"]


@pytest.fixture(scope="module")
def tokenizer(reference):
    return Tokenizer((reference / "data" / "spiece.model").read_bytes(), Settings())


@pytest.fixture(scope="module")
def model(tokenizer):
    return random_model(dataclasses.replace(SMALL, vocab_size=800), tokenizer=tokenizer)


def test_each_row_sums_to_one_over_the_keys_of_its_text(model):
    found = attention_weights(model, TEXTS)
    assert found.query_ZBNPK is None
    assert found.pieces[0][-2:] == ["<sep>", "<cls>"]
    lengths = [len(pieces) for pieces in found.pieces]
    assert lengths[0] > lengths[1]
    assert found.content_ZBNLK.shape == (3, 2, 4, lengths[0], lengths[0])
    for b, length in enumerate(lengths):
        np.testing.assert_allclose(found.content_ZBNLK[:, b, :, :length, :length].sum(-1), 1, rtol=1e-5)
        assert (found.content_ZBNLK[:, b, :, :length, :length] > 0).all()
        assert not found.content_ZBNLK[:, b, :, length:].any()
        assert not found.content_ZBNLK[:, b, :, :, length:].any()


def test_the_weights_are_those_that_the_hidden_states_come_from(model):
    """Recompute what the first layer adds to the embeddings from the weights and the values of its keys."""
    ids, mask, segments = model.encode(TEXTS[:1])
    backbone = model.params["backbone"]
    apply = jax.jit(partial(build_encoder(model.model).apply, mutable=["intermediates", "keys_values"]))
    _, sown = apply({"params": backbone}, text_inputs(ids, mask, segments))
    value_BNKH = sown["keys_values"]["layers"]["attention"]["value_BNKH"][0][0]
    after_BLD = np.asarray(sown["intermediates"]["layers"]["rows_BTD"][0][0])
    layer = jax.tree.map(lambda array_Z: np.asarray(array_Z[0]), backbone["layers"])
    weights_BNLK = attention_weights(model, TEXTS[:1]).content_ZBNLK[0]
    out_BLD = np.einsum("BNLK,BNKH,DNH->BLD", weights_BNLK, value_BNKH, layer["attention"]["o"])
    rows_BLD = normalised(backbone["word_embedding"][ids] + out_BLD, layer["attention"]["norm"])
    inner, outer = (layer["feed_forward"][name] for name in ("inner", "outer"))
    inner_BLF = np.asarray(jax.nn.gelu(rows_BLD @ inner["kernel"] + inner["bias"]))
    rows_BLD = normalised(rows_BLD + inner_BLF @ outer["kernel"] + outer["bias"], layer["feed_forward"]["norm"])
    np.testing.assert_allclose(rows_BLD, after_BLD, atol=1e-4)


def normalised(rows, norm):
    (norm,) = norm.values()
    rows = np.asarray(rows)
    centred = rows - rows.mean(-1, keepdims=True)
    return centred / np.sqrt(centred.var(-1, keepdims=True) + 1e-12) * norm["scale"] + norm["bias"]


def test_a_target_sees_the_context_and_the_targets_before_it(model):
    found = attention_weights(model, TEXTS, [[3, 0], [0]])
    length = len(found.pieces[0])
    assert found.query_ZBNPK.shape == (3, 2, 4, 2, length)
    assert found.targets == [[3, 0], [0]]
    context = np.ones(length, bool)
    context[[0, 3]] = False
    after_3 = context | (np.arange(length) == 3)
    for row, seen in zip(np.moveaxis(found.query_ZBNPK[:, 0], 2, 0), (context, after_3), strict=True):
        assert ((row > 0) == seen).all()
        np.testing.assert_allclose(row.sum(-1), 1, rtol=1e-5)
    assert not found.query_ZBNPK[:, 1, :, 1].any()  # the second text has one target
    content = found.content_ZBNLK[:, 0] > 0
    assert (content[:, :, 3] == after_3).all()
    assert content[:, :, 0].all()
    assert (content[:, :, 1] == context).all()


def test_a_row_that_sees_nothing_has_no_weights(model):
    found = attention_weights(model, TEXTS[1:], [[2, 1, 0]], specials=False)
    assert len(found.pieces[0]) == 3
    assert not found.query_ZBNPK[:, 0, :, 0].any()
    np.testing.assert_allclose(found.query_ZBNPK[:, 0, :, 1], [[[0, 0, 1]] * 4] * 3, rtol=1e-6)


def test_every_network_shows_its_weights(tokenizer):
    causal, bert = (
        random_model(dataclasses.replace(config, vocab_size=800), tokenizer=tokenizer) for config in (CAUSAL, BERT)
    )
    weights = attention_weights(causal, TEXTS[:1]).content_ZBNLK[:, 0]
    assert (np.triu(np.ones(weights.shape[-2:]), 1) * weights == 0).all()
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(attention_weights(bert, TEXTS[:1]).content_ZBNLK.sum(-1), 1, rtol=1e-5)
    with pytest.raises(InputError, match="reads in one direction"):
        attention_weights(causal, TEXTS[:1], [[0]])


def test_texts_and_targets_that_do_not_fit_are_refused(model):
    for texts, targets, message in (
        ([], None, "a list of at least one text"),
        ([" "], None, "text 0: the tokenizer leaves nothing of it"),
        (TEXTS, [[0]], "`targets` has 1 lists of positions, and there are 2 texts"),
        (TEXTS, [[0], [7]], "`targets` of text 1: there is no position 7; it has 3 pieces"),
        (TEXTS, [[0, 0], []], "`targets` of text 0: each position stands once"),
    ):
        with pytest.raises(InputError, match=message):
            attention_weights(model, texts, targets)
