"""BERT's encoder: where it is chosen, the order and segments that it reads, and the published sizes of its presets."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import xlnet_jax
from tests.xlnet_jax.random_models import BERT, ROBERTA, random_model, random_params
from xlnet_jax.errors import InputError
from xlnet_jax.interop.weights import abstract_params, flatten, optional_params
from xlnet_jax.models.heads import XLNetLM
from xlnet_jax.models.inputs import compact_inputs, text_inputs
from xlnet_jax.models.layers import ATTENTION_WEIGHTS, SOWN
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


@pytest.mark.parametrize("part", ["attention", "feed_forward"])
def test_a_shared_part_computes_what_equal_parts_of_all_layers_compute(part):
    shared = dataclasses.replace(BERT, share_layers=part, dropout=0.3, attention_dropout=0.3)
    params = random_params(shared, None)
    layers = params["backbone"]["layers"]
    assert part not in layers
    own = params["backbone"][f"shared_{part}"]
    by_layer = {**layers, part: jax.tree.map(lambda a: np.stack([a] * BERT.num_layers), own)}
    backbone = {name: tree for name, tree in params["backbone"].items() if not name.startswith("shared_")}
    copied = {**params, "backbone": {**backbone, "layers": by_layer}}
    assert abstract_params(dataclasses.replace(shared, share_layers="none"), None).keys() == flatten(copied).keys()

    def loss(params, share):
        network = XLNetLM(dataclasses.replace(shared, share_layers=share))
        inputs = text_inputs(IDS)._replace(example_B=jnp.arange(len(IDS)))
        logits, _ = network.apply({"params": params}, inputs, train=True, rngs={"dropout": jax.random.key(0)})
        return jax.nn.logsumexp(logits, axis=-1).mean()

    (ours, grads), (theirs, grads_copied) = (
        jax.jit(jax.value_and_grad(loss), static_argnums=1)(p, share) for p, share in ((params, part), (copied, "none"))
    )
    assert abs(ours - theirs) < 1e-6
    summed = jax.tree.map(lambda a: a.sum(0), grads_copied["backbone"]["layers"][part])
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(summed)) > 1e-4
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), grads["backbone"][f"shared_{part}"], summed)


@pytest.mark.parametrize("part", ["attention", "feed_forward"])
def test_a_network_that_shares_a_part_is_saved_loaded_drawn_and_not_for_transformers(part, tmp_path):
    model = random_model(dataclasses.replace(BERT, share_layers=part))
    xlnet_jax.save(model, tmp_path / "own")
    loaded = xlnet_jax.load(tmp_path / "own")
    assert loaded.model == model.model
    ours, theirs = flatten(loaded.params), flatten(model.params)
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[path], theirs[path]) for path in theirs)
    _, sown = loaded.network.apply({"params": loaded.params}, text_inputs(IDS), mutable=SOWN)
    (weights,) = sown[ATTENTION_WEIGHTS]["backbone"]["layers"]["attention"]["weights_BNTK"]
    assert weights.shape == (BERT.num_layers, len(IDS), BERT.num_heads, 8, 8)
    with pytest.raises(
        InputError, match=f"bert cannot hold layers that share only a part, `model.share_layers` {part}"
    ):
        xlnet_jax.save(model, tmp_path / "theirs", "hf")


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
