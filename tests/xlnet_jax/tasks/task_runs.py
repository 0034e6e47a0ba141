"""A tiny network on the batches of a task."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from etils import epath

from tests.xlnet_jax.random_models import random_params
from xlnet_jax.models.heads import build_model
from xlnet_jax.objectives.language_model import BatchDropout
from xlnet_jax.settings.config import ModelConfig
from xlnet_jax.tasks.features import NO_ITEM, collate


def tiny(vocab_size):
    return ModelConfig(
        vocab_size=vocab_size, num_layers=1, d_model=16, num_heads=2, d_head=8, d_ff=32, mem_len=0, dropout=0.0,
        attention_dropout=0.0,
    )  # fmt: skip


def outputs_and_loss(task, model, *batches):
    """Return the outputs for all items and the mean loss, of one program."""

    def both(params, batch):
        return task.predict(model, params, batch), task.score(model, params, batch, None)

    found = list(of_batches(both, *batches))
    return joined((chosen, outputs) for chosen, (outputs, _) in found), mean(loss for _, (_, loss) in found)


def outputs_of(task, model, *batches):
    return joined(of_batches(partial(task.predict, model), *batches))


def loss_of(task, model, *batches):
    return mean(loss for _, loss in of_batches(partial(task.score, model, dropout=None), *batches))


def joined(parts):
    found = [
        {name: np.asarray(array)[chosen != NO_ITEM] for name, array in outputs.items()} for chosen, outputs in parts
    ]
    return {name: np.concatenate([outputs[name] for outputs in found]) for name in found[0]}


def mean(losses):
    losses = list(losses)
    return float(sum(loss.loss_sum for loss in losses) / sum(loss.weight_sum for loss in losses))


def of_batches(function, params, features, rows, length, side):
    """Yield the items of each batch of `rows`, the last one padded, and what a function of (params, batch) returns."""
    run, params = jax.jit(function), jax.tree.map(jnp.asarray, params)
    items = np.arange(len(features))
    for chosen in np.pad(items, (0, -len(items) % rows), constant_values=NO_ITEM).reshape(-1, rows):
        yield chosen, run(params, collate(features, chosen, length, side))


def trained(task, config, head, features, steps, rate=1e-2):
    """Parameters after some updates on all items at once, and the loss before each."""
    model = build_model(config, head)
    params = jax.tree.map(jnp.asarray, random_params(config, head))
    optimizer = optax.adam(rate)
    batch = collate(features, np.arange(len(features)), int(features.lengths.max()), "left")

    def mean(params, key):
        dropout = BatchDropout(key, jnp.arange(len(batch["target_weights"])))
        loss = task.score(model, params, batch, dropout)
        return loss.loss_sum / loss.weight_sum

    @partial(jax.jit, donate_argnums=(0, 1))
    def update(params, state, key):
        loss, gradients = jax.value_and_grad(mean)(params, key)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    state, losses = optimizer.init(params), []
    for key in jax.random.split(jax.random.key(0), steps):
        params, state, loss = update(params, state, key)
        losses.append(float(loss))
    return params, losses


def metrics(task, examples, features, outputs):
    return task.metrics(examples, task.answers(examples, features, outputs))


def write(task, folder, examples, features, outputs):
    return task.write(epath.Path(folder), examples, task.answers(examples, features, outputs))
