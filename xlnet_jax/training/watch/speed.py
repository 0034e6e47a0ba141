"""Speed of a run: tokens a second, and the share of the chips' peak FLOPs that the model needs (MFU)."""

import jax

from xlnet_jax.costs.chips import peak_flops
from xlnet_jax.objectives.flops import step_flops
from xlnet_jax.settings.config import Config


def speed(config: Config, seconds: float) -> dict[str, float]:
    """Return seconds_per_step, tokens_per_second and, where the peak of the devices is known, mfu, for a step in
    `seconds`."""
    numbers = {
        "seconds_per_step": seconds,
        "tokens_per_second": config.data.batch_size * config.data.seq_len / seconds,
    }
    if peak := peak_flops(jax.devices()[0].device_kind):
        numbers["mfu"] = step_flops(config) / (seconds * peak * jax.device_count())
    return numbers
