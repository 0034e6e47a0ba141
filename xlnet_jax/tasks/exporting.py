"""Export the forward pass of a finetuned model as one file that needs only jax to run (`jax.export`: StableHLO).

model.stablehlo   function of (weights, input_ids, attention_mask, segment_ids), for any batch size
weights.npz       its first argument: array by name
export.json       format version, task, labels, shapes of inputs and outputs
tokenizer/        tokenizer for the texts
"""

from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractDevice, AbstractMesh

from xlnet_jax.checkpoints.formats import new_folder
from xlnet_jax.errors import InputError
from xlnet_jax.interop.weights import flatten, nest
from xlnet_jax.models.heads import build_model
from xlnet_jax.models.inputs import text_inputs
from xlnet_jax.settings.fields import with_values
from xlnet_jax.storage.files import require_space
from xlnet_jax.storage.reading import write_versioned
from xlnet_jax.tasks.defaults import make_task
from xlnet_jax.tasks.model import Model

PLATFORMS = ("cpu", "cuda", "tpu")
INPUTS = ("input_ids", "attention_mask", "segment_ids")
HEADS = ("classification", "regression", "multilabel", "token_classification")


def export(model: Model, path: str | Path, *, seq_len: int | None = None) -> Path:
    """Write the forward pass of a finetuned model into a new folder, complete or not at all; return the folder.

    The function takes any number of rows of seq_len tokens (None = as in finetuning), padded on the left as by
    `Model.tokenize`. It returns log_probs, float32 [B, C]; for regression scores [B]; for multilabel probabilities
    [B, C]; for token classification log_probs [B, L, C] of every token. It is lowered for CPU, CUDA and TPU, with plain
    attention.

    Raises InputError for other heads, whose answers need more than a forward pass; for a checkpoint without a head; for
    rows longer than the network's positions; and if the folder exists.
    """
    with new_folder(path) as folder:
        write(model, folder, seq_len=seq_len)
    return Path(path)


def write(model: Model, folder: Path, *, seq_len: int | None = None) -> None:
    """Write the forward pass into an empty folder; otherwise as `export`."""
    config = model.settings(seq_len=seq_len)
    head = config.head
    if head.task not in HEADS:
        raise InputError(f"a head for {head.task} cannot be exported: {', '.join(HEADS)} can")
    length = config.data.seq_len
    config = with_values(config, {"model": {"attention": "plain", "remat": "none"}})
    task, network = make_task(config), build_model(config.model, head)

    def forward(weights: dict[str, Any], ids_BL: jax.Array, mask_BL: jax.Array, segments_BL: jax.Array) -> Any:
        params = nest(weights)
        if head.task == "token_classification":
            logits_BLC: Any = network.apply({"params": params}, text_inputs(ids_BL, mask_BL, segments_BL))
            return {"log_probs": jax.nn.log_softmax(logits_BLC)}
        return task.predict(network, params, dict(zip(INPUTS, (ids_BL, mask_BL, segments_BL), strict=True)))

    weights: dict[str, Any] = {name: np.asarray(array) for name, array in flatten(model.params).items()}
    shapes = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in weights.items()}
    rows = jax.ShapeDtypeStruct(jax.export.symbolic_shape(f"batch, {length}"), jnp.int32)
    # What is traced for a CPU alone would be slow on the other platforms.
    any_device = AbstractMesh((), (), abstract_device=AbstractDevice("any", None, "any"))
    with jax.sharding.use_abstract_mesh(any_device):
        exported = jax.export.export(jax.jit(forward), platforms=PLATFORMS)(shapes, rows, rows, rows)
    outputs = jax.tree.unflatten(exported.out_tree, exported.out_avals)
    about = {
        "task": config.task,
        "head": head.task,
        "labels": head.labels,
        **({"threshold": config.label_threshold} if head.task == "multilabel" else {}),
        "inputs": {name: ["batch", length] for name in INPUTS},
        "outputs": {name: list(map(str, array.shape)) for name, array in outputs.items()},
        "platforms": PLATFORMS,
        "jax": jax.__version__,
    }
    require_space(folder, sum(array.nbytes for array in weights.values()))
    (folder / "model.stablehlo").write_bytes(exported.serialize())
    np.savez(folder / "weights.npz", **weights)
    write_versioned(folder / "export.json", "export", about)
    if model.tokenizer:
        model.tokenizer.save(folder / "tokenizer")
