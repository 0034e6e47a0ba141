"""Losses of finetuning, one number an example, float32 (`function_builder.py`, `model_fn` of run_squad.py)."""

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
