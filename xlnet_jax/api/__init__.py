"""The functions that Python code calls. Each command parses its settings, calls one of these functions and prints.

A module of this package is named after its subject. It holds a function and, where a command has settings, the frozen
dataclass that the function takes: the docstrings of its fields are the text of --help. Runs have rooms of their own,
and their settings stand there: settings/config.py (pretrain), tasks/config.py (finetune), planning/request.py,
comparison/request.py. No settings stand in the module of a command.

Names are resolved when they are used, and functions import jax, flax and TensorFlow when they are called: importing a
module of this package loads none of them, so that --help and mistakes on the command line answer at once.
"""

from importlib import import_module
from typing import Any

PUBLIC = {
    "AttentionSettings": "xlnet_jax.api.attention",
    "Config": "xlnet_jax.settings.config",
    "ConvertSettings": "xlnet_jax.api.conversion",
    "DataConfig": "xlnet_jax.settings.config",
    "EmbedSettings": "xlnet_jax.api.embedding",
    "EvaluateSettings": "xlnet_jax.api.evaluation",
    "FinetuneConfig": "xlnet_jax.tasks.config",
    "GenerateSettings": "xlnet_jax.api.generation",
    "Generator": "xlnet_jax.inference.generation",
    "InputError": "xlnet_jax.errors",
    "InspectSettings": "xlnet_jax.api.inspection",
    "Model": "xlnet_jax.tasks.model",
    "ModelConfig": "xlnet_jax.settings.config",
    "Prediction": "xlnet_jax.tasks.base",
    "PrepareSettings": "xlnet_jax.api.preparation",
    "Pretrained": "xlnet_jax.checkpoints.pretrained",
    "ReclSettings": "xlnet_jax.api.effective_context",
    "Sampling": "xlnet_jax.inference.generation",
    "ScoreSettings": "xlnet_jax.api.scores",
    "XLNetLM": "xlnet_jax.models.xlnet",
    "attention_weights": "xlnet_jax.inference.attention_weights",
    "batch_source": "xlnet_jax.api.batches",
    "convert": "xlnet_jax.api.conversion",
    "draw_attention": "xlnet_jax.api.attention",
    "embed_files": "xlnet_jax.api.embedding",
    "embed_texts": "xlnet_jax.inference.embedding",
    "empty_memory": "xlnet_jax.objectives.language_model",
    "evaluate": "xlnet_jax.api.evaluation",
    "export": "xlnet_jax.tasks.exporting",
    "factorize": "xlnet_jax.inference.factorization",
    "fill_in": "xlnet_jax.inference.fill_in",
    "finetune": "xlnet_jax.api.runs",
    "generate": "xlnet_jax.api.generation",
    "generate_texts": "xlnet_jax.inference.texts",
    "grow": "xlnet_jax.api.generation",
    "grow_text": "xlnet_jax.inference.texts",
    "initial_params": "xlnet_jax.interop.weights",
    "inputs_of": "xlnet_jax.objectives.language_model",
    "inspect_window": "xlnet_jax.api.inspection",
    "load": "xlnet_jax.tasks.model",
    "on_device": "xlnet_jax.checkpoints.pretrained",
    "predict": "xlnet_jax.tasks.model",
    "predict_files": "xlnet_jax.api.runs",
    "prepare_corpus": "xlnet_jax.api.preparation",
    "preset": "xlnet_jax.api.runs",
    "pretrain": "xlnet_jax.training.pretrain",
    "recl": "xlnet_jax.api.effective_context",
    "save": "xlnet_jax.checkpoints.formats",
    "score_files": "xlnet_jax.api.scores",
    "score_texts": "xlnet_jax.inference.scoring",
}


def __getattr__(name: str) -> Any:
    if name in PUBLIC:
        return getattr(import_module(PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(PUBLIC)}")


def __dir__() -> list[str]:
    return list(PUBLIC)
