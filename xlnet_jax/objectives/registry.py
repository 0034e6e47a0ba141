"""Every objective: a line each."""

import difflib

from xlnet_jax.errors import InputError
from xlnet_jax.objectives.clm import CLM
from xlnet_jax.objectives.mlm import MLM
from xlnet_jax.objectives.plm import PLM
from xlnet_jax.objectives.prefix import PREFIX
from xlnet_jax.objectives.record import Record
from xlnet_jax.objectives.rtd import RTD

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
