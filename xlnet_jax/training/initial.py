"""What a run starts from that is given a checkpoint: --init."""

import dataclasses
from pathlib import Path
from typing import Any

from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.config import PRESETS, Config, InputError
from xlnet_jax.interop import tf1
from xlnet_jax.interop.formats import load
from xlnet_jax.interop.pretrained import Pretrained, with_drawn

# What the weights fix; the rest of the settings, as dropout and the memory's length, is the run's own.
_OF_THE_WEIGHTS = (
    "vocab_size", "num_layers", "d_model", "num_heads", "d_head", "d_ff", "activation", "untie_r", "clamp_len",
    "attn_type", "same_length", "layer_norm_eps",
)  # fmt: skip


def load_initial(config: Config) -> tuple[Config, Pretrained]:
    """The checkpoint of config.init, and the settings with the network's shape taken from it.

    InputError where a setting that was given on the command line contradicts it.
    """
    assert config.init is not None
    start, preset = load(config.init), PRESETS[config.preset]().model
    for name in _OF_THE_WEIGHTS:
        asked, has = getattr(config.model, name), getattr(start.model, name)
        if asked not in (has, getattr(preset, name)):
            raise InputError(f"model.{name.replace('_', '-')} {asked}: the weights of --init {config.init} have {has}")
    taken = {name: getattr(start.model, name) for name in _OF_THE_WEIGHTS}
    return dataclasses.replace(config, model=dataclasses.replace(config.model, **taken)), start


def tokenizer_of(start: Pretrained, config: Config) -> Tokenizer:
    """The one that belongs to the weights. InputError where there is none, or where --tokenizer names another."""
    if config.tokenizer is None:
        if start.tokenizer is None:
            raise InputError(
                f"--init {config.init} came without a tokenizer: give --tokenizer the spiece.model that its weights "
                "were trained with"
            )
        return start.tokenizer
    given = Tokenizer.load(Path(config.tokenizer))
    same = given.model == start.tokenizer.model if start.tokenizer else given.vocab_size == start.model.vocab_size
    if not same:
        raise InputError(
            f"--tokenizer {config.tokenizer} does not belong to the weights of --init {config.init}: leave it out"
            if start.tokenizer
            else f"--tokenizer {config.tokenizer} has {given.vocab_size:,} pieces, the weights of --init {config.init} "
            f"{start.model.vocab_size:,}"
        )
    return start.tokenizer or given


def params_of(start: Pretrained, config: Config) -> tuple[dict[str, Any], list[str]]:
    """Parameters of the language model, and the paths of those that the checkpoint lacks: a finetuned one has no
    output bias, and one of the 2019 code no mask embedding. These are drawn afresh; a task head stays behind."""
    kept: dict[str, Any] = {name: start.params[name] for name in ("backbone", "output_bias") if name in start.params}
    return with_drawn(kept, config.model, None, tf1.weights(config.model, None))
