"""AdamW with bias correction, global-norm clipping, linear warmup and decay, all of them optax."""

from typing import Any

import jax
import optax

from xlnet_jax.config import OptimizerConfig


def learning_rate(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Rate of update t (from 0): a rise from 0 over warmup_steps, then linear, cosine or no decay."""
    end = config.decay_steps or steps
    peak, floor = config.learning_rate, config.learning_rate * config.min_lr_ratio
    span = max(end - config.warmup_steps, 1)
    after = {
        "linear": optax.linear_schedule(peak, floor, span),
        "cosine": optax.cosine_decay_schedule(peak, span, config.min_lr_ratio),
        "constant": optax.constant_schedule(peak),
    }[config.schedule]
    if not config.warmup_steps:
        return after
    rise = optax.linear_schedule(0.0, peak, config.warmup_steps)
    return optax.join_schedules([rise, after], [config.warmup_steps])


def make_optimizer(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """Clip by the global norm, then AdamW; see `decayed` for what weight decay leaves alone."""
    clip = optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity()
    adamw = optax.adamw(
        learning_rate(config, steps),
        config.beta1,
        config.beta2,
        config.eps,
        weight_decay=config.weight_decay,
        mask=decayed,
    )
    return optax.chain(clip, adamw)


def decayed(params: Any) -> Any:
    """True for what weight decay pulls to zero: all but biases and normalisation."""

    def by_name(path: tuple[Any, ...], _: Any) -> bool:
        name = path[-1].key if not hasattr(path[-1], "name") else path[-2].key
        return name not in ("scale", "bias", "biases", "output_bias")

    return jax.tree_util.tree_map_with_path(by_name, params)
