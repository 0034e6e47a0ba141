"""The heads give the original's numbers; by default no result depends on padding."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.xlnet_jax.random_models import random_params
from tests.xlnet_jax.reference_cases import HIDDEN, LOSS, Case, assert_close, assert_gradients
from xlnet_jax.models.heads import XLNetForQuestionAnswering, XLNetForSequence
from xlnet_jax.models.inputs import dense_inputs, text_inputs
from xlnet_jax.settings.config import HeadConfig, ModelConfig
from xlnet_jax.tasks.classification.task import LOSSES_B
from xlnet_jax.tasks.question_answering.task import span_loss_B


def sequence_head(run):
    task = "regression" if run["regression"] else "classification"
    scope = f"{task}_{run['cls_scope'] or run['task_name']}"
    return HeadConfig(task, run["n_class"] or 1, run["summary_type"], run["use_summ_proj"], scope=scope)


def race_head(run):
    return HeadConfig("multiple_choice", 4, run["summary_type"], run["use_summ_proj"])


def original_inputs(case, options=1):
    """Batch-first features; the original's mask has 1 on padding, and its padding rows see themselves."""
    ids, padding, segments = (case.arrays[f"inputs/{k}"] for k in ("input_ids", "input_mask", "segment_ids"))
    ids, padding, segments = (x.reshape(len(x) * options, -1) for x in (ids, padding, segments))
    return dense_inputs(ids, segment_ids_BL=segments, attention_mask_BL=1 - padding), 1 - padding


SEQUENCE_CASES = [
    "f1_cls_last", "f2_cls_first", "f3_cls_mean", "f4_cls_attn", "f5_reg_last", "f6_reg_attn_noproj",
    "f7_cls_mean_noproj", "h1_race_last", "h2_race_attn_tie",
]  # fmt: skip


@pytest.mark.parametrize("name", SEQUENCE_CASES)
def test_heads_on_a_summary_give_the_originals_numbers(reference, name):
    race = name.startswith("h")
    case = Case(reference / "model", name, head=race_head if race else sequence_head)
    labels = case.arrays["inputs/label_ids"]
    per_example = LOSSES_B["regression" if case.head.task == "regression" else "classification"]

    def loss(params):
        inputs, mask = original_inputs(case, options=4 if race else 1)
        scores, sown = XLNetForSequence(case.config, case.head).apply(
            {"params": params}, inputs, mask, capture_intermediates=lambda m, _: m.name in ("backbone", "summary"),
            mutable="intermediates",
        )  # fmt: skip
        nats = per_example(scores, labels)
        return nats.mean(), (scores, nats, sown["intermediates"])

    (total, (scores, nats, sown)), grads = jax.device_get(jax.jit(jax.value_and_grad(loss, has_aux=True))(case.params))
    assert_close(sown["backbone"]["__call__"][0].content_BLD, case.hidden("outputs/final"), HIDDEN)
    assert_close(sown["summary"]["__call__"][0], case.arrays["outputs/summary"], HIDDEN)
    assert_close(scores, case.arrays["outputs/logits"], HIDDEN)
    assert_close(nats, case.arrays["outputs/per_example_loss"], LOSS)
    assert_close(total, case.arrays["outputs/total_loss"], LOSS)
    assert_gradients(grads, case.gradients)


def question_answering(case):
    inputs, _ = original_inputs(case)
    return inputs, *(case.arrays[f"inputs/{k}"] for k in ("cls_index", "p_mask"))


@pytest.mark.parametrize("name", ["g1_squad_train", "g4_squad_train_tie"])
def test_question_answering_trains_as_the_original(reference, name):
    case = Case(reference / "model", name, head=lambda _: HeadConfig("question_answering"))
    start, end, impossible = (case.arrays[f"inputs/{k}"] for k in ("start_positions", "end_positions", "is_impossible"))

    def loss(params):
        outputs = XLNetForQuestionAnswering(case.config).apply({"params": params}, *question_answering(case), start)
        return span_loss_B(outputs, start, end, impossible).mean(), outputs

    compute = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (total, (start_BL, end_BL, unanswerable_B)), grads = jax.device_get(compute(case.params))
    allowed = case.arrays["inputs/p_mask"] == 0
    assert_close(start_BL[allowed], case.arrays["outputs/start_log_probs"][allowed], HIDDEN)
    assert_close(end_BL[allowed], case.arrays["outputs/end_log_probs"][allowed], HIDDEN)
    assert (start_BL[~allowed] < -1e29).all()
    assert_close(unanswerable_B, case.arrays["outputs/cls_logits"], HIDDEN)
    assert_close(total, case.arrays["outputs/total_loss"], LOSS)
    assert_gradients(grads, case.gradients)


@pytest.mark.parametrize("name", ["g2_squad_predict_5x5", "g3_squad_predict_few_valid", "g5_squad_predict_3x2"])
def test_question_answering_predicts_as_the_original(reference, name):
    case = Case(reference / "model", name, head=lambda _: HeadConfig("question_answering"))
    starts, ends = case.run["start_n_top"], case.run["end_n_top"]
    beam = jax.device_get(
        jax.jit(
            lambda params: XLNetForQuestionAnswering(case.config).apply(
                {"params": params}, *question_answering(case), starts, ends, method="beam"
            )
        )(case.params)
    )
    batch = len(beam["unanswerable"])
    np.testing.assert_array_equal(beam["start_index"], case.arrays["outputs/start_top_index"])
    np.testing.assert_array_equal(beam["end_index"].reshape(batch, -1), case.arrays["outputs/end_top_index"])
    for ours, theirs in (
        (beam["start_log_probs"], "start_top_log_probs"),
        (beam["end_log_probs"].reshape(batch, -1), "end_top_log_probs"),
        (beam["unanswerable"], "cls_logits"),
    ):
        expected = case.arrays[f"outputs/{theirs}"]
        possible = expected > -1e29  # float32 has seven digits, all used by 1e30
        assert_close(ours[possible], expected[possible], HIDDEN)
        np.testing.assert_allclose(ours[~possible], expected[~possible], rtol=1e-6)


TINY = ModelConfig(
    vocab_size=40, num_layers=2, d_model=16, num_heads=2, d_head=6, d_ff=24, dropout=0.0, attention_dropout=0.0
)


def padded(ids, left, right, rows):
    """Return the ids with padding tokens on both sides and in more rows below, and their mask."""
    margins = (0, rows), (left, right)
    return np.pad(ids, margins, constant_values=7), np.pad(np.ones_like(ids), margins)


@pytest.mark.parametrize(
    ("summary", "positions"),
    [("last", "relative"), ("first", "relative"), ("mean", "relative"), ("attn", "relative"), ("mean", "learned"),
     ("first", "sinusoidal")],
)  # fmt: skip
def test_padding_on_either_side_of_any_length_and_rows_of_padding_change_nothing(summary, positions):
    head, config = HeadConfig("classification", 3, summary), dataclasses.replace(TINY, positions=positions)
    params, model = random_params(config, head), XLNetForSequence(config, head)
    ids = np.random.default_rng(1).integers(9, 40, (3, 9)).astype(np.int32)

    @jax.jit
    def scores_and_gradients(ids, mask):
        def total(params):
            scores_BC = model.apply({"params": params}, text_inputs(ids, mask, jnp.zeros_like(ids)), mask)
            weights_B = mask.any(1)  # 0 for rows of padding, as in the last batch of an epoch
            return (weights_B * scores_BC.sum(1)).sum(), scores_BC

        return jax.value_and_grad(total, has_aux=True)(params)

    (_, alone), gradients_alone = scores_and_gradients(*padded(ids, 0, 0, rows=0))
    for left, right in ((23, 0), (0, 23), (1, 22), (15, 8)):
        (_, scores), gradients = scores_and_gradients(*padded(ids, left, right, rows=1))
        np.testing.assert_allclose(scores[:3], alone, rtol=0, atol=2e-6)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=5e-6), gradients, gradients_alone)
