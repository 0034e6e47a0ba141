"""Hugging Face folders: config.json, safetensors (whole or in shards) or pytorch_model.bin, and spiece.model or a
tokenizer of the library tokenizers.

Such a foreign tokenizer gets new ids here (data_pipelines/tokenizer/foreign.py): reading permutes the rows of the
embedding accordingly, and writing undoes it.
"""

import dataclasses
import json
import warnings
import zipfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - teaches NumPy bfloat16, which safetensors asks it for
import numpy as np
import safetensors
import safetensors.numpy
from etils import epath

from data_pipelines.tokenizer import MODEL_FILE, Tokenizer
from data_pipelines.tokenizer.foreign import NEW, TOKENIZER_JSON, WORDPIECES, ForeignPieces, model_in
from data_pipelines.tokenizer.foreign import SETTINGS as FOREIGN_SETTINGS
from data_pipelines.tokenizer.model import FOLDER_FILES
from data_pipelines.tokenizer.settings import OURS
from data_pipelines.tokenizer.symbols import BOS, CLS, EOS, MASK, PAD, SEP, SPECIAL_PIECES, UNK
from xlnet_jax.errors import InputError
from xlnet_jax.interop import hf_bert, hf_xlnet
from xlnet_jax.interop.contents import Found, Pretrained
from xlnet_jax.interop.hf_tokenizer import DIFFERENCES, DIGIT_COMMAS, NO_JSON, tokenizer_json
from xlnet_jax.interop.weights import flatten, left_behind, nest, to_theirs
from xlnet_jax.storage import hub
from xlnet_jax.storage.reading import demand_fitting, demand_regular, demand_stored, naming_damage, read_json

CONFIG, TOKENIZER_CONFIG = "config.json", "tokenizer_config.json"
SAFETENSORS, TORCH = "model.safetensors", "pytorch_model.bin"
INDEX = ".index.json"
_WEIGHTS = (SAFETENSORS, SAFETENSORS + INDEX, TORCH, TORCH + INDEX)  # the first that is there is read


def is_checkpoint(folder: Path) -> bool:
    """Return True for a folder with weights of transformers, by their file names."""
    return any((folder / (name + end)).exists() for name in (SAFETENSORS, TORCH) for end in ("", INDEX))


def fetch(name: str) -> Path:
    """Fetch the files of a model that `read` reads, and return their folder.

    The small files come first: what cannot be read is refused before its weights are fetched. Raises InputError for a
    name that neither the Hub nor the cache knows, and for a repository without weights of a known kind.
    """
    model = hub.find(name, (CONFIG, *FOLDER_FILES, *(file for file in _WEIGHTS if file.endswith(INDEX))))
    weights = next((file for file in _WEIGHTS if file in model.files), None)
    if weights is None or CONFIG not in model.files:
        looked_for = f"{SAFETENSORS} or {TORCH}" if weights is None else CONFIG
        raise InputError(f"{model} is no checkpoint that can be read: looked for {looked_for}; {model.contents()}")
    read_config(model.folder)
    if weights.startswith(TORCH):
        _torch_for(f"{model}: {weights}")
    is_index = weights.endswith(INDEX)
    model.fetch(sorted(set(_weight_map(model.folder / weights).values())) if is_index else [weights])
    return model.folder


def read(folder: Path) -> Found:
    """Read a folder. Raises InputError on files that are damaged or contradict each other."""
    theirs = read_config(folder)
    if theirs.get("model_type", "xlnet") == "xlnet":
        found, (tokenizer, notes) = hf_xlnet.read(theirs, _tensors(folder), folder), _tokenizer(folder)
    else:
        found, (tokenizer, notes) = hf_bert.read(theirs, _tensors(folder), folder), _tokenizer_of_any_kind(folder)
    found = dataclasses.replace(found, tokenizer=tokenizer, notes=(*found.notes, *notes))
    return _deal_ids(found, tokenizer.foreign, folder) if tokenizer and tokenizer.foreign else found


def read_config(folder: Path) -> dict[str, Any]:
    """Return the config.json of a folder. Raises InputError where there is none, or its network is not known here."""
    theirs = read_json(folder / CONFIG)
    model_type = theirs.get("model_type", "xlnet")
    if model_type not in ("xlnet", *hf_bert.DIALECTS):
        known = ", ".join(("xlnet", *hf_bert.DIALECTS))
        raise InputError(f"{folder / CONFIG}: model_type {model_type} is none of {known}")
    return theirs


def write(pretrained: Pretrained, folder: Path) -> list[str]:
    """Write a Hugging Face folder into an empty folder. Return notes on what it does not hold.

    Raises InputError on what Hugging Face cannot hold.
    """
    p, family = pretrained, _family_of(pretrained)
    if p.tokenizer and p.tokenizer.foreign:
        p = _restore_ids(p, p.tokenizer.foreign)
    config, table = family.to_config(p), family.weights(p)
    tensors = to_theirs(p.params, table)
    # Through Python's own file: a disk may refuse data only when the file is closed, and the library does not look.
    (folder / SAFETENSORS).write_bytes(safetensors.numpy.save(tensors, {"format": "pt"}))
    config["dtype"] = p.params["backbone"]["word_embedding"].dtype.name
    (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    notes = [*family.notes_of(p), *left_behind(p.params, table)]
    return notes + _write_tokenizer(p, folder, family)


def can_hold(pretrained: Pretrained) -> bool:
    """Return True if `write` can write a network with these settings; its parameters are not read."""
    try:
        _family_of(pretrained).to_config(pretrained)
    except InputError:
        return False
    return True


def _family_of(pretrained: Pretrained) -> Any:
    """Return the module that knows the network. Raises InputError where its tokenizer has no place there."""
    if pretrained.model.network == "bert":
        return hf_bert
    if pretrained.tokenizer and pretrained.tokenizer.foreign:
        raise InputError(f"Hugging Face's XLNet reads a {MODEL_FILE}, and this tokenizer is none: native can hold it")
    return hf_xlnet


_BY_PIECE = ("backbone/word_embedding", "output_bias")  # whose rows are the pieces


def _deal_ids(found: Found, foreign: ForeignPieces, folder: Path) -> Found:
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


def _restore_ids(pretrained: Pretrained, foreign: ForeignPieces) -> Pretrained:
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


def _weight_map(index: Path) -> dict[str, str]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{index} has no weight_map")
    if not all(isinstance(shard, str) and shard and Path(shard).name == shard for shard in weight_map.values()):
        raise InputError(f"{index}: a shard in its weight_map is not the name of a file")
    return weight_map


def _load_safetensors(file: Path) -> dict[str, np.ndarray]:
    demand_regular(file)
    with naming_damage(file):  # also of a type that NumPy does not know, as float8
        return safetensors.numpy.load_file(file)


def _torch_for(file: str) -> Any:
    """Return the module that reads a file of PyTorch. Raises InputError where it is not installed."""
    try:
        import torch
    except ImportError:
        raise InputError(f"{file} needs PyTorch to be read: pip install torch, or give {SAFETENSORS}") from None
    return torch


_MOST_SHARED = 8
"""Largest size of the tensors of a file of PyTorch over its own: tied weights stand in it once"""


def _load_torch(file: Path) -> dict[str, np.ndarray]:
    torch, size = _torch_for(str(file)), demand_regular(file)
    with naming_damage(file), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about files that are refused anyway
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                demand_stored(archive.infolist(), size, str(file))
        tensors = torch.load(file, map_location="cpu", weights_only=True)
        if isinstance(tensors, dict) and isinstance(tensors.get("state_dict"), dict):
            tensors = tensors["state_dict"]
        # By views, which share the numbers of others.
        announced = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        demand_fitting(announced // _MOST_SHARED, size, file)
        return {str(name): tensor.detach().float().numpy() for name, tensor in tensors.items()}


_AS_TOKENIZER_JSON = "PreTrainedTokenizerFast"  # transformers' classes by the names of networks have rules of their own
_SPECIAL = {"unk": UNK, "bos": BOS, "eos": EOS, "cls": CLS, "sep": SEP, "pad": PAD, "mask": MASK}


def _tokenizer(folder: Path) -> tuple[Tokenizer | None, list[str]]:
    file = folder / MODEL_FILE
    if not file.exists():
        return None, [f"no {MODEL_FILE}: the tokenizer does not come along"]
    return Tokenizer.load(file), []


def _tokenizer_of_any_kind(folder: Path) -> tuple[Tokenizer | None, list[str]]:
    config = folder / TOKENIZER_CONFIG
    if config.exists() and OURS in read_json(config):
        return _tokenizer(folder)
    if not any((folder / name).exists() for name in (TOKENIZER_JSON, WORDPIECES)):
        return None, [f"no {MODEL_FILE}, {TOKENIZER_JSON} or {WORDPIECES}: the tokenizer does not come along"]
    if find_spec("tokenizers") is None:
        return None, ["the tokenizer does not come along: it needs pip install 'xlnet_jax[hf]'"]
    model = model_in(epath.Path(folder))
    assert model is not None
    return Tokenizer(model, FOREIGN_SETTINGS, str(folder)), []


def _write_tokenizer(pretrained: Pretrained, folder: Path, family: Any) -> list[str]:
    tokenizer = pretrained.tokenizer
    if tokenizer is None:
        return []
    if tokenizer.foreign:
        (folder / TOKENIZER_JSON).write_bytes(tokenizer.model)
        theirs = {"tokenizer_class": _AS_TOKENIZER_JSON, **tokenizer.foreign.special_names}
        if tokenizer.foreign.is_lowercase is not None:
            theirs["do_lower_case"] = tokenizer.foreign.is_lowercase
        _write_json(folder / TOKENIZER_CONFIG, theirs)
        lost = (tokenizer.foreign.theirs == NEW).sum()
        return [f"ids are dealt as they were there, without {lost} special pieces of ours"] if lost else []
    (folder / MODEL_FILE).write_bytes(tokenizer.model)
    settings = tokenizer.settings
    of_library = tokenizer_json(tokenizer, **family.around(pretrained.model))
    if of_library:
        _write_json(folder / TOKENIZER_JSON, of_library)
    theirs = {
        "tokenizer_class": _AS_TOKENIZER_JSON if of_library else "XLNetTokenizer",
        "do_lower_case": settings.lower,
        "remove_space": settings.remove_space,
        "keep_accents": settings.keep_accents or settings.normalization != "english",
        "clean_up_tokenization_spaces": False,
        **{f"{name}_token": SPECIAL_PIECES[i] for name, i in _SPECIAL.items()},
        **family.tokenizer_settings(pretrained.model),
        OURS: settings.to_json(),
    }
    _write_json(folder / TOKENIZER_CONFIG, theirs)
    if not of_library:
        return [NO_JSON]
    return [DIFFERENCES + (DIGIT_COMMAS if settings.split_digit_commas and any(tokenizer.ends_in_digit_comma) else "")]


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
