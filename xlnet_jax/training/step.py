"""One update and one evaluation, as functions to be compiled."""

from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from xlnet_jax.config import Config
from xlnet_jax.models.lm import XLNetLM
from xlnet_jax.objectives import plm
from xlnet_jax.training import sharding
from xlnet_jax.training.optimizer import learning_rate
from xlnet_jax.training.state import StatePlan, TrainState

DeviceBatch = dict[str, jax.Array]
Metrics = dict[str, jax.Array]
TrainStep = Callable[[TrainState, DeviceBatch], tuple[TrainState, Metrics]]
EvalStep = Callable[[Any, DeviceBatch, jax.Array], plm.Scored]


def make_train_step(
    config: Config, model: XLNetLM, tx: optax.GradientTransformation, plan: StatePlan, mesh: Mesh
) -> TrainStep:
    """state, batch -> state, metrics. The state passed in is donated: it must not be read again.

    The loss is the mean over all targets of the global batch; the gradient is clipped after it was summed over devices.
    """
    rate = learning_rate(config.optimizer, config.steps)
    has_dropout = config.model.dropout > 0 or config.model.attention_dropout > 0

    def train_step(state: TrainState, batch: DeviceBatch) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(jax.random.key(config.seed), state.step) if has_dropout else None

        def mean_loss(params: Any) -> tuple[jax.Array, jax.Array]:
            scored = plm.score(model, params, batch, state.mems_ZBMD, config.data.reuse_len, key)
            return scored.loss_sum / jnp.maximum(scored.weight_sum, 1.0), scored.new_mems_ZBMD

        (loss, new_mems_ZBMD), grads = jax.value_and_grad(mean_loss, has_aux=True)(state.params)
        updates, opt_state = tx.update(grads, state.opt_state, state.params)
        metrics = {
            "loss": loss,
            "gradient_norm": optax.global_norm(grads),
            "learning_rate": jnp.asarray(rate(state.step), jnp.float32),
        }
        new = TrainState(state.step + 1, optax.apply_updates(state.params, updates), opt_state, new_mems_ZBMD)
        return new, metrics

    return jax.jit(
        train_step,
        in_shardings=(plan.shardings, sharding.over_batch(mesh)),
        out_shardings=(plan.shardings, sharding.replicated(mesh)),
        donate_argnums=0,
    )


def make_eval_step(config: Config, model: XLNetLM, plan: StatePlan, mesh: Mesh) -> EvalStep:
    """params, batch, memory -> sums of loss and weights, next memory; without dropout."""

    def eval_step(params: Any, batch: DeviceBatch, mems_ZBMD: jax.Array) -> plm.Scored:
        return plm.score(model, params, batch, mems_ZBMD, config.data.reuse_len, None)

    everywhere, mems = sharding.replicated(mesh), plan.shardings.mems_ZBMD
    return jax.jit(
        eval_step,
        in_shardings=(plan.shardings.params, sharding.over_batch(mesh), mems),
        out_shardings=plm.Scored(*cast(Any, (everywhere, everywhere, mems))),
    )
