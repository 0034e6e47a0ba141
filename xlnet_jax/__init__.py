"""XLNet pretraining in JAX: permutation language modeling, two-stream attention, Transformer-XL memory.

Public names are resolved when they are used: importing this package loads neither jax nor TensorFlow. Several are also
names of commands: `xlnet_jax.evaluate` is the function, and `python -m xlnet_jax.evaluate` runs the module.
"""

__version__ = "0.1.0.dev0"
"""Version of the package; setup.cfg reads it here."""
PUBLIC = {
    "AttentionSettings": "xlnet_jax.inference.attention",
    "Callback": "xlnet_jax.training.loop",
    "Config": "xlnet_jax.settings.config",
    "ConvertSettings": "xlnet_jax.tasks.convert",
    "DataConfig": "xlnet_jax.settings.config",
    "EmbedSettings": "xlnet_jax.inference.embed",
    "EvaluateSettings": "xlnet_jax.measurement.evaluate",
    "FinetuneConfig": "xlnet_jax.tasks.config",
    "GenerateSettings": "xlnet_jax.inference.requests",
    "InputError": "xlnet_jax.errors",
    "InspectSettings": "xlnet_jax.objectives.inspect",
    "Model": "xlnet_jax.tasks.model",
    "ModelConfig": "xlnet_jax.settings.config",
    "Prediction": "xlnet_jax.tasks.task",
    "PrepareSettings": "data_pipelines.prepare.commands",
    "Pretrained": "xlnet_jax.interop.contents",
    "ReclSettings": "xlnet_jax.measurement.recl",
    "Result": "xlnet_jax.training.selection",
    "ScoreSettings": "xlnet_jax.inference.score",
    "Trackio": "xlnet_jax.training.callbacks",
    "XLNetLM": "xlnet_jax.models.heads",
    "attention_weights": "xlnet_jax.inference.attention",
    "batch_source": "xlnet_jax.objectives.registry",
    "convert": "xlnet_jax.tasks.convert",
    "draw_attention": "xlnet_jax.inference.attention",
    "embed_files": "xlnet_jax.inference.embed",
    "embed_texts": "xlnet_jax.inference.embed",
    "embed_tokens": "xlnet_jax.inference.embed",
    "empty_memory": "xlnet_jax.objectives.language_model",
    "evaluate": "xlnet_jax.measurement.evaluate",
    "examine": "xlnet_jax.tasks.doctor",
    "export": "xlnet_jax.tasks.exporting",
    "factorize": "xlnet_jax.measurement.factorize",
    "fill_in": "xlnet_jax.inference.words",
    "finetune": "xlnet_jax.tasks.finetune",
    "generate": "xlnet_jax.inference.generate",
    "initial_params": "xlnet_jax.interop.weights",
    "inputs_of": "xlnet_jax.objectives.language_model",
    "inspect_window": "xlnet_jax.objectives.inspect",
    "load": "xlnet_jax.tasks.model",
    "on_device": "xlnet_jax.checkpoints.pretrained",
    "predict": "xlnet_jax.tasks.model",
    "prepare_corpus": "data_pipelines.prepare.commands",
    "preset": "xlnet_jax.objectives.presets",
    "pretrain": "xlnet_jax.training.pretrain",
    "recl": "xlnet_jax.measurement.recl",
    "save": "xlnet_jax.checkpoints.formats",
    "score_files": "xlnet_jax.inference.score",
    "score_texts": "xlnet_jax.inference.score",
    "score_variants": "xlnet_jax.inference.variants",
}
"""Public names, and the module of each; type checkers read __init__.pyi. This module imports nothing, because before a
command begins, an import could come from the current folder (storage/import_path.py)."""


def __getattr__(name: str) -> object:
    """Return what is public under a name: a class, or a function that checks the types of its arguments."""
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(PUBLIC)}")
    from importlib import import_module
    from inspect import isfunction

    from xlnet_jax.settings.hints import check_calls

    found = getattr(import_module(PUBLIC[name]), name)
    if isfunction(found):
        found = check_calls(found)
        found.__module__, found.__qualname__ = __name__, name  # where pickle finds it
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return list(PUBLIC)
