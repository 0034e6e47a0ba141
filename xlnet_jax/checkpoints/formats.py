"""Loading a checkpoint of any format, recognised from its files, and saving in any."""

import dataclasses
import errno
import os
from pathlib import Path
from typing import Literal, get_args

import jax
import numpy as np

from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.checkpoints import native
from xlnet_jax.checkpoints.pretrained import Pretrained, assemble, check_given, check_params
from xlnet_jax.errors import InputError
from xlnet_jax.interop import hf_files, tf1_files
from xlnet_jax.settings.rules import validate_network
from xlnet_jax.storage.files import demand_space, full_disk_as_os_error
from xlnet_jax.storage.folders import complete_folder

_NOT_A_PLACE = (errno.EEXIST, errno.ENOTDIR, errno.ENOENT, errno.ENAMETOOLONG, errno.EINVAL)
Format = Literal["native", "tf1", "hf"]
Activation = Literal["gelu", "gelu_erf", "relu"]
_LOOKED_FOR = (
    f"params/ or checkpoints/ of this project, *.index of TensorFlow 1, {hf_files.SAFETENSORS} or {hf_files.TORCH} of "
    "Hugging Face"
)


def recognise(source: Path) -> Format:
    """InputError, with what was looked for, where there is no checkpoint."""
    if source.is_dir():
        if native.find(source):
            return "native"
        if tf1_files.recognised(source):
            return "tf1"
        if hf_files.recognised(source):
            return "hf"
        raise InputError(f"no checkpoint in {source}: looked for {_LOOKED_FOR}")
    if source.with_name(source.name.removesuffix(".index") + ".index").exists():
        return "tf1"
    raise InputError(f"{source}: no such folder, nor the prefix of a TensorFlow 1 checkpoint")


def load(path: str | Path, *, partial: bool = False, activation: Activation | None = None) -> Pretrained:
    """A checkpoint of this project, of the 2019 code, or of Hugging Face. Arrays stay on the host.

    partial: take what fits where something is missing, unknown or of another shape; `notes` name it. activation: in
    place of what the configuration says. Raises InputError.
    """
    source = Path(path)
    kind = recognise(source)
    if kind == "native":
        folder = native.find(source)
        assert folder is not None
        loaded = native.read(folder)
    else:
        found = tf1_files.read(source) if kind == "tf1" else hf_files.read(source)
        loaded = assemble(found, str(source), partial)
    if activation:
        loaded = dataclasses.replace(loaded, model=dataclasses.replace(loaded.model, activation=activation))
        validate_network(loaded.model, loaded.head, str(source))
    return loaded


def load_with_tokenizer(path: str | Path, tokenizer: str | None) -> Pretrained:
    """A checkpoint, and a tokenizer for one that came without: a folder or a .model file. InputError where it has
    another, or where they do not belong together."""
    loaded = load(path)
    if tokenizer is None:
        return loaded
    given = Tokenizer.load(tokenizer)
    check_given(given, loaded, f"{path} with --tokenizer {tokenizer}")
    if loaded.tokenizer and loaded.tokenizer.sha256 != given.sha256:
        raise InputError(f"--tokenizer {tokenizer} is not the one that came with {path}: leave it out")
    return dataclasses.replace(loaded, tokenizer=given)


def save(pretrained: Pretrained, path: str | Path, to: Format = "native") -> list[str]:
    """Writes a new folder, complete or not at all. Returns what its reader should know. Raises InputError where the
    format cannot hold the network, or the folder exists."""
    target = Path(path)
    if to not in get_args(Format):
        raise InputError(f"format {to} is none of {', '.join(get_args(Format))}")
    demand_new(target)
    validate_network(pretrained.model, pretrained.head, "the network")
    check_params(pretrained, "the network")
    write = {"native": native.write, "tf1": tf1_files.write, "hf": hf_files.write}[to]
    try:
        with full_disk_as_os_error(target.parent), complete_folder(target) as made:
            partial = Path(made)
            demand_space(partial, sum(np.asarray(a).nbytes for a in jax.tree.leaves(pretrained.params)))
            return write(pretrained, partial)
    except OSError as error:
        if error.errno not in _NOT_A_PLACE:
            raise
        raise InputError(f"{target} cannot be made a folder: {error.strerror}") from None


def demand_new(target: Path) -> None:
    """InputError where something stands there already."""
    if os.path.lexists(target):
        raise InputError(f"{target} exists: name a folder that does not")
