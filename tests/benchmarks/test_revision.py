"""Texts that are drawn again: which pieces, and at which distance."""

import dataclasses

import jax
import numpy as np
import pytest

from benchmarks import revision
from benchmarks.sampling import GIVEN
from tests.xlnet_jax.random_models import random_params
from xlnet_jax import load
from xlnet_jax.inference.sampler import APART


@pytest.mark.parametrize("way", ["random", "least probable"])
def test_a_revision_draws_again_a_few_distant_pieces(way):
    tiny = load("tiny")
    network = dataclasses.replace(tiny.model, num_layers=1, mem_len=0, num_segments=0)
    params = jax.tree.map(lambda weight: weight / 30, random_params(network, None))
    model = dataclasses.replace(tiny, model=network, params=params, objective="mdlm")
    prompts = np.arange(9, 9 + 2 * GIVEN).reshape(2, GIVEN)
    first, revised = (revision.draw_texts(model, prompts, 2, passes, way, 1.0, seed=3) for passes in (0, 1))
    assert first.shape == revised.shape == (2, revision.NEW)
    for row, again in zip(first, revised, strict=True):
        (changed,) = np.nonzero(row != again)
        assert 1 <= len(changed) <= revision.REVISED
        assert np.diff(changed).min() >= APART
    assert not np.isin(first, [0, 1, 2, 3, 4, 6, 7]).any()


def test_the_least_probable_pieces_are_drawn_again(monkeypatch):
    """Pieces at odd places are nearly certain, so a revision by probability leaves them as they are."""
    tiny = load("tiny")
    sure = np.arange(tiny.model.vocab_size) == 50

    def log_probs(network, queries, batch_tokens):
        logits = [np.where((query.positions_P % 2 == 1)[:, None], 30.0, 0.0) * sure for query in queries]
        return [of - np.logaddexp.reduce(of, axis=1, keepdims=True) for of in logits]

    chosen, spaced = [], revision.spaced
    monkeypatch.setattr(revision, "log_probs_of_vocabulary", log_probs)
    monkeypatch.setattr(revision, "spaced", lambda order_P, *rest: chosen.append(order_P) or spaced(order_P, *rest))
    texts = revision.draw_texts(tiny, np.full((2, GIVEN), 9), 2, 1, "least probable", 1.0, seed=3)
    assert (texts[:, (GIVEN + 1) % 2 :: 2] == 50).all()
    for order_P in chosen:
        assert ((GIVEN + order_P[: revision.NEW // 2]) % 2 == 0).all()
