"""XLNet pretraining in JAX: permutation language modelling, two-stream attention, Transformer-XL memory.

Public names are those of `xlnet_jax.api`, resolved when they are used: importing this package loads neither jax nor
TensorFlow. Several are also names of commands: `xlnet_jax.evaluate` is the function, and `python -m xlnet_jax.evaluate`
runs the module.
"""

from xlnet_jax.storage.import_path import leave_current_folder

leave_current_folder()  # before any other import

import sys  # noqa: E402
from importlib import import_module  # noqa: E402
from types import ModuleType  # noqa: E402
from typing import Any  # noqa: E402

__version__ = "0.2.0.dev0"
"""Version of the package; setup.cfg reads it here."""


def __getattr__(name: str) -> Any:
    api = import_module("xlnet_jax.api")
    if name in api.PUBLIC:
        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(api.PUBLIC)}")


def __dir__() -> list[str]:
    return list(import_module("xlnet_jax.api").PUBLIC)


class _Package(ModuleType):
    """Package whose public functions win over command modules of the same names, which an import would set here."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and name in import_module("xlnet_jax.api").PUBLIC):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
