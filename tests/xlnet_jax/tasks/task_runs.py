"""A tiny network on the batches of a task, and files of examples."""

import json
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from etils import epath

from tests.xlnet_jax.random_models import random_params
from xlnet_jax.models.heads import build_model
from xlnet_jax.objectives.language_model import BatchDropout
from xlnet_jax.settings.config import ModelConfig
from xlnet_jax.tasks.features import NO_ITEM, collate, restore_order


def json_lines(path, rows):
    """Write rows to a file, and return its name in a list."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return [str(path)]


def asked(question, context, *answers):
    """A row of SQuAD on the Hub; without answers, an unanswerable one."""
    found = {"text": [*answers], "answer_start": [context.index(answer) for answer in answers]}
    return {"question": question, "context": context, "answers": found}


def tiny(vocab_size):
    return ModelConfig(
        vocab_size=vocab_size, num_layers=1, d_model=16, num_heads=2, d_head=8, d_ff=32, mem_len=0, dropout=0.0,
        attention_dropout=0.0,
    )  # fmt: skip


@cache
def program_of(task, model):
    @jax.jit
    def outputs_and_sums(params, batch):
        losses, weights = task.losses(model, params, batch, None), batch["target_weights"]
        return task.predict(model, params, batch), (losses * weights).sum(), weights.sum()

    return outputs_and_sums


def batches_of(features, rows, length, side):
    """Yield (items, batch) of all items. The last batch of `rows` is padded."""
    items = np.arange(len(features))
    for of_batch in np.pad(items, (0, -len(items) % rows), constant_values=NO_ITEM).reshape(-1, rows):
        yield of_batch, collate(features, of_batch, length, side)


def outputs_of(task, model, params, features, rows, length, side):
    """Return the outputs for all items."""
    run, params = jax.jit(partial(task.predict, model)), jax.tree.map(jnp.asarray, params)
    found = [(items, run(params, batch)) for items, batch in batches_of(features, rows, length, side)]
    return restore_order(found, len(features))


def outputs_and_loss(task, model, params, features, rows, length, side):
    """Return the outputs for all items and the mean loss."""
    run, params = program_of(task, model), jax.tree.map(jnp.asarray, params)
    found = [(items, *run(params, batch)) for items, batch in batches_of(features, rows, length, side)]
    items, outputs, losses, weights = zip(*found, strict=True)
    return restore_order(list(zip(items, outputs, strict=True)), len(features)), float(sum(losses) / sum(weights))


def trained(task, config, head, features, steps, rate=1e-2):
    """Parameters after some updates on all items at once, and the loss before each."""
    model = build_model(config, head)
    params = jax.tree.map(jnp.asarray, random_params(config, head))
    optimizer = optax.adam(rate)
    batch = collate(features, np.arange(len(features)), int(features.lengths.max()), "left")
    weights = batch["target_weights"]

    def mean(params, key):
        dropout = BatchDropout(key, jnp.arange(len(weights)))
        return (task.losses(model, params, batch, dropout) * weights).sum() / weights.sum()

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
