"""FLOPs of one training step of a run, whatever its objective."""

from xlnet_jax.costs import flops
from xlnet_jax.costs.flops import MultiplyAdds
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.settings.config import Config


def multiply_adds(config: Config) -> dict[str, MultiplyAdds]:
    """Return the multiply-adds of one step by part of the network, over all layers and the global batch."""
    return objective_named(config.objective).multiply_adds(config)


def step_flops(config: Config) -> int:
    """Return the FLOPs of one step, two a multiply-add: what the model demands, and what utilisation (MFU) is a share
    of. What remat computes again is not in it."""
    return flops.total(multiply_adds(config))


def recomputed_flops(config: Config) -> int:
    """Return the FLOPs that remat adds to a step: with `step_flops`, what the hardware does (HFU)."""
    return flops.recomputed(multiply_adds(config), config.model.remat)
