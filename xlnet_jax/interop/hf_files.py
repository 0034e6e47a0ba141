"""Hugging Face folders: config.json, safetensors (whole or in shards) or pytorch_model.bin, and spiece.model or a
tokenizer of the library tokenizers.

Such a foreign tokenizer gets new ids here (data_pipelines/tokenizer/foreign.py): reading permutes the rows of the
embedding accordingly, and writing undoes it.
"""

import dataclasses
import json
import warnings
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - teaches NumPy bfloat16, which safetensors asks it for
import numpy as np
import safetensors
import safetensors.numpy
from etils import epath

from data_pipelines.tokenizer import MODEL_FILE, Settings, Tokenizer, read_settings
from data_pipelines.tokenizer.foreign import NEW, TOKENIZER_JSON, WORDPIECES, ForeignPieces, model_in
from data_pipelines.tokenizer.foreign import SETTINGS as FOREIGN_SETTINGS
from xlnet_jax.errors import InputError
from xlnet_jax.interop import hf_bert, hf_xlnet, safetensors_file
from xlnet_jax.interop.contents import Contents, Found
from xlnet_jax.interop.weights import flatten, left_behind, nest, to_theirs
from xlnet_jax.storage.reading import demand_regular, read_json

CONFIG, TOKENIZER_CONFIG = "config.json", "tokenizer_config.json"
SAFETENSORS, TORCH = "model.safetensors", "pytorch_model.bin"
INDEX = ".index.json"


def recognised(folder: Path) -> bool:
    """Return True for a folder with weights of transformers, by their file names."""
    return any((folder / (name + end)).exists() for name in (SAFETENSORS, TORCH) for end in ("", INDEX))


def read(folder: Path) -> Found:
    """Read a folder. Raises InputError on files that are damaged or contradict each other."""
    theirs = read_config(folder)
    if theirs.get("model_type", "xlnet") == "xlnet":
        found, (tokenizer, notes) = hf_xlnet.read(theirs, _tensors(folder), folder), _tokenizer(folder)
    else:
        found, (tokenizer, notes) = hf_bert.read(theirs, _tensors(folder), folder), _tokenizer_of_any_kind(folder)
    found = dataclasses.replace(found, tokenizer=tokenizer, notes=(*found.notes, *notes))
    return _dealt_anew(found, tokenizer.foreign, folder) if tokenizer and tokenizer.foreign else found


def read_config(folder: Path) -> dict[str, Any]:
    """Return the config.json of a folder. Raises InputError where there is none, or its network is not known here."""
    theirs = read_json(folder / CONFIG)
    model_type = theirs.get("model_type", "xlnet")
    if model_type not in ("xlnet", *hf_bert.DIALECTS):
        known = ", ".join(("xlnet", *hf_bert.DIALECTS))
        raise InputError(f"{folder / CONFIG}: model_type {model_type} is none of {known}")
    return theirs


def write(pretrained: Contents, folder: Path) -> list[str]:
    """Write a Hugging Face folder into an empty folder. Return notes on what it does not hold.

    Raises InputError on what Hugging Face cannot hold.
    """
    p, family = pretrained, _family_of(pretrained)
    if p.tokenizer and p.tokenizer.foreign:
        p = _as_dealt_there(p, p.tokenizer.foreign)
    config, table = family.to_config(p), family.weights(p)
    tensors = to_theirs(p.params, table)
    safetensors_file.write(tensors, folder / SAFETENSORS)
    config["dtype"] = p.params["backbone"]["word_embedding"].dtype.name
    (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    notes = [*family.notes_of(p), *left_behind(p.params, table)]
    return notes + (_write_tokenizer(p.tokenizer, folder, family.TOKENIZER) if p.tokenizer else [])


def can_hold(pretrained: Contents) -> bool:
    """Return True if `write` can write a network with these settings; its parameters are not read."""
    try:
        _family_of(pretrained).to_config(pretrained)
    except InputError:
        return False
    return True


def _family_of(pretrained: Contents) -> Any:
    """Return the module that knows the network. Raises InputError where its tokenizer has no place there."""
    if pretrained.model.network == "bert":
        return hf_bert
    if pretrained.tokenizer and pretrained.tokenizer.foreign:
        raise InputError(f"Hugging Face's XLNet reads a {MODEL_FILE}, and this tokenizer is none: native can hold it")
    return hf_xlnet


_BY_PIECE = ("backbone/word_embedding", "output_bias")  # whose rows are the pieces


def _dealt_anew(found: Found, foreign: ForeignPieces, folder: Path) -> Found:
    if found.model.vocab_size != foreign.their_size:
        raise InputError(
            f"{folder}: its tokenizer has {foreign.their_size:,} pieces and its weights {found.model.vocab_size:,}: "
            "they do not belong together"
        )
    names = {weight.name for weight in found.table if weight.path in _BY_PIECE}
    is_new = foreign.theirs == NEW

    def dealt(rows: np.ndarray) -> np.ndarray:
        mean = np.broadcast_to(rows.mean(0, dtype=np.float32), rows.shape[1:]).astype(rows.dtype)
        return np.where(is_new.reshape(-1, *[1] * (rows.ndim - 1)), mean, rows[foreign.theirs])

    variables = {name: dealt(a) if name in names and len(a) else a for name, a in found.variables.items()}
    model = dataclasses.replace(found.model, vocab_size=len(foreign.theirs))
    note = f"ids are dealt anew: special pieces come first, {is_new.sum()} of them new, with the mean of all rows"
    return dataclasses.replace(found, model=model, variables=variables, notes=(*found.notes, note))


def _as_dealt_there(pretrained: Contents, foreign: ForeignPieces) -> Contents:
    flat = flatten(pretrained.params)
    known = foreign.theirs != NEW
    for path in _BY_PIECE:
        if path in flat:
            rows = np.zeros((foreign.their_size, *flat[path].shape[1:]), flat[path].dtype)
            rows[foreign.theirs[known]] = np.asarray(flat[path])[known]
            flat[path] = rows
    model = dataclasses.replace(pretrained.model, vocab_size=foreign.their_size)
    return dataclasses.replace(pretrained, model=model, params=nest(flat))


def _tensors(folder: Path) -> dict[str, np.ndarray]:
    for name, load in ((SAFETENSORS, _load_safetensors), (TORCH, _load_torch)):
        if (folder / name).exists():
            return load(folder / name)
        if (folder / (name + INDEX)).exists():
            return _shards(folder, folder / (name + INDEX), load)
    raise InputError(f"{folder}: neither {SAFETENSORS} nor {TORCH}")


def _shards(folder: Path, index: Path, load: Callable[[Path], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    weight_map = _weight_map(index)
    tensors: dict[str, np.ndarray] = {}
    for shard in sorted(set(weight_map.values())):
        if not (folder / shard).exists():
            raise InputError(f"{folder}: {shard} is missing, which {index.name} names")
        held = load(folder / shard)
        if wrong := sorted(n for n in held if weight_map.get(n) != shard):
            raise InputError(f"{folder / shard} holds {', '.join(wrong)}, which {index.name} does not say")
        if wrong := sorted(n for n in weight_map if weight_map[n] == shard and n not in held):
            raise InputError(f"{folder / shard} lacks {', '.join(wrong)}, which {index.name} says it holds")
        tensors |= held
    return tensors


def shards_in(index: Path) -> list[str]:
    """Return the names of the files that an index of shards names. Raises InputError where it is none."""
    return sorted(set(_weight_map(index).values()))


def _weight_map(index: Path) -> dict[str, str]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{index} has no weight_map")
    if not all(isinstance(shard, str) and shard and Path(shard).name == shard for shard in weight_map.values()):
        raise InputError(f"{index}: a shard in its weight_map is not the name of a file")
    return weight_map


def _load_safetensors(file: Path) -> dict[str, np.ndarray]:
    demand_regular(file)
    try:
        return safetensors.numpy.load_file(file)
    except (safetensors.SafetensorError, OSError) as error:
        raise InputError(f"{file} is damaged or truncated: {error}") from None
    except (AttributeError, TypeError) as error:  # of a type that NumPy does not know, as float8
        raise InputError(f"{file} has a type of numbers that cannot be read: {error}") from None


def torch_for(file: str) -> Any:
    """Return the module that reads a file of PyTorch. Raises InputError where it is not installed."""
    try:
        import torch
    except ImportError:
        raise InputError(f"{file} needs PyTorch to be read: pip install torch, or give {SAFETENSORS}") from None
    return torch


def _load_torch(file: Path) -> dict[str, np.ndarray]:
    torch = torch_for(str(file))
    demand_regular(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about files that are refused anyway
            tensors = torch.load(file, map_location="cpu", weights_only=True)
        if isinstance(tensors, dict) and isinstance(tensors.get("state_dict"), dict):
            tensors = tensors["state_dict"]
        return {str(name): tensor.detach().float().numpy() for name, tensor in tensors.items()}
    except Exception as error:  # zip, pickle, end-of-file and type errors, of as many types
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"{file} is damaged or truncated, or no dictionary of tensors: {reason}") from None


_OUR_SETTINGS = "xlnet_jax"  # key in tokenizer_config.json: the way back keeps every setting
TOKENIZER_DIFFERENCES = (
    "the tokenizer of transformers gives our ids but for four things: it leaves pieces such as '1,' whole where "
    'tokenizer_settings split digits from commas; it cuts <eop> and . ( ) " - – £ € off first, so that the space mark '
    "before or behind them may stand elsewhere; <sep>, <cls> and the like in a text become the special piece; and "
    "control characters such as form feed vanish where ours see white space"
)

ACCENTS_DROPPED = (
    "transformers 5 drops accents whatever keep_accents in tokenizer_config.json says: a text with them gets other ids"
)


def _tokenizer(folder: Path) -> tuple[Tokenizer | None, list[str]]:
    file = folder / MODEL_FILE
    if not file.exists():
        return None, [f"no {MODEL_FILE}: the tokenizer does not come along"]
    theirs = read_json(folder / TOKENIZER_CONFIG) if (folder / TOKENIZER_CONFIG).exists() else {}
    if _OUR_SETTINGS in theirs:
        settings = read_settings(theirs[_OUR_SETTINGS], str(folder / TOKENIZER_CONFIG))
    else:
        settings = Settings(
            lower=bool(theirs.get("do_lower_case", False)),
            keep_accents=bool(theirs.get("keep_accents", False)),
            remove_space=bool(theirs.get("remove_space", True)),
        )
    return Tokenizer.load(file, lambda: settings), []


def _tokenizer_of_any_kind(folder: Path) -> tuple[Tokenizer | None, list[str]]:
    config = folder / TOKENIZER_CONFIG
    if config.exists() and _OUR_SETTINGS in read_json(config):
        return _tokenizer(folder)
    if not any((folder / name).exists() for name in (TOKENIZER_JSON, WORDPIECES)):
        return None, [f"no {MODEL_FILE}, {TOKENIZER_JSON} or {WORDPIECES}: the tokenizer does not come along"]
    if find_spec("tokenizers") is None:
        return None, ["the tokenizer does not come along: it needs pip install 'xlnet_jax[hf]'"]
    model = model_in(epath.Path(folder))
    assert model is not None
    return Tokenizer(model, FOREIGN_SETTINGS, str(folder)), []


def _write_tokenizer(tokenizer: Tokenizer, folder: Path, of_family: Mapping[str, Any]) -> list[str]:
    if tokenizer.foreign:
        (folder / TOKENIZER_JSON).write_bytes(tokenizer.model)
        lost = (tokenizer.foreign.theirs == NEW).sum()
        return [f"ids are dealt as they were there, without {lost} special pieces of ours"] if lost else []
    (folder / MODEL_FILE).write_bytes(tokenizer.model)
    settings = tokenizer.settings
    theirs = {
        "tokenizer_class": "XLNetTokenizer",
        "do_lower_case": settings.lower,
        "remove_space": settings.remove_space,
        "keep_accents": settings.keep_accents or settings.normalization != "english",
        **of_family,
        _OUR_SETTINGS: dataclasses.asdict(settings),
    }
    (folder / TOKENIZER_CONFIG).write_text(json.dumps(theirs, indent=2) + "\n")
    return [TOKENIZER_DIFFERENCES, *([ACCENTS_DROPPED] if theirs["keep_accents"] else [])]
