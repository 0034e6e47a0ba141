"""BERT's encoder: where it is chosen, the order and segments that it reads, and the published sizes of its presets."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from tests.xlnet_jax.random_models import BERT, ROBERTA, random_params
from xlnet_jax.errors import InputError
from xlnet_jax.interop.weights import abstract_params, optional_params
from xlnet_jax.models.heads import XLNetLM
from xlnet_jax.models.inputs import compact_inputs, text_inputs
from xlnet_jax.objectives.language_model import LanguageModel
from xlnet_jax.objectives.presets import PRESETS
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.training import sharding
from xlnet_jax.training.step import Program

IDS = np.random.default_rng(0).integers(9, 40, (2, 8)).astype(np.int32)


@pytest.mark.parametrize(
    ("preset", "body", "lm", "with_pairs"),
    [
        ("bert-base", 109_482_240, 109_514_298, 110_106_428),
        ("roberta-base", 124_645_632, 124_697_433, None),
        ("albert-base", 11_683_584, 11_221_680, 11_813_810),
    ],
)
def test_presets_have_the_published_sizes_to_the_unit(preset, body, lm, with_pairs):
    """Compare with BertModel (its pooler is as large as our head's), BertForMaskedLM and BertForPreTraining, and with
    their RoBERTa and ALBERT."""
    model = PRESETS[preset]().model
    tagger = HeadConfig("token_classification", model.d_model)
    assert size(abstract_params(model, tagger)) == body
    assert size(abstract_params(model, None)) == lm
    pairs = {path: s for path, s in optional_params(model, None).items() if path.startswith("pair_head/")}
    assert with_pairs in (None, lm + size(pairs))


def test_electra_has_the_published_size():
    model = PRESETS["electra-small"]().model
    detector = {path: s for path, s in optional_params(model, None).items() if path.startswith("detector/")}
    body = size(abstract_params(model, HeadConfig("token_classification", 1))) - (model.d_model + 1)
    assert body + size(detector) == 13_549_057


def size(shapes):
    return sum(math.prod(s.shape) for s in shapes.values())


def test_places_and_segments_count_and_unknown_segments_are_the_first():
    params = jax.tree.map(jnp.asarray, random_params(BERT, None))
    lm = jax.jit(lambda inputs: XLNetLM(BERT).apply({"params": params}, inputs)[0])
    plain = lm(text_inputs(IDS))
    mirrored = lm(text_inputs(IDS[:, ::-1]))[:, ::-1]
    assert np.abs(plain - mirrored).max() > 1e-2
    second, unknown = (lm(text_inputs(IDS, segment_ids_BL=np.full_like(IDS, s))) for s in (1, 3))
    assert np.abs(plain - second).max() > 1e-2
    np.testing.assert_array_equal(plain, unknown)


def test_what_learned_places_do_not_have_is_refused():
    params = {"params": random_params(ROBERTA, None)}
    long, ids = jnp.ones((1, 17), jnp.int32), jnp.ones((1, 4), jnp.int32)
    asked = compact_inputs(ids, target_positions_BP=jnp.zeros((1, 1), jnp.int32))
    with pytest.raises(InputError, match=r"a window of 17 tokens is too long: the network has 16 learned positions"):
        XLNetLM(ROBERTA).apply(params, text_inputs(long))
    with pytest.raises(InputError, match="has no memory"):
        XLNetLM(ROBERTA).apply(params, text_inputs(ids, mem_len=1))
    with pytest.raises(InputError, match="has no query stream"):
        XLNetLM(ROBERTA).apply(params, asked)


def test_heads_feed_forward_and_vocabulary_are_divided_among_devices():
    config = PRESETS["bert-base"]()
    config = dataclasses.replace(config, mesh=dataclasses.replace(config.mesh, tensor=2, fsdp=2))
    plan = Program.of(config, LanguageModel(config)).plan
    backbone = sharding.shardings_of(plan.params["backbone"])
    specs = {name: backbone["layers"]["attention"][name]["kernel"].spec for name in "qo"}
    assert specs["q"] == P(None, "fsdp", "tensor", None)
    assert specs["o"] == P(None, "tensor", "fsdp")
    assert backbone["layers"]["feed_forward"]["inner"]["kernel"].spec == P(None, "fsdp", "tensor")
    assert backbone["word_embedding"].spec == P("tensor", "fsdp")
