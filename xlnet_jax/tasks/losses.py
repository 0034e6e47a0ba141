"""Losses of finetuning, one number an example, float32 (`function_builder.py`, `model_fn` of run_squad.py)."""

import jax
import jax.numpy as jnp
import optax

from xlnet_jax.models.question_answering import SpanLogProbs


def classification_loss_B(logits_BC: jnp.ndarray, labels_B: jnp.ndarray) -> jnp.ndarray:
    """Cross-entropy in nats; multiple choice too."""
    return optax.softmax_cross_entropy_with_integer_labels(logits_BC, labels_B)


def regression_loss_B(predicted_B: jnp.ndarray, labels_B: jnp.ndarray) -> jnp.ndarray:
    """Squared error."""
    return jnp.square(predicted_B - labels_B)


def span_loss_B(
    outputs: SpanLogProbs, start_B: jnp.ndarray, end_B: jnp.ndarray, is_impossible_B: jnp.ndarray
) -> jnp.ndarray:
    """Mean cross-entropy of start and end, and half that of whether there is an answer."""
    of_start_B = jnp.take_along_axis(outputs.start_BL, start_B[:, None], axis=1)[:, 0]
    of_end_B = jnp.take_along_axis(outputs.end_BL, end_B[:, None], axis=1)[:, 0]
    unanswerable_B = optax.sigmoid_binary_cross_entropy(outputs.unanswerable_B, is_impossible_B)
    return -0.5 * (of_start_B + of_end_B) + 0.5 * unanswerable_B


def pairwise_loss_B(scores_BC: jnp.ndarray) -> jnp.ndarray:
    """log(1 + exp(other - relevant)), the mean over the others; the relevant document is the first of each group
    (RankNet, Burges et al. 2005)."""
    return jax.nn.softplus(scores_BC[:, 1:] - scores_BC[:, :1]).mean(axis=1)


def pointwise_loss_B(scores_BC: jnp.ndarray) -> jnp.ndarray:
    """Binary cross-entropy, the mean over the group, whose first document is the relevant one."""
    relevant_C = jnp.arange(scores_BC.shape[1]) == 0
    return optax.sigmoid_binary_cross_entropy(scores_BC, jnp.broadcast_to(relevant_C, scores_BC.shape)).mean(axis=1)


def softmax_loss_B(scores_BC: jnp.ndarray) -> jnp.ndarray:
    """Cross-entropy of choosing the relevant document, the first of its group."""
    return classification_loss_B(scores_BC, jnp.zeros(len(scores_BC), jnp.int32))
