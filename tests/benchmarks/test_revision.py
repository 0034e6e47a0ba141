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
