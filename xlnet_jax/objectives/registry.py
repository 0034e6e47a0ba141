"""Every objective, a line each, and the FLOPs of one training step by it."""

import difflib

from xlnet_jax.costs import MultiplyAdds, remat_flops, total_flops
from xlnet_jax.errors import InputError
from xlnet_jax.objectives.clm import CLM
from xlnet_jax.objectives.mlm import MLM
from xlnet_jax.objectives.plm import PLM
from xlnet_jax.objectives.prefix import PREFIX
from xlnet_jax.objectives.record import Record
from xlnet_jax.objectives.rtd import RTD
from xlnet_jax.settings.config import Config

OBJECTIVES: tuple[Record, ...] = (
    PLM,
    MLM,
    CLM,
    RTD,
    PREFIX,
)

_BY_NAME = {record.name: record for record in OBJECTIVES}


def objective_named(name: str, where: str = "--objective") -> Record:
    """Return the objective of this name. Raises InputError, which begins with `where`, where there is none."""
    if name not in _BY_NAME:
        near = difflib.get_close_matches(name, _BY_NAME, 1)
        hint = f": did you mean {near[0]}?" if near else ""
        raise InputError(f"{where} {name}: there is {', '.join(_BY_NAME)}{hint}")
    return _BY_NAME[name]


def multiply_adds(config: Config) -> dict[str, MultiplyAdds]:
    """Return the multiply-adds of one step by part of the network, over all layers and the global batch."""
    return objective_named(config.objective).multiply_adds(config)


def step_flops(config: Config) -> int:
    """Return the FLOPs of one step, two a multiply-add: what the model demands, and what utilisation (MFU) is a share
    of. What remat computes again is not in it."""
    return total_flops(multiply_adds(config))


def recomputed_flops(config: Config) -> int:
    """Return the FLOPs that remat adds to a step: with `step_flops`, what the hardware does (HFU)."""
    return remat_flops(multiply_adds(config), config.model.remat)
