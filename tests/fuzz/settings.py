"""Settings of every command: as flags, and in a file of --config."""

import dataclasses
from collections.abc import Iterator
from importlib import import_module
from typing import Any, get_args, get_type_hints

from xlnet_jax.settings.plain import to_dict

SETTINGS = {
    "data_pipelines.tokenizer": "xlnet_jax.api.tokenizers:Train Show Encode",
    "data_pipelines.prepare": "xlnet_jax.api.preparation:PrepareSettings",
    "data_pipelines.inspect": "xlnet_jax.api.inspection:InspectSettings",
    "xlnet_jax.train": "xlnet_jax.settings.config:Config",
    "xlnet_jax.finetune": "xlnet_jax.tasks.config:FinetuneConfig",
    "xlnet_jax.convert": "xlnet_jax.api.conversion:ConvertSettings",
    "xlnet_jax.evaluate": "xlnet_jax.api.evaluation:EvaluateSettings",
    "xlnet_jax.score": "xlnet_jax.api.scores:ScoreSettings",
    "xlnet_jax.embed": "xlnet_jax.api.embedding:EmbedSettings",
    "xlnet_jax.generate": "xlnet_jax.api.generation:GenerateSettings",
    "xlnet_jax.attention": "xlnet_jax.api.attention:AttentionSettings",
    "xlnet_jax.factorize": "xlnet_jax.api.factorizations:FactorizeSettings",
    "xlnet_jax.recl": "xlnet_jax.api.effective_context:ReclSettings",
    "xlnet_jax.plan": "xlnet_jax.planning.request:PlanConfig",
    "xlnet_jax.compare": "xlnet_jax.comparison.request:CompareConfig",
}
"""Modules of the dataclasses that the commands read, and their names; with several, the first word chooses one"""
ENDLESS = ("steps", "epochs", "search_minutes", "budget")
"""Settings whose large values ask for more work than an example may take"""


def kinds_of(module: str) -> list[Any]:
    """Return the dataclasses of a command; none for `python -m xlnet_jax`, which has no settings of its own."""
    name, _, kinds = SETTINGS.get(module, "").partition(":")
    return [getattr(import_module(name), kind) for kind in kinds.split()]


def flags_of(module: str) -> list[str]:
    """Return the settings of a command as flags, without the endless ones."""
    return sorted({flag for kind in kinds_of(module) for flag in _flags(kind)})


def _flags(kind: Any, prefix: str = "--") -> Iterator[str]:
    for option in get_args(kind) or (kind,):
        for name, hint in get_type_hints(option).items():
            if dataclasses.is_dataclass(hint):
                yield from _flags(hint, f"{prefix}{name}.")
            elif name not in ENDLESS:
                yield prefix + name.replace("_", "-")


def written(kind: Any) -> dict[str, Any]:
    """Return the default of every setting that has one, but the endless ones, as a file of --config gives them."""
    given = [field for field in dataclasses.fields(kind) if not _has_default(field)]
    values = to_dict(kind(**{field.name: None for field in given}))
    return _without({*ENDLESS, *(field.name for field in given)}, values)


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return not field.default is field.default_factory is dataclasses.MISSING


def _without(names: set[str], values: dict[str, Any]) -> dict[str, Any]:
    return {k: _without(names, v) if isinstance(v, dict) else v for k, v in values.items() if k not in names}
