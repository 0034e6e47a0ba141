"""This project's checkpoints: of training (training/checkpoint.py), and of conversion, which hold no optimizer.

params/ by Orbax · config/metadata, JSON with at least `model` · tokenizer/ · checksums.json
"""

import dataclasses
import logging
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.checksums import find_damage, write_checksums
from xlnet_jax.config import HeadConfig, InputError, ModelConfig
from xlnet_jax.interop.json_file import read_json
from xlnet_jax.interop.pretrained import Pretrained, check_tokenizer
from xlnet_jax.interop.weights import abstract_params, flatten

# Orbax warns of metadata that only a folder of many steps has.
logging.getLogger("absl").setLevel(logging.CRITICAL)

PARAMS, CONFIG, TOKENIZER = "params", Path("config") / "metadata", "tokenizer"


def find(folder: Path) -> Path | None:
    """The checkpoint in a run's folder (its newest), in its checkpoints/, or the folder itself; None where none is."""
    for parent in (folder / "checkpoints", folder):
        steps = [p for p in parent.iterdir() if p.name.isdigit() and (p / PARAMS).is_dir()] if parent.is_dir() else []
        if steps:
            return max(steps, key=lambda p: int(p.name))
    return folder if (folder / PARAMS).is_dir() else None


def read(folder: Path) -> Pretrained:
    """The checkpoint in this folder, on the host. InputError on files that are damaged or contradict each other."""
    if damage := find_damage(folder, {PARAMS, CONFIG.parts[0], TOKENIZER}):
        raise InputError(f"{folder} is damaged: {damage}")
    settings = read_json(folder / CONFIG)
    try:
        model = ModelConfig(**settings["model"])
        head = _head(settings.get("head"))
    except (KeyError, TypeError) as error:
        raise InputError(f"{folder / CONFIG} is not the settings of a checkpoint: {error}") from None
    params = _params(folder / PARAMS)
    _check_shapes(params, abstract_params(model, head), head is not None, folder)
    tokenizer = Tokenizer.load(folder / TOKENIZER) if (folder / TOKENIZER).is_dir() else None
    check_tokenizer(tokenizer, model, str(folder))
    notes = () if tokenizer else (f"no {TOKENIZER}/: there is no tokenizer",)
    return Pretrained(model, params, head, tokenizer, settings.get("data", {}).get("reuse_len"), notes)


def write(pretrained: Pretrained, folder: Path) -> list[str]:
    """Fills an empty folder."""
    p = pretrained
    settings = {
        "model": dataclasses.asdict(p.model),
        "head": dataclasses.asdict(p.head) if p.head else None,
        "data": {"reuse_len": p.reuse_len},
    }
    checkpointer = ocp.Checkpointer(ocp.CompositeCheckpointHandler(PARAMS, "config"))
    items = ocp.args.Composite(params=ocp.args.StandardSave(p.params), config=ocp.args.JsonSave(settings))
    checkpointer.save(folder.absolute(), args=items, force=True)
    checkpointer.close()
    if p.tokenizer:
        p.tokenizer.save(folder / TOKENIZER)
    write_checksums(folder)
    return []


def _params(folder: Path) -> dict[str, Any]:
    """As arrays of NumPy: no device is asked for memory."""
    checkpointer = ocp.PyTreeCheckpointer()
    try:
        tree = checkpointer.metadata(folder.absolute()).item_metadata.tree
        as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
        return checkpointer.restore(folder.absolute(), restore_args=as_numpy)
    except Exception as error:  # whatever is wrong with a file surfaces as any of half a dozen types
        raise InputError(f"{folder} cannot be read: {str(error).partition(chr(10))[0][:200]}") from None


def _check_shapes(
    params: dict[str, Any], shapes: dict[str, jax.ShapeDtypeStruct], has_head: bool, folder: Path
) -> None:
    flat = flatten(params)
    optional = {"backbone/mask_embedding"} if has_head else set()
    if missing := sorted(shapes.keys() - flat.keys() - optional):
        raise InputError(f"{folder} lacks {', '.join(missing)}")
    for path, value in flat.items():
        if path not in shapes or tuple(value.shape) != shapes[path].shape:
            expected = shapes[path].shape if path in shapes else "no such parameter"
            raise InputError(f"{folder}: {path} is {value.shape}, its settings say {expected}")


def _head(settings: dict[str, Any] | None) -> HeadConfig | None:
    if not settings:
        return None
    return HeadConfig(**{**settings, "labels": tuple(settings.get("labels", ()))})
