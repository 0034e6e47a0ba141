"""Checkpoints of every format: recognized by their files, loaded as a `Pretrained`, and saved in any format.

To add a format, write a module in interop/ with its table of weights and functions that read and write its files, and
add it to `_FORMATS`.
"""

import contextlib
import dataclasses
import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.checkpoints import native
from xlnet_jax.checkpoints.pretrained import Pretrained, check_given, check_params
from xlnet_jax.errors import InputError
from xlnet_jax.interop import hf_files, tf1
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.settings.hints import check_fields
from xlnet_jax.settings.rules import validate_network
from xlnet_jax.storage import hub
from xlnet_jax.storage.files import disk_errors_as_os_error, require_on_disk, require_space, require_weights_on_disk
from xlnet_jax.storage.outputs import complete_folder

Format = Literal["native", "tf1", "hf"]
Activation = Literal["gelu", "gelu_erf", "relu"]

_FORMATS: dict[Format, Any] = {"native": native, "tf1": tf1, "hf": hf_files}
"""Modules by format, in the order of the search. Each has `is_checkpoint`, `read` (of other projects also a part of
the weights), `write`, and FILES, which describes the files that identify the format."""


def locate(path: str | Path) -> Path:
    """Return the folder or prefix of a checkpoint on this machine; download a model of the Hugging Face Hub.

    A str that is not a path on this machine may be a model's name (storage/hub.py); a Path is always a path. Raises
    InputError if a model cannot be downloaded, and for a path in a bucket.
    """
    require_weights_on_disk(path)
    if hub.is_bundled(path):
        return hub.bundled_folder(str(path))
    return hf_files.fetch(str(path)) if is_remote(path) else Path(path)


def is_remote(path: str | Path) -> bool:
    """Return True for the name of a model on the Hugging Face Hub that is neither a path nor a prefix here."""
    return hub.is_remote(path) and not tf1.is_checkpoint(Path(path)) and not native.is_last_good(path)


def recognize(source: Path) -> Format:
    """Return the format of a folder, or of the prefix of a TensorFlow 1 checkpoint. Raises InputError, which says what
    was looked for, if there is no checkpoint."""
    for name, form in _FORMATS.items():
        if form.is_checkpoint(source):
            return name
    if source.is_dir():
        raise InputError(f"no checkpoint in {source}: looked for {', '.join(form.FILES for form in _FORMATS.values())}")
    beside = [str(folder) for folder in source.parent.glob("*/")] if source.parent.is_dir() else []
    near = difflib.get_close_matches(str(source), beside, 1)
    raise InputError(
        f"{source}: no such folder, nor a TensorFlow 1 checkpoint with this prefix, nor {hub.BUNDLED[0]}, which comes "
        f"with this package, nor the name of a model on the Hugging Face Hub (OWNER/NAME, or a short one such as "
        f"xlnet-base-cased)"
        f"{f'; did you mean {near[0]}?' if near else hub.suggestion(source.name)}"
    )


def load(path: str | Path, *, partial: bool = False, activation: Activation | None = None) -> Pretrained:
    """Load a checkpoint of this project, of the 2019 code, or of Hugging Face. Arrays stay on the host.

    path: folder, prefix of a TensorFlow 1 checkpoint, "tiny", which comes with the package, or the name of a model on
    the Hugging Face Hub, such as "xlnet/xlnet-base-cased", "xlnet-base-cased" or "owner/name@revision"; an existing
    path has priority. partial: load the parameters that fit even if others are missing, unknown or of another shape;
    `notes` names those. activation: replaces the one in the configuration. Raises InputError on files that are damaged,
    contradict each other, or hold something unsupported.
    """
    source = locate(path)
    form = recognize(source)
    loaded: Pretrained = native.read(source) if form == "native" else _FORMATS[form].read(source, partial)
    if activation:
        loaded = dataclasses.replace(loaded, model=dataclasses.replace(loaded.model, activation=activation))
        validate_network(loaded.model, loaded.head, str(source))
    return loaded


def load_with_tokenizer(path: str | Path, tokenizer: str | None) -> Pretrained:
    """Load a checkpoint; if it has no tokenizer, use this one (a folder or a .model file).

    Raises InputError if the checkpoint has another tokenizer, or a vocabulary of another size.
    """
    loaded = load(path)
    if tokenizer is None:
        return loaded
    given = Tokenizer.load(tokenizer)
    check_given(given, loaded, f"{path} with `tokenizer` {tokenizer}")
    if loaded.tokenizer and loaded.tokenizer.sha256 != given.sha256:
        raise InputError("tokenizer", tokenizer, f"differs from the tokenizer of {path}: leave it out")
    return dataclasses.replace(loaded, tokenizer=given)


def save(pretrained: Pretrained, path: str | Path, to: Format = "native") -> list[str]:
    """Write a new folder, complete or not at all. Return notes on what the format does not hold.

    Raises InputError if the format cannot hold the network, or the folder exists.
    """
    with new_folder(path) as folder:
        return write(pretrained, folder, to)


@contextlib.contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """Yield an empty folder on a disk, which becomes `path` when the body succeeds (`outputs.complete_folder`)."""
    require_on_disk(path)
    with disk_errors_as_os_error(Path(path).parent), complete_folder(path) as folder:
        yield Path(folder)


def write(pretrained: Pretrained, folder: Path, to: Format) -> list[str]:
    """Write into an empty folder; otherwise as `save`."""
    if to not in _FORMATS:
        raise InputError(f"format {to} does not exist: give one of {', '.join(_FORMATS)}")
    check_fields(pretrained, Pretrained, "pretrained")
    objective_named(pretrained.objective, "`pretrained.objective`")
    validate_network(pretrained.model, pretrained.head, "the network")
    check_params(pretrained, "the network")
    pretrained = dataclasses.replace(pretrained, params=jax.tree.map(np.asarray, pretrained.params))
    require_space(folder, sum(a.nbytes for a in jax.tree.leaves(pretrained.params)))
    notes: list[str] = _FORMATS[to].write(pretrained, folder)
    return notes
