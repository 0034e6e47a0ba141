"""Hugging Face folders: config.json, safetensors (whole or in shards) or pytorch_model.bin, and spiece.model or a
tokenizer of the library tokenizers.

Such a foreign tokenizer gets new ids (data_pipelines/tokenizer/foreign.py): reading permutes the rows of the embedding
to match, and writing undoes it.
"""

import dataclasses
import json
import shutil
import warnings
import zipfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, cast

import ml_dtypes  # noqa: F401 - registers bfloat16 with NumPy for safetensors
import msgspec
import numpy as np
import safetensors
import safetensors.numpy
from etils import epath

from data_pipelines.tokenizer import BOS, CLS, EOD, EOS, MASK, MODEL_FILE, PAD, SEP, SPECIAL_PIECES, UNK, Tokenizer
from data_pipelines.tokenizer.foreign import NEW, TOKENIZER_JSON, WORDPIECES, ForeignPieces, model_in
from data_pipelines.tokenizer.foreign import SETTINGS as FOREIGN_SETTINGS
from data_pipelines.tokenizer.model import FOLDER_FILES
from data_pipelines.tokenizer.settings import OURS
from data_pipelines.tokenizer.symbols import SYMBOLS_JSON
from xlnet_jax.errors import InputError, shown
from xlnet_jax.interop import hf_bert, hf_xlnet
from xlnet_jax.interop.contents import Pretrained, assemble, require_layers
from xlnet_jax.interop.hf_settings import keep_settings, notes_on_thresholds, thresholds_of
from xlnet_jax.interop.hf_tokenizer import DIFFERENCES, DIGIT_COMMAS, NO_JSON, symbols_json, tokenizer_json
from xlnet_jax.interop.weights import Weight, flatten, left_behind, nest, some, to_theirs
from xlnet_jax.storage import hub
from xlnet_jax.storage.reading import inside, naming_damage, read_json, require_fitting, require_regular, require_stored

CONFIG, TOKENIZER_CONFIG = "config.json", "tokenizer_config.json"
SAFETENSORS, TORCH = "model.safetensors", "pytorch_model.bin"
FILES = f"{SAFETENSORS} or {TORCH} of Hugging Face"
INDEX = ".index.json"
_WEIGHTS = (SAFETENSORS, SAFETENSORS + INDEX, TORCH, TORCH + INDEX)  # the first that exists is read


def is_checkpoint(folder: Path) -> bool:
    """Return True for a folder with weights of transformers, judging by file names."""
    return any((folder / name).exists() for name in _WEIGHTS)


def fetch(name: str) -> Path:
    """Download the files of a model that `read` needs, and return their folder.

    Small files come first, so that unsupported models are refused before their weights are downloaded. Raises
    InputError if the name is neither on the Hub nor in the cache, or the repository has no supported weights.
    """
    model = hub.find(name, (CONFIG, *FOLDER_FILES, *(file for file in _WEIGHTS if file.endswith(INDEX))))
    weights = next((file for file in _WEIGHTS if file in model.files), None)
    if weights is None or CONFIG not in model.files:
        looked_for = f"{SAFETENSORS} or {TORCH}" if weights is None else CONFIG
        raise InputError(f"{model} is not a readable checkpoint: looked for {looked_for}; {model.contents()}")
    read_config(model.folder)
    if weights.startswith(TORCH):
        _torch_for(f"{model}: {weights}")
    is_index = weights.endswith(INDEX)
    model.fetch(sorted(set(_weight_map(model.folder / weights).values())) if is_index else [weights])
    return model.folder


def read(folder: Path, partial: bool) -> Pretrained:
    """Read a folder. partial: as in `assemble`. Raises InputError on files that are damaged or contradict each
    other."""
    theirs, where = read_config(folder), folder / CONFIG
    is_xlnet = theirs.get("model_type", "xlnet") == "xlnet"
    family: Any = hf_xlnet if is_xlnet else hf_bert
    tensors = _tensors(folder)
    with naming_damage(where):
        contents, weights, variables = family.read(theirs, tensors, str(where))
        tokenizer, notes = _tokenizer(folder, is_xlnet)
        kept = keep_settings(theirs)
        written = {"auto_map"} if theirs.get("auto_map") == hf_xlnet.AUTO_MAP else set()
        if dropped := sorted(theirs.keys() - family.KNOWN - kept.keys() - written):
            names = some([shown(name, 40) for name in dropped])
            notes.append(
                f"{len(dropped)} of {len(theirs)} settings in {CONFIG} dropped, as nothing here reads them: {names}"
            )
        contents = dataclasses.replace(
            contents,
            tokenizer=tokenizer,
            extra=kept,
            thresholds=thresholds_of(theirs, str(where)),
            notes=(*contents.notes, *notes),
        )
        require_layers(contents.model, variables, where)
        table = list(weights)
        if tokenizer and tokenizer.foreign:
            contents, variables = _deal_ids(contents, table, variables, tokenizer.foreign, folder)
    return assemble(contents, table, variables, str(folder), partial)


def read_config(folder: Path) -> dict[str, Any]:
    """Return the config.json of a folder. Raises InputError if it is missing, or its network is not supported."""
    theirs, known = read_json(folder / CONFIG), ("xlnet", *hf_bert.MODEL_TYPES)
    if theirs.get("model_type", "xlnet") not in known:
        raise InputError(
            f"{folder / CONFIG}: model_type {theirs['model_type']} is not supported, only {', '.join(known)}"
        )
    if theirs.get("tie_word_embeddings") is False:
        raise InputError(
            f"{folder / CONFIG}: tie_word_embeddings false is not supported: our output matrix is the embedding"
        )
    return theirs


def write(pretrained: Pretrained, folder: Path) -> list[str]:
    """Write a Hugging Face checkpoint into an empty folder. Return notes on what it does not hold.

    Raises InputError on what the format cannot hold.
    """
    p, family = pretrained, _family_of(pretrained)
    if p.tokenizer and p.tokenizer.foreign:
        p = _restore_ids(p, p.tokenizer.foreign)
    config, table = family.to_config(p), list(family.weights(p))
    tensors = to_theirs(p.params, table)
    # Written by Python: a disk may report errors only on close, which the library ignores.
    (folder / SAFETENSORS).write_bytes(safetensors.numpy.save(tensors, {"format": "pt"}))
    config["dtype"] = p.params["backbone"]["word_embedding"].dtype.name
    (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    notes = [*notes_on_thresholds(p.thresholds), *left_behind(p.params, table)]
    if hf_xlnet.predicts_in_any_order(p):
        code = f"{hf_xlnet.ANY_ORDER}.py"
        shutil.copyfile(Path(__file__).with_name(code), folder / code)
        notes.append(f"{code} scores and generates in any order: transformers runs it only with trust_remote_code=True")
    if family is hf_bert:
        notes.append(
            "transformers reads texts as <cls> A <sep> B <sep> and counts positions from the first column: pad on the "
            "right"
        )
    if offset := p.model.position_offset:
        notes.append(f"transformers counts positions by tokens other than {offset - 1}: pad with that token")
    return notes + _write_tokenizer(p, folder, family)


_FAMILIES: dict[str, Any] = {"xlnet": hf_xlnet, "bert": hf_bert}  # by `ModelConfig.network`


def _family_of(pretrained: Pretrained) -> Any:
    """Return the module for the network. Raises InputError if its tokenizer does not fit the format."""
    family = _FAMILIES[pretrained.model.network]
    if family is hf_xlnet and pretrained.tokenizer and pretrained.tokenizer.foreign:
        raise InputError(f"Hugging Face's XLNet needs a {MODEL_FILE}, which this tokenizer is not: use `to` native")
    return family


_BY_PIECE = ("backbone/word_embedding", "output_bias")  # rows are pieces


def _deal_ids(
    contents: Pretrained,
    table: list[Weight],
    variables: Mapping[str, np.ndarray],
    foreign: ForeignPieces,
    folder: Path,
) -> tuple[Pretrained, dict[str, np.ndarray]]:
    if contents.model.vocab_size != foreign.their_size:
        raise InputError(
            f"{folder}: its tokenizer has {foreign.their_size:,} pieces and its weights {contents.model.vocab_size:,}: "
            "they do not belong together"
        )
    is_new = foreign.theirs == NEW

    def deal(rows: np.ndarray) -> np.ndarray:
        mean = np.broadcast_to(rows.mean(0, dtype=np.float32), rows.shape[1:]).astype(rows.dtype)
        return np.where(is_new.reshape(-1, *[1] * (rows.ndim - 1)), mean, rows[foreign.theirs])

    names = {weight.name for weight in table if weight.path in _BY_PIECE}
    dealt = {name: deal(a) if name in names and len(a) else a for name, a in variables.items()}
    note = f"pieces are renumbered: special ones come first; {is_new.sum()} new ones have the mean of all rows"
    contents = dataclasses.replace(
        contents,
        model=dataclasses.replace(contents.model, vocab_size=len(foreign.theirs)),
        notes=(*contents.notes, note),
    )
    return contents, dealt


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
    found = next((name for name in _WEIGHTS if (folder / name).exists()), SAFETENSORS)
    load = _load_torch if found.startswith(TORCH) else _load_safetensors
    shards = sorted(set(_weight_map(folder / found).values())) if found.endswith(INDEX) else [found]
    return {name: array for shard in shards for name, array in load(folder / shard).items()}


def _weight_map(index: Path) -> dict[str, str]:
    """Return the file of each tensor. Raises InputError if the index has none, or one outside of its folder."""
    content = read_json(index)
    with naming_damage(index):
        weight_map = msgspec.convert(content["weight_map"], Annotated[dict[str, str], msgspec.Meta(min_length=1)])
    for shard in set(weight_map.values()):
        inside(epath.Path(index.parent), shard, str(index))
    return weight_map


def _load_safetensors(file: Path) -> dict[str, np.ndarray]:
    require_regular(file)
    with naming_damage(file):  # including types that NumPy does not support, such as float8
        return safetensors.numpy.load_file(file)


def _torch_for(file: str) -> Any:
    """Return PyTorch, which reads this file. Raises InputError if it is not installed."""
    try:
        import torch
    except ImportError:
        raise InputError(f"{file} needs PyTorch to be read: pip install torch, or give {SAFETENSORS}") from None
    return torch


_MOST_SHARED = 8
"""Largest ratio of the size of tensors to the size of their PyTorch file, which stores tied weights once"""


def _load_torch(file: Path) -> dict[str, np.ndarray]:
    torch, size = _torch_for(str(file)), require_regular(file)
    with naming_damage(file), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warns about files that are refused anyway
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                require_stored(archive.infolist(), size, str(file))
        tensors = torch.load(file, map_location="cpu", weights_only=True)
        if isinstance(tensors, dict) and isinstance(tensors.get("state_dict"), dict):
            tensors = tensors["state_dict"]
        # Counts views too, which share storage.
        announced = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        require_fitting(announced // _MOST_SHARED, size, file)
        return {str(name): tensor.detach().float().numpy() for name, tensor in tensors.items()}


_AS_TOKENIZER_JSON = "PreTrainedTokenizerFast"  # transformers' classes for single networks have rules of their own
_SPECIAL = {"unk": UNK, "bos": BOS, "eos": EOS, "cls": CLS, "sep": SEP, "pad": PAD, "mask": MASK}


def _tokenizer(folder: Path, is_xlnet: bool) -> tuple[Tokenizer | None, list[str]]:
    """Return the tokenizer of a folder, and notes. It is spiece.model if this project or an XLNet wrote it, else a file
    of the library tokenizers, which ALBERT has beside another spiece.model."""
    config = folder / TOKENIZER_CONFIG
    if (folder / SYMBOLS_JSON).exists():
        return Tokenizer.load(folder), []
    is_ours = is_xlnet or (config.exists() and OURS in read_json(config))
    names = (MODEL_FILE,) if is_ours else (TOKENIZER_JSON, WORDPIECES)
    if not any((folder / name).exists() for name in names):
        return None, [f"no {' or '.join(names)}: the tokenizer is left out"]
    if is_ours:
        return Tokenizer.load(folder / MODEL_FILE), []
    if find_spec("tokenizers") is None:
        return None, ["the tokenizer is left out: it needs tokenizers: pip install -e '.[hf]' in the clone"]
    return Tokenizer(cast(bytes, model_in(epath.Path(folder))), FOREIGN_SETTINGS, str(folder)), []


def _write_tokenizer(pretrained: Pretrained, folder: Path, family: Any) -> list[str]:
    tokenizer = pretrained.tokenizer
    if tokenizer is None:
        return []
    if tokenizer.foreign:
        (folder / TOKENIZER_JSON).write_text(tokenizer.foreign.to_json(), encoding="utf-8")
        theirs = {"tokenizer_class": _AS_TOKENIZER_JSON, **tokenizer.foreign.special_names}
        if tokenizer.foreign.is_lowercase is not None:
            theirs["do_lower_case"] = tokenizer.foreign.is_lowercase
        _write_json(folder / TOKENIZER_CONFIG, theirs)
        lost = (tokenizer.foreign.theirs == NEW).sum()
        return [f"pieces have their original ids again, without {lost} special pieces of ours"] if lost else []
    if tokenizer.symbols:
        return _write_symbols(tokenizer, folder)
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


def _write_symbols(tokenizer: Tokenizer, folder: Path) -> list[str]:
    (folder / SYMBOLS_JSON).write_bytes(tokenizer.model)
    if (of_library := symbols_json(tokenizer)) is None:
        return [
            f"transformers has no tokenizer for such records: {SYMBOLS_JSON} lists their symbols in the order of ids"
        ]
    _write_json(folder / TOKENIZER_JSON, of_library)
    names = {f"{name}_token": SPECIAL_PIECES[i] for name, i in {**_SPECIAL, "eos": EOD}.items()}
    _write_json(folder / TOKENIZER_CONFIG, {"tokenizer_class": _AS_TOKENIZER_JSON, **names})
    return ["AutoTokenizer of transformers reads a record as <s>, its symbols and <eod>, with our ids"]


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
