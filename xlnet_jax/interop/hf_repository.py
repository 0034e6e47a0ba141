"""Weights and tokenizers of models on the Hugging Face Hub: which files of a repository are fetched."""

from pathlib import Path

from data_pipelines.tokenizer.model import FOLDER_FILES
from xlnet_jax.errors import InputError
from xlnet_jax.interop.hf_files import CONFIG, INDEX, SAFETENSORS, TORCH, read_config, shards_in, torch_for
from xlnet_jax.storage import hub

_WEIGHTS = (SAFETENSORS, SAFETENSORS + INDEX, TORCH, TORCH + INDEX)  # the first that is there is read


def fetch(name: str) -> Path:
    """Fetch the files of a model that `hf_files.read` reads, and return their folder.

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
        torch_for(f"{model}: {weights}")
    model.fetch(shards_in(model.folder / weights) if weights.endswith(INDEX) else [weights])
    return model.folder
