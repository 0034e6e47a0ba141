"""The checkpoints in a folder, and what is damaged in them. Every command that reads a run asks here."""

from collections.abc import Iterable
from pathlib import Path

from etils import epath

from xlnet_jax.errors import InputError
from xlnet_jax.storage.files import in_bucket
from xlnet_jax.storage.reading import NAME as CHECKSUMS
from xlnet_jax.storage.reading import find_damage, read_json

PARAMS, CONFIG, TOKENIZER, MEMORY = "params", Path("config") / "metadata", "tokenizer", "mems"
RESULTS = "results.json"  # of a finished finetuning run
WEIGHTS = (PARAMS, CONFIG.parts[0], TOKENIZER)
"""Parts of a checkpoint that are read by all commands except a resumed run"""
STATE = (*WEIGHTS, "optimizer", "guard", "data")
"""Parts that a run needs to resume, without the memory, which only the newest checkpoint has"""
LAST_GOOD = "last-good"
"""Name in a workdir that stands for its newest checkpoint without damage"""
UNVERIFIED = f"has no {CHECKSUMS}, so damage in it may go unnoticed"


def step_of(folder: epath.PathLike) -> int | None:
    """Return the step that the name of a checkpoint's folder says, as Orbax reads it; None for any other name."""
    name = epath.Path(folder).name
    return int(name) if name.isascii() and name.isdigit() and str(int(name)) == name else None


def list_checkpoints(folder: epath.PathLike) -> dict[int, epath.Path]:
    """Return the checkpoints in a folder by step, oldest first, damaged ones too: the folders whose names are steps
    and, in a bucket, whose marker says that they are complete."""
    folder = epath.Path(folder)
    entries = list(folder.iterdir()) if folder.is_dir() else []
    found = {step: path for path in entries if (step := step_of(path)) is not None and path.is_dir()}
    if in_bucket(folder):  # on a disk, a checkpoint is renamed when it is complete
        found = {step: path for step, path in found.items() if (path / "commit_success.txt").exists()}
    return dict(sorted(found.items()))


def has_weights(checkpoint: epath.Path) -> bool:
    """Return True if the weights are there, damaged or not."""
    return in_bucket(checkpoint) or (checkpoint / PARAMS).is_dir()


def last_good(folder: epath.PathLike) -> epath.Path | None:
    """Return the newest checkpoint in a folder whose weights, settings and tokenizer are not damaged; None if there is
    none."""
    return next((path for path in reversed(list_checkpoints(folder).values()) if not damage_of(path)), None)


def damage_of(checkpoint: epath.PathLike, parts: Iterable[str] = WEIGHTS) -> str | None:
    """Return a line about the first damage in these parts of a checkpoint, or None. Reads all their files.

    A converted checkpoint may have no tokenizer. Without checksums.json (`UNVERIFIED`) only missing parts and settings
    that are no JSON are found.
    """
    checkpoint, parts = epath.Path(checkpoint), tuple(parts)
    if in_bucket(checkpoint):  # which checks its own objects
        return None
    if missing := next((part for part in parts if part != TOKENIZER and not (checkpoint / part).exists()), None):
        return f"{missing} is missing"
    try:
        read_json(checkpoint / CONFIG)
    except InputError as damage:
        return str(damage)
    return find_damage(Path(checkpoint), parts)


def is_verified(checkpoint: epath.PathLike) -> bool:
    """Return True if `damage_of` finds all damage. A bucket checks its own objects."""
    return in_bucket(checkpoint) or (epath.Path(checkpoint) / CHECKSUMS).exists()
