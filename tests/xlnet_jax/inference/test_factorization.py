"""Independent and dependent factorizations: the positions that each target sees, and the output of the command."""

import dataclasses
from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import xlnet_jax
from data_pipelines.tokenizer import Settings, Tokenizer
from tests.xlnet_jax.random_models import HEADS, SMALL, random_model
from xlnet_jax import InputError
from xlnet_jax.inference import factorization
from xlnet_jax.models.inputs import dense_inputs
from xlnet_jax.models.xlnet import XLNetLM

factorize = import_module("xlnet_jax.factorize")

TEXT, TARGETS = "The list of names is new", "of names"


@pytest.fixture(scope="module")
def model(reference):
    tokenizer = Tokenizer((reference / "data" / "spiece.model").read_bytes(), Settings())
    return random_model(dataclasses.replace(SMALL, vocab_size=800), tokenizer=tokenizer)


def masked_log_probs(model, seen):
    """Return log-probabilities from dense masks: `seen[p]` are the targets that target p may see."""
    ids = model.tokenizer.encode_lines([TEXT])[0]
    targets = model.tokenizer.encode_lines([TARGETS])[0]
    start = ids.tolist().index(targets[0])
    perm_mask = np.ones((1, len(ids), len(ids)), np.float32)
    context = [i for i in range(len(ids)) if not start <= i < start + len(targets)]
    perm_mask[:, :, context] = 0
    for p, others in enumerate(seen(len(targets))):
        perm_mask[0, start + p, [start + o for o in others]] = 0
    mapping = np.eye(len(ids), dtype=np.float32)[None, start : start + len(targets)]
    inputs = dense_inputs(
        jnp.asarray(ids)[None],
        segment_ids_BL=jnp.zeros((1, len(ids)), jnp.int32),
        perm_mask_BLL=jnp.asarray(perm_mask),
        target_mapping_BPL=jnp.asarray(mapping),
    )
    logits, _ = XLNetLM(model.model).apply({"params": model.params}, inputs)
    return np.asarray(jax.nn.log_softmax(logits[0]))[np.arange(len(targets)), targets]


def test_independent_targets_see_the_context_and_dependent_ones_those_before_too(model):
    found = factorization.factorize(model, TEXT, TARGETS)
    assert len(found.pieces) >= 2
    np.testing.assert_allclose(found.independent_P, masked_log_probs(model, lambda n: [[]] * n), atol=2e-5)
    np.testing.assert_allclose(
        found.dependent_P, masked_log_probs(model, lambda n: [range(p) for p in range(n)]), atol=2e-5
    )
    assert found.independent_P[0] == pytest.approx(found.dependent_P[0], abs=1e-5)
    assert abs(found.independent_P[1] - found.dependent_P[1]) > 1e-3


def test_the_command_prints_both_sums(model, tmp_path, capsys):
    xlnet_jax.save(model, tmp_path / "hf", "hf")
    assert factorize.main([str(tmp_path / "hf"), "--text", TEXT, "--targets", TARGETS]) == 0
    out = capsys.readouterr().out
    found = factorization.factorize(model, TEXT, TARGETS)
    assert f"{found.independent_P.sum():.3f}" in out
    assert f"{found.dependent_P.sum():.3f}" in out


def test_mistakes_are_named(model, tmp_path):
    with pytest.raises(InputError, match="is no whole piece or pieces of the text, which reads: ▁The"):
        factorization.factorize(model, TEXT, "York")
    with pytest.raises(InputError, match="has a head for regression, and no vocabulary scores"):
        factorization.factorize(random_model(head=HEADS["regression"]), TEXT, TARGETS)
    with pytest.raises(InputError, match="has no tokenizer"):
        factorization.factorize(random_model(), TEXT, TARGETS)
