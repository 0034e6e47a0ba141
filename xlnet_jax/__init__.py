"""XLNet pretraining in JAX: permutation language modelling, two-stream attention, Transformer-XL memory.

Public names are those of `xlnet_jax.api`, resolved when they are used: importing this package loads neither jax nor
TensorFlow. Functions that a command is named after (`evaluate`, `finetune`, …) are found in `xlnet_jax.api` alone:
`xlnet_jax.evaluate` is the module of the command.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

__version__ = "0.2.0.dev0"
"""Version of the package; setup.cfg reads it here."""


def __getattr__(name: str) -> Any:
    api = import_module("xlnet_jax.api")
    if name in api.PUBLIC and find_spec(f"xlnet_jax.{name}") is None:
        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__dir__())}")


def __dir__() -> list[str]:
    return [name for name in import_module("xlnet_jax.api").PUBLIC if find_spec(f"xlnet_jax.{name}") is None]
