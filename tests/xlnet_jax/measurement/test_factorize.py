"""Words are predicted together or each by itself, from what they may see."""

import numpy as np
import pytest

from tests.xlnet_jax.inference.test_score import dense_log_probs
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.inference.words import fill_in, find_words
from xlnet_jax.measurement.factorize import factorize

command = COMMANDS["factorize"]

TEXT, TARGETS = "The list of names is new", "of names"


def test_independent_targets_see_the_context_and_dependent_ones_those_before_too(model):
    found = factorize(model, TEXT, TARGETS)
    ids = model.tokenizer.encode_lines([TEXT])[0]
    targets = find_words(model.tokenizer, ids, TARGETS)
    assert len(targets) >= 2
    place, is_target = np.arange(len(ids)), np.isin(np.arange(len(ids)), targets)
    context = np.broadcast_to(~is_target, (len(ids), len(ids)))
    before = is_target[:, None] & (place < place[:, None])
    for log_probs, sees in ((found.independent_P, context), (found.dependent_P, context | before)):
        np.testing.assert_allclose(log_probs, dense_log_probs(model, ids, targets, sees), atol=2e-5)
    assert found.independent_P[0] == pytest.approx(found.dependent_P[0], abs=1e-5)
    assert abs(found.independent_P[1] - found.dependent_P[1]) > 1e-3


def test_both_sums_are_printed_and_a_hidden_piece_is_an_independent_target(model, checkpoint, capsys):
    assert command.main([str(checkpoint), "--text", TEXT, "--targets", TARGETS]) == 0
    out = capsys.readouterr().out
    found = factorize(model, TEXT, TARGETS)
    assert f"{found.independent_P.sum():.3f}" in out
    assert f"{found.dependent_P.sum():.3f}" in out
    gaps = fill_in(model, TEXT, [TARGETS])
    assert [gap.piece for gap in gaps] == found.pieces
    np.testing.assert_allclose(np.log([gap.probability for gap in gaps]), found.independent_P, atol=1e-5)
