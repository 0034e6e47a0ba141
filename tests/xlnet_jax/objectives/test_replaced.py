"""ELECTRA's two networks on batches of the pipeline: who learns from which loss, and what the discriminator reads."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.xlnet_jax.tiny_text import batches_of
from xlnet_jax.interop.weights import flatten
from xlnet_jax.models.bert import BertDetector
from xlnet_jax.models.heads import XLNetLM
from xlnet_jax.models.inputs import text_inputs
from xlnet_jax.objectives.presets import with_objective
from xlnet_jax.objectives.registry import validate
from xlnet_jax.objectives.replaced import SHARED, ReplacedTokenDetection, sample_BP
from xlnet_jax.settings.config import Config, DataConfig, ModelConfig, ReplacedConfig
from xlnet_jax.training import sharding

ROWS, LENGTH, TARGETS = 2, 16, 4
CONFIG = with_objective(
    Config(
        model=ModelConfig(
            vocab_size=40, num_layers=2, d_model=16, num_heads=2, d_head=6, d_ff=24, dropout=0.0, max_positions=LENGTH,
            attention_dropout=0.0, init_std=0.3,
        ),
        data=DataConfig(batch_size=ROWS, seq_len=LENGTH, reuse_len=8, perm_size=8, windows_per_block=4),
    ),
    "rtd",
)  # fmt: skip
CONFIG = replace(CONFIG, data=replace(CONFIG.data, num_predict=TARGETS), rtd=ReplacedConfig(generator_share=0.5))
NARROW = replace(CONFIG, model=replace(CONFIG.model, embedding_width=8))
MEMS = jnp.zeros(ReplacedTokenDetection(CONFIG).mems.shape)


SCORE = jax.jit(ReplacedTokenDetection(CONFIG).score)


@pytest.fixture(scope="module")
def params():
    validate(CONFIG)
    return sharding.unboxed(jax.jit(ReplacedTokenDetection(CONFIG).init)(jax.random.key(0)))


@pytest.fixture(scope="module")
def batch():
    return batches_of(CONFIG).batch_at(1)


def test_the_generators_layers_learn_nothing_from_the_discriminator_nor_it_from_its_loss(params, batch):
    def losses(params):
        scored = ReplacedTokenDetection(CONFIG).score(params, batch, MEMS, None)
        return scored.loss_sum, scored.row_losses["weighted_detection_loss"]

    of_generator, of_discriminator = map(flatten, jax.jit(jax.jacrev(losses))(params))
    for path, gradient in of_discriminator.items():
        assert (np.abs(gradient).max() > 0) == (not path.startswith("generator/")), path
    for path, gradient in of_generator.items():
        is_its_own = path.startswith(("generator/", *(f"backbone/{name}" for name in SHARED)))
        assert (np.abs(gradient).max() > 0) == is_its_own, path


@pytest.fixture(scope="module")
def by_hand(params, batch):
    """(what the discriminator reads, what stands in the text, its scores), by the networks themselves."""
    own = params["generator"]
    shared = {name: params["backbone"][name] for name in SHARED}
    given = {"params": {**own, "backbone": {**own["backbone"], **shared}}}
    masked = text_inputs(batch["input_ids"], segment_ids_BL=batch["segment_ids"])
    logits, _ = jax.jit(XLNetLM(CONFIG.rtd.generator_of(CONFIG.model)).apply)(
        given, masked, at_BP=batch["target_positions"]
    )
    samples = np.asarray(sample_BP(logits, batch["noise_seed"]))
    original, read = batch["input_ids"].copy(), batch["input_ids"].copy()
    for row, slot in zip(*np.nonzero(batch["target_weights"]), strict=True):
        place = batch["target_positions"][row, slot]
        original[row, place], read[row, place] = batch["target_ids"][row, slot], samples[row, slot]
    scores, _ = jax.jit(BertDetector(CONFIG.model).apply)(
        {"params": params}, text_inputs(read, segment_ids_BL=batch["segment_ids"])
    )
    return read, original, np.asarray(scores)


def test_losses_are_those_counted_by_hand(params, batch, by_hand):
    """A sample that is the text's own token is none that was replaced."""
    read, original, scores = by_hand
    scored = SCORE(params, batch, MEMS, None)
    labels = read != original
    assert 0 < labels.sum() <= ROWS * TARGETS
    probability = 1 / (1 + np.exp(-scores))
    expected = -np.log(np.where(labels, probability, 1 - probability)).mean()
    assert scored.row_measures["detection_loss"] / ROWS == pytest.approx(expected, abs=1e-5)
    assert scored.row_losses["weighted_detection_loss"] == pytest.approx(50 * scored.row_measures["detection_loss"])
    assert scored.row_measures["replaced_share"] / ROWS == pytest.approx(labels.mean())
    assert scored.row_measures["detection_accuracy"] / ROWS == pytest.approx(((scores > 0) == labels).mean())


def test_a_sample_that_is_the_texts_own_token_is_not_replaced(params, batch):
    """The generator is sure of the right piece everywhere: its bias names the one piece of the text."""
    bias = jnp.where(jnp.arange(CONFIG.model.vocab_size) == 9, 1e6, 0.0)
    sure = {**params, "generator": {**params["generator"], "output_bias": bias}}
    plain = batch | {"target_ids": np.full_like(batch["target_ids"], 9)}
    assert SCORE(sure, plain, MEMS, None).row_measures["replaced_share"] == 0


def test_every_score_depends_on_every_token_that_the_discriminator_reads(params, by_hand):
    read, _, _ = by_hand
    # Each token by an embedding of its own: the gradient by token is the gradient by embedding row.
    table, ids = params["backbone"]["word_embedding"], np.arange(read.size).reshape(read.shape)
    config = replace(CONFIG.model, vocab_size=read.size)

    def scores(rows):
        given = {**params, "backbone": {**params["backbone"], "word_embedding": rows}}
        return BertDetector(config).apply({"params": given}, text_inputs(ids))[0]

    influence = np.abs(jax.jit(jax.jacrev(scores))(table[read.ravel()])).sum(-1).reshape(ROWS, LENGTH, ROWS, LENGTH)
    for row in range(ROWS):
        assert (influence[row, :, row] > 0).all()
        assert (influence[row, :, 1 - row] == 0).all()


def test_slots_that_are_padding_change_nothing(params, batch):
    weights = batch["target_weights"] * np.array([1, 0, 1, 0], np.float32)
    padded = batch | {"target_weights": weights}
    elsewhere = np.where(weights > 0, batch["target_ids"], 7), np.where(weights > 0, batch["target_positions"], 15)
    changed = padded | {"target_ids": elsewhere[0], "target_positions": elsewhere[1]}
    jax.tree.map(np.testing.assert_array_equal, SCORE(params, padded, MEMS, None), SCORE(params, changed, MEMS, None))


def test_samples_of_a_row_are_the_same_in_whatever_batch_it_stands():
    """And as likely as the generator has it."""
    rng = np.random.default_rng(0)
    logits, seeds = jnp.asarray(rng.normal(size=(64, 50, 4)), jnp.float32), np.arange(64, dtype=np.int32)
    logits = logits.at[:].set(logits[0, 0])
    whole = sample_BP(logits, seeds)
    np.testing.assert_array_equal(whole[3:5], sample_BP(logits[3:5], seeds[3:5]))
    assert (np.asarray(whole[0]) != whole[1]).any()
    shares = np.bincount(np.asarray(whole).ravel(), minlength=4) / whole.size
    np.testing.assert_allclose(shares, jax.nn.softmax(logits[0, 0]), atol=0.03)  # 3200 draws


def test_noise_belongs_to_the_step_and_the_row():
    source = batches_of(CONFIG)
    seeds = [source.batch_at(step)["noise_seed"] for step in range(20)]
    assert len(np.unique(seeds)) == 20 * ROWS
    np.testing.assert_array_equal(source.batch_at(3, range(1, 2))["noise_seed"], seeds[3][1:])
    assert {a.dtype for a in seeds} == {np.dtype(np.int32)}
    masked = replace(CONFIG, objective="mlm")
    for name, array in batches_of(masked).batch_at(3).items():
        np.testing.assert_array_equal(array, source.batch_at(3)[name])


def test_a_generator_shares_what_embeds_whatever_its_width():
    """Projected where they are not as wide as it is itself."""
    for config, width, projected in ((CONFIG, 16, True), (NARROW, 8, False)):
        drawn = jax.eval_shape(ReplacedTokenDetection(config).init, jax.random.key(0))
        of_generator = drawn["generator"]["backbone"]
        assert not of_generator.keys() & set(SHARED)
        assert ("embedding_projection" in of_generator) == projected
        generator = config.rtd.generator_of(config.model)
        assert (generator.embedding_width or generator.d_model) == width
