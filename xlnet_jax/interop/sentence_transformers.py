"""The files that make a Hugging Face folder one of sentence-transformers: its modules are the network, the pooling of
hidden states and, if asked for, the scaling of vectors to length 1.
"""

import json
from pathlib import Path

from xlnet_jax.errors import InputError
from xlnet_jax.settings.config import HeadConfig, ModelConfig

MODULES = "modules.json"
_KEYS = {  # pooling of sentence-transformers -> the key for it that all versions read
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
# "cls" is the first token, wherever <cls> is: XLNet has it at the end of a text, BERT at the beginning.
_POOLINGS = {
    "xlnet": {"mean": "mean", "last": "lasttoken", "first": "cls"},
    "bert": {"mean": "mean", "last": "cls"},
}


def write_modules(folder: Path, model: ModelConfig, head: HeadConfig, seq_len: int, normalize: bool) -> None:
    """Write the files around the network and the tokenizer in a Hugging Face folder.

    head: for embedding. seq_len: tokens after which texts are cut. normalize: scale vectors to length 1. Raises
    InputError for a pooling that sentence-transformers does not have.
    """
    pooling = _POOLINGS[model.network].get(head.summary)
    if pooling is None:
        raise InputError(
            f"sentence-transformers has no pooling {head.summary} of a text in {model.network}: use `to` hf"
        )
    modules = {"": "Transformer", "1_Pooling": "Pooling"} | ({"2_Normalize": "Normalize"} if normalize else {})
    files = {
        MODULES: [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
            for i, (path, name) in enumerate(modules.items())
        ],
        "sentence_bert_config.json": {"max_seq_length": seq_len, "do_lower_case": False},
        "config_sentence_transformers.json": {
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
        "1_Pooling/config.json": {
            "word_embedding_dimension": model.d_model,
            **{key: name == pooling for name, key in _KEYS.items()},
            "include_prompt": True,
        },
    }
    for path in modules:
        (folder / path).mkdir(exist_ok=True)
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content, indent=2) + "\n")
