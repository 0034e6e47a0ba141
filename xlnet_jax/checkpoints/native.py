"""Checkpoints of this project: from training (training/checkpoint.py) and from conversion, without an optimizer; and
the pretraining run of a checkpoint.

params/ by Orbax · config/metadata, JSON with the format version, `model` and `objective` · tokenizer/ ·
checksums.json · thresholds.json, tuned on the evaluation data of a finetuning run
"""

import dataclasses
import logging
import math
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from etils import epath

from data_pipelines.corpus import Corpus, is_corpus
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.checkpoints.listing import (
    CONFIG,
    LAST_GOOD,
    PARAMS,
    RESULTS,
    STATE,
    TOKENIZER,
    UNVERIFIED,
    WEIGHTS,
    damage_of,
    has_weights,
    is_verified,
    last_good,
    list_checkpoints,
    step_of,
)
from xlnet_jax.checkpoints.pretrained import Pretrained, check_params, check_tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.interop.contents import LABEL_THRESHOLD, NULL_THRESHOLD, Thresholds, read_thresholds
from xlnet_jax.interop.hf_settings import keep_settings
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.settings.config import Config, HeadConfig, ModelConfig
from xlnet_jax.settings.fields import from_dict, over
from xlnet_jax.settings.rules import validate_network
from xlnet_jax.storage.reading import (
    Count,
    inside,
    naming_damage,
    read_json,
    read_versioned,
    require_fitting,
    require_regular_files,
    write_checksums,
    write_versioned,
)

# Silence Orbax, which logs all its work and also the errors that it raises. Other messages in absl's log stay.
logging.getLogger("absl").addFilter(lambda record: "/orbax/" not in record.pathname)

FILES = "params/ or checkpoints/ of this project"
_DENSEST = 1000  # numbers per byte at most: arrays of zeros are compressed
THRESHOLDS = "thresholds.json"


@dataclasses.dataclass(frozen=True)
class _StoredBaseline:
    answer: str = ""
    metrics: dict[str, float | None] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Results:
    """The part of results.json that is read back."""

    checkpoint: str | None = None
    metrics: dict[str, float | None] = dataclasses.field(default_factory=dict)
    baseline: _StoredBaseline | None = None


@dataclasses.dataclass(frozen=True)
class _Data:
    reuse_len: Count | None = None


@dataclasses.dataclass(frozen=True)
class _StoredSettings:
    """The part of config/metadata that every reader of a checkpoint needs."""

    model: dict[str, Any]
    objective: str
    head: dict[str, Any] | None = None
    data: _Data = _Data()
    task: str | None = None  # this and the next two: from finetuning
    qa: dict[str, Any] = dataclasses.field(default_factory=dict)
    label_threshold: float | None = None
    hugging_face: dict[str, Any] = dataclasses.field(default_factory=dict)


def find(folder: Path) -> Path | None:
    """Return the checkpoint named in results.json of a finished finetuning run, else the newest one in checkpoints/ or
    in this folder, else the folder itself; None if none of these is a checkpoint. WORKDIR/last-good is the newest one
    without damage. Raises InputError if results.json is damaged or names a path outside of the folder, or if all
    checkpoints are damaged."""
    if is_last_good(folder):
        return _last_good(folder.parent)
    results = folder / RESULTS
    if results.is_file() and (name := read_versioned(results, "results", Results).checkpoint):
        chosen = Path(inside(epath.Path(folder), name, str(results)))
        if chosen.is_dir():
            return chosen
    for parent in (folder / "checkpoints", folder):
        saved = list_checkpoints(parent)
        if any(map(has_weights, saved.values())):  # else the folder of something else
            return Path(saved[max(saved)])
    return folder if (folder / PARAMS).is_dir() else None


def is_last_good(path: str | Path) -> bool:
    """Return True for WORKDIR/last-good."""
    path = Path(path)
    return path.name == LAST_GOOD and path.parent.is_dir() and not path.exists()


def _last_good(folder: Path) -> Path:
    there = next((parent for parent in (folder / "checkpoints", folder) if list_checkpoints(parent)), folder)
    if found := last_good(there):
        return Path(found)
    lines = [f"{step}: {damage_of(path, STATE)}" for step, path in reversed(list_checkpoints(there).items())]
    raise InputError(f"no checkpoint in {there} is without damage ({'; '.join(lines) or 'there is none'})")


def is_checkpoint(source: Path) -> bool:
    """Return True for a folder in which `find` finds a checkpoint."""
    return find(source) is not None


def read(source: Path) -> Pretrained:
    """Read the checkpoint that `find` returns; arrays stay on the host. Raises InputError on files that are damaged or
    contradict each other."""
    folder = find(source) or source
    require_regular_files(folder)
    _require_sound(folder, WEIGHTS)
    settings = read_versioned(folder / CONFIG, "checkpoint", _StoredSettings)
    model = from_dict(ModelConfig, settings.model)
    head = over(HeadConfig("classification"), settings.head, "config.head.") if settings.head else None
    validate_network(model, head, str(folder / CONFIG))
    tokenizer = Tokenizer.load(folder / TOKENIZER) if (folder / TOKENIZER).is_dir() else None
    check_tokenizer(tokenizer, model, str(folder))
    notes = tuple(
        note
        for note, holds in (
            (f"no {TOKENIZER}/: the checkpoint has no tokenizer", tokenizer is None),
            (f"the checkpoint {UNVERIFIED}", not is_verified(folder)),
        )
        if holds
    )
    params = _params(folder / PARAMS)
    objective = objective_named(settings.objective, f"{folder / CONFIG}: objective").name
    reuse_len = settings.data.reuse_len
    thresholds = _thresholds(folder, settings)
    extra = keep_settings(settings.hugging_face)
    loaded = Pretrained(model, params, objective, head, tokenizer, reuse_len, extra, notes, thresholds)
    check_params(loaded, str(folder))
    return loaded


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of the checkpoint in this folder, as nested dictionaries. Raises InputError if they are
    damaged."""
    _require_sound(folder, CONFIG.parts[:1])
    return read_versioned(folder / CONFIG, "checkpoint")


def _require_sound(folder: Path, parts: Iterable[str]) -> None:
    """Raise InputError if these parts of a checkpoint are damaged. It names the newest checkpoint beside it that is not
    damaged."""
    if damage := damage_of(folder, parts):
        good = last_good(folder.parent) if step_of(folder) is not None else None
        raise InputError(f"{folder} is damaged: {damage}" + (f"; {good} is not: give that" if good else ""))


def write(pretrained: Pretrained, folder: Path) -> list[str]:
    """Write a checkpoint into an empty folder. Return notes on what was not written: none."""
    import orbax.checkpoint.experimental.v1 as ocp  # takes long, and other formats do not need it

    p = pretrained
    settings = {
        "model": dataclasses.asdict(p.model),
        "objective": p.objective,
        "head": dataclasses.asdict(p.head) if p.head else None,
        "data": {"reuse_len": p.reuse_len},
        "hugging_face": dict(p.extra),
    }
    inner = folder.absolute() / "written"  # Orbax puts its temporary folder beside this one
    ocp.save(inner, p.params, checkpointable_name=PARAMS)
    for item in inner.iterdir():
        item.rename(folder / item.name)
    inner.rmdir()
    (folder / CONFIG).parent.mkdir()
    write_versioned(folder / CONFIG, "checkpoint", settings)
    if p.tokenizer:
        p.tokenizer.save(folder / TOKENIZER)
    if p.thresholds:
        write_thresholds(folder, p.thresholds)
    write_checksums(folder)
    return []


def write_thresholds(folder: epath.PathLike, thresholds: Thresholds) -> None:
    """Write thresholds.json into the folder of a checkpoint."""
    write_versioned(epath.Path(folder) / THRESHOLDS, "thresholds", thresholds)


def _thresholds(folder: Path, settings: _StoredSettings) -> Thresholds:
    """Return the thresholds in the finetuning settings, replaced by tuned ones."""
    given: dict[str, Any] = {}
    if settings.task == "squad2":
        given = {NULL_THRESHOLD: settings.qa.get("null_threshold")}
    elif settings.task == "multilabel":
        given = {LABEL_THRESHOLD: settings.label_threshold}
    file = folder / THRESHOLDS
    tuned = read_versioned(file, "thresholds") if file.exists() else {}
    with naming_damage(file if tuned else folder / CONFIG):
        return read_thresholds({**given, **tuned})


def _params(folder: Path) -> dict[str, Any]:
    import orbax.checkpoint.experimental.v1 as ocp

    for name in (".zarray", "zarr.json"):  # TensorStore's parser overflows its stack on deeply nested JSON
        for file in folder.rglob(name):
            read_json(file)
    with warnings.catch_warnings(), naming_damage(folder):
        # Orbax leaves coroutines unfinished if a file is damaged.
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        tree = ocp.metadata(folder.parent.absolute(), folder.name).metadata
        announced = sum(map(_most_numbers, jax.tree.leaves(tree)))
        require_fitting(announced // _DENSEST, require_regular_files(folder), folder)
        # NumPy arrays need no device memory.
        as_numpy = jax.tree.map(lambda _: np.ndarray, tree)
        return ocp.load(folder.parent.absolute(), as_numpy, checkpointable_name=folder.name)


def _most_numbers(leaf: Any) -> int:
    """Return for how many numbers reading an array takes memory: at least a whole chunk."""
    chunks = (storage.chunk_shape, storage.write_shape) if (storage := leaf.storage_metadata) else ()
    return max(math.prod(shape or ()) for shape in (leaf.shape, *chunks))


@dataclasses.dataclass(frozen=True)
class PretrainingRun:
    """Pretraining run of a checkpoint."""

    folder: Path
    config: Config

    @classmethod
    def of(cls, checkpoint: str | Path) -> "PretrainingRun | None":
        """Return the run of a checkpoint; None for a converted checkpoint or one of another project."""
        found = find(Path(checkpoint))
        settings = read_settings(found) if found else {}
        return cls(found.parent.parent, from_dict(Config, settings)) if found and "preset" in settings else None

    def corpus(self) -> Corpus | None:
        """Return the training text of the run, with its held-out part; None if it is gone."""
        beside = self.folder / "corpus"
        there = next((name for name in (beside, *(self.config.corpus or ())) if is_corpus(name)), None)
        return Corpus(there) if there else None


def trained_mem_len(pretrained: Pretrained, run: PretrainingRun | None) -> int:
    """Return the memory length of training, in positions. If the checkpoint does not say, as most of Hugging Face's,
    return the paper's; without relative positions, or for masked diffusion, return 0."""
    objective = objective_named(pretrained.objective)
    if pretrained.model.positions != "relative" or (objective.order == "any" and objective.filling.replaces):
        return 0
    return pretrained.model.mem_len if run else pretrained.model.mem_len or ModelConfig().mem_len
