"""XLNet pretraining in JAX: permutation language modelling, two-stream attention, Transformer-XL memory.

The public names are resolved when they are used: importing this package loads neither jax nor TensorFlow.
"""

from importlib import import_module
from typing import Any

_PUBLIC = {
    "Config": "xlnet_jax.settings.config",
    "InputError": "xlnet_jax.errors",
    "ModelConfig": "xlnet_jax.settings.config",
    "XLNetLM": "xlnet_jax.models.xlnet",
    "embed_texts": "xlnet_jax.inference.embedding",
    "load": "xlnet_jax.checkpoints.formats",
    "pretrain": "xlnet_jax.training.pretrain",
    "save": "xlnet_jax.checkpoints.formats",
    "score_texts": "xlnet_jax.inference.scoring",
}
__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(_PUBLIC)}")


def __dir__() -> list[str]:
    return __all__
