"""Losses of finetuning, float32, one number an item (`function_builder.py`, and `model_fn` of run_squad.py)."""

import jax
import jax.numpy as jnp
import optax

from xlnet_jax.models.heads import SpanLogProbs


def classification_loss_B(logits_BC: jnp.ndarray, labels_B: jnp.ndarray) -> jnp.ndarray:
    """Return the cross-entropy in nats. logits: [B, C], labels: int [B]. C: labels, or the options of a question."""
    return optax.softmax_cross_entropy_with_integer_labels(logits_BC, labels_B)


def multilabel_loss_B(logits_BC: jnp.ndarray, labels_BC: jnp.ndarray) -> jnp.ndarray:
    """Return the binary cross-entropy in nats, averaged over the labels. logits, labels (1.0 = has it): [B, C]."""
    return optax.sigmoid_binary_cross_entropy(logits_BC, labels_BC).mean(axis=-1)


def regression_loss_B(predicted_B: jnp.ndarray, labels_B: jnp.ndarray) -> jnp.ndarray:
    """Return the squared error of predictions and labels, both [B]."""
    return jnp.square(predicted_B - labels_B)


def span_loss_B(
    outputs: SpanLogProbs, start_B: jnp.ndarray, end_B: jnp.ndarray, is_impossible_B: jnp.ndarray
) -> jnp.ndarray:
    """Return the mean cross-entropy of start and end, plus half the cross-entropy of answerability, in nats
    (`get_qa_outputs` of function_builder.py). start, end: int [B], places among the L tokens."""
    of_start_B = jnp.take_along_axis(outputs.start_BL, start_B[:, None], axis=1)[:, 0]
    of_end_B = jnp.take_along_axis(outputs.end_BL, end_B[:, None], axis=1)[:, 0]
    unanswerable_B = optax.sigmoid_binary_cross_entropy(outputs.unanswerable_B, is_impossible_B)
    return -0.5 * (of_start_B + of_end_B) + 0.5 * unanswerable_B


def pairwise_loss_B(scores_BC: jnp.ndarray) -> jnp.ndarray:
    """Return log(1 + exp(other - relevant)), averaged over the other documents (RankNet, Burges et al. 2005). scores:
    [B, C], the relevant document first."""
    return jax.nn.softplus(scores_BC[:, 1:] - scores_BC[:, :1]).mean(axis=1)


def pointwise_loss_B(scores_BC: jnp.ndarray) -> jnp.ndarray:
    """Return the binary cross-entropy in nats, averaged over the group. scores: [B, C], the relevant document first."""
    relevant_C = jnp.arange(scores_BC.shape[1]) == 0
    return optax.sigmoid_binary_cross_entropy(scores_BC, jnp.broadcast_to(relevant_C, scores_BC.shape)).mean(axis=1)


def softmax_loss_B(scores_BC: jnp.ndarray) -> jnp.ndarray:
    """Return the cross-entropy in nats of choosing the relevant document. scores: [B, C], the relevant document
    first."""
    return classification_loss_B(scores_BC, jnp.zeros(len(scores_BC), jnp.int32))
