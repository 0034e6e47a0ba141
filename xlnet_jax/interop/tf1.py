"""Checkpoints of the 2019 code: names and layouts of their variables (modeling.py, function_builder.py, run_squad.py),
and their files: xlnet_config.json, NAME.ckpt.index and .data-*, spiece.model. TensorFlow 2 reads and writes them; it is
imported where it is needed."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from data_pipelines.tokenizer import MODEL_FILE, SETTINGS_FILE, Settings, Tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.interop.contents import Found, Pretrained, check_sizes, describe_thresholds, notes_on_padding
from xlnet_jax.interop.weights import TWO_LEADING_ONES, Weight, left_behind, refuse_beyond_xlnet, to_theirs
from xlnet_jax.settings.config import HeadConfig, ModelConfig
from xlnet_jax.storage.quiet import tensorflow
from xlnet_jax.storage.reading import demand_fitting, demand_regular, naming_damage, read_json

CONFIG, RELEASE = "xlnet_config.json", "xlnet_model.ckpt"
CONFIGS = (CONFIG, "config.json")  # of a release, and of what the original's training writes
# Of the optimizer, not of the network: Adam's slots under their two names, and its counters.
_OPTIMIZER = re.compile(r"/(Adam(_1)?|adam_[mv])$|^(beta[12]_power|global_step)$")
BODY = "model/transformer"
SUMMARY = "model/sequnece_summary"  # as the original spells it
RACE_SCOPE = "logits/dense"

_LAYER = {  # our path in a layer -> name under layer_<i>
    "attention/q": "rel_attn/q/kernel",
    "attention/k": "rel_attn/k/kernel",
    "attention/v": "rel_attn/v/kernel",
    "attention/r": "rel_attn/r/kernel",
    "attention/o": "rel_attn/o/kernel",
    "attention/norm/LayerNorm_0/scale": "rel_attn/LayerNorm/gamma",
    "attention/norm/LayerNorm_0/bias": "rel_attn/LayerNorm/beta",
    "feed_forward/inner/kernel": "ff/layer_1/kernel",
    "feed_forward/inner/bias": "ff/layer_1/bias",
    "feed_forward/outer/kernel": "ff/layer_2/kernel",
    "feed_forward/outer/bias": "ff/layer_2/bias",
    "feed_forward/norm/LayerNorm_0/scale": "ff/LayerNorm/gamma",
    "feed_forward/norm/LayerNorm_0/bias": "ff/LayerNorm/beta",
}
_BIASES = ("r_w_bias", "r_r_bias", "r_s_bias")
_POOL = {
    "summary/attention/query": "summary_bias",
    **{f"summary/attention/{x}": f"abs_attn/{x}/kernel" for x in "qkvo"},
    "summary/attention/norm/LayerNorm_0/scale": "abs_attn/LayerNorm/gamma",
    "summary/attention/norm/LayerNorm_0/bias": "abs_attn/LayerNorm/beta",
}
_PROJECTION = {f"summary/projection/{x}": f"summary/{x}" for x in ("kernel", "bias")}
_SPAN = {
    "start/kernel": "start_logits/dense/kernel",
    "start/bias": "start_logits/dense/bias",
    "end_inner/kernel": "end_logits/dense_0/kernel",
    "end_inner/bias": "end_logits/dense_0/bias",
    "end_norm/LayerNorm_0/scale": "end_logits/LayerNorm/gamma",
    "end_norm/LayerNorm_0/bias": "end_logits/LayerNorm/beta",
    "end_outer/kernel": "end_logits/dense_1/kernel",
    "end_outer/bias": "end_logits/dense_1/bias",
    "answer_inner/kernel": "answer_class/dense_0/kernel",
    "answer_inner/bias": "answer_class/dense_0/bias",
    "answer_outer/kernel": "answer_class/dense_1/kernel",
}


def weights(config: ModelConfig, head: HeadConfig | None) -> list[Weight]:
    """Return the table of a network: one entry a variable."""
    return [*_body(config), *_top(head)]


def _body(config: ModelConfig) -> Iterator[Weight]:
    yield Weight(f"{BODY}/word_embedding/lookup_table", "backbone/word_embedding")
    # The original makes it only where there is a query stream.
    yield Weight(f"{BODY}/mask_emb/mask_emb", "backbone/mask_embedding", (), TWO_LEADING_ONES, required=False)
    for number, name in enumerate(_BIASES):
        if config.untie_r:
            yield Weight(f"{BODY}/{name}", "backbone/layers/attention/biases", (slice(None), number))
        else:
            yield Weight(f"{BODY}/{name}", "backbone/biases", (number,))
    yield Weight(f"{BODY}/seg_embed", "backbone/layers/attention/segment_embedding")
    for layer in range(config.num_layers):
        for ours, theirs in _LAYER.items():
            yield Weight(f"{BODY}/layer_{layer}/{theirs}", f"backbone/layers/{ours}", (layer,))


def _top(head: HeadConfig | None) -> Iterator[Weight]:
    if head is None:
        yield Weight("model/lm_loss/bias", "output_bias")
    elif head.task == "question_answering":
        yield from (Weight(theirs, ours) for ours, theirs in _SPAN.items())
    else:
        if head.task != "token_classification":
            summary = (_POOL if head.summary == "attn" else {}) | (_PROJECTION if head.use_projection else {})
            yield from (Weight(f"{SUMMARY}/{theirs}", ours) for ours, theirs in summary.items())
        scope = RACE_SCOPE if head.task == "multiple_choice" else f"model/{scope_of(head)}/logit"
        yield from (Weight(f"{scope}/{x}", f"logits/{x}") for x in ("kernel", "bias"))


def scope_of(head: HeadConfig) -> str:
    """Return the scope of the last layer: that of its checkpoint, or the original's for a task without a name."""
    return head.scope or f"{head.task}_task"


def head_of(names: Iterable[str], num_labels: int | None) -> HeadConfig | None:
    """Return the head that has these variables; None = language modelling, or the backbone alone.

    num_labels: columns of the last layer. The original does not store the type of its summary; where no variable shows
    it, it is the default, the last token.
    """
    names = set(names)
    if "start_logits/dense/kernel" in names:
        return HeadConfig("question_answering")
    scopes = [n.split("/")[1] for n in sorted(names) if n.startswith("model/") and n.endswith("/logit/kernel")]
    if not scopes and f"{RACE_SCOPE}/kernel" not in names:
        return None
    summary: Literal["attn", "last"] = "attn" if f"{SUMMARY}/summary_bias" in names else "last"
    use_projection = f"{SUMMARY}/summary/kernel" in names
    if not scopes:
        return HeadConfig("multiple_choice", 4, summary, use_projection)
    if num_labels == 1:
        return HeadConfig("regression", 1, summary, use_projection, scope=scopes[0])
    return HeadConfig("classification", num_labels or 2, summary, use_projection, scope=scopes[0])


SIZES = {  # ours -> theirs, in xlnet_config.json
    "vocab_size": "n_token", "num_layers": "n_layer", "d_model": "d_model", "num_heads": "n_head",
    "d_head": "d_head", "d_ff": "d_inner", "untie_r": "untie_r",
}  # fmt: skip


def sizes_of(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Return the sizes of the variables, under the names of our settings."""
    sizes: dict[str, Any] = {}
    known = "|".join(_LAYER.values())
    if layers := {match[1] for name in shapes if (match := re.fullmatch(rf"{BODY}/layer_(\d+)/({known})", name))}:
        sizes["num_layers"] = len(layers)
    for name, shape in shapes.items():
        if name == f"{BODY}/word_embedding/lookup_table" and len(shape) == 2:
            sizes["vocab_size"] = shape[0]
        elif name.endswith("/rel_attn/q/kernel") and len(shape) == 3:
            sizes["d_model"], sizes["num_heads"], sizes["d_head"] = shape
        elif name.endswith("/ff/layer_1/kernel") and len(shape) == 2:
            sizes["d_ff"] = shape[1]
        elif name == f"{BODY}/r_w_bias" and len(shape) in (2, 3):
            sizes["untie_r"] = len(shape) == 3
    return sizes


def model_config(theirs: Mapping[str, Any], where: str) -> ModelConfig:
    """Return our settings for an xlnet_config.json. Raises InputError where one is missing or unknown."""
    if missing := [name for name in (*SIZES.values(), "ff_activation") if name not in theirs]:
        raise InputError(f"{where}: {', '.join(missing)} missing")
    if theirs["ff_activation"] not in ("gelu", "relu"):
        raise InputError(f"{where}: ff_activation {theirs['ff_activation']} is neither gelu nor relu")
    sizes = {ours: theirs[name] for ours, name in SIZES.items()}
    return ModelConfig(**sizes, activation=theirs["ff_activation"])


def to_config(config: ModelConfig, head: HeadConfig | None) -> dict[str, Any]:
    """Return the xlnet_config.json of a network. Raises InputError on what the original cannot hold."""
    refuse_beyond_xlnet(config, "the original")
    if config.activation == "gelu_erf":
        raise InputError(
            "the original cannot hold activation gelu_erf: its gelu is the tanh form; `activation` gelu takes these "
            "weights for that"
        )
    if config.layer_norm_eps != 1e-12:
        raise InputError(f"the original cannot hold layer_norm_eps {config.layer_norm_eps}: its own is 1e-12")
    if head and head.task in ("token_classification", "multilabel"):
        raise InputError(f"the original has no head for {head.task}; `to` hf or native")
    return {name: getattr(config, ours) for ours, name in SIZES.items()} | {"ff_activation": config.activation}


def is_checkpoint(source: Path) -> bool:
    """Return True for a folder with an index of a checkpoint, and for the prefix of one."""
    if source.is_dir():
        return any(source.glob("*.index"))
    return Path(f"{_prefix(source)}.index").exists()


def read(source: Path) -> Found:
    """Read the newest checkpoint of a folder, or the one whose prefix is given.

    Raises InputError on files that are damaged or contradict each other.
    """
    prefix = _newest(source) if source.is_dir() else _prefix(source)
    variables, optimizer = _variables(prefix)
    shapes = {name: value.shape for name, value in variables.items()}
    config, notes = _config(prefix.parent, shapes)
    if optimizer:
        notes.append(
            f"{optimizer} variables of its optimizer stay behind: counters, and Adam's slots where there are any"
        )
    notes.append("mem_len, clamp_len, dropout and the like are flags of the original: the defaults of ModelConfig")
    logits = [v for name, v in variables.items() if name.endswith("/logit/kernel") and v.ndim == 2]
    head = head_of(variables, logits[0].shape[-1] if logits else None)
    if head and head.reads_summary and head.summary == "last":
        notes.append("which token the summary takes is not in the checkpoint: the last, the original's default")
    tokenizer = Tokenizer.load(prefix.parent) if (prefix.parent / MODEL_FILE).exists() else None
    if tokenizer is None:
        notes.append(f"no {MODEL_FILE}: the tokenizer does not come along")
    return Found(config, head, weights(config, head), variables, tokenizer, None, {}, tuple(notes))


def write(pretrained: Pretrained, folder: Path) -> list[str]:
    """Write a checkpoint of the 2019 code into an empty folder. Return notes on what it does not hold.

    Raises InputError on a network that the original does not have.
    """
    tf = tensorflow()
    p = pretrained
    config = to_config(p.model, p.head)
    if p.tokenizer and p.tokenizer.foreign:
        raise InputError(f"the original reads a {MODEL_FILE}, and this tokenizer is none: native can hold it")
    table = weights(p.model, p.head)
    variables = to_theirs(p.params, table)
    names = sorted(variables)
    tf.raw_ops.SaveV2(
        prefix=str(folder / RELEASE),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.constant(variables[name]) for name in names],
    )
    (folder / CONFIG).write_text(json.dumps(config, indent=4, sort_keys=True) + "\n")
    m = p.model
    flags = [f"--mem_len={m.mem_len}", f"--clamp_len={m.clamp_len}", f"--same_length={m.same_length}"]
    if p.reuse_len:
        flags.append(f"--reuse_len={p.reuse_len}")
    if p.head and p.head.reads_summary:
        flags += [f"--summary_type={p.head.summary}", f"--use_summ_proj={p.head.use_projection}"]
    notes = [f"{CONFIG} holds sizes alone; the original takes the rest as flags: {' '.join(flags)}"]
    notes += [*notes_on_padding(p.head, "the original"), *left_behind(p.params, table)]
    if p.head and p.head.labels:
        notes.append(f"the names of the labels are not written: {', '.join(p.head.labels)}")
    if thresholds := describe_thresholds(p.thresholds):
        notes.append(f"the thresholds of its predictions are not written: {thresholds}")
    if m.attn_type == "uni":
        notes.append("attn_type uni is an argument of the original's modeling.transformer_xl, and no flag")
    if p.tokenizer is None:
        return notes
    (folder / MODEL_FILE).write_bytes(p.tokenizer.model)
    if p.tokenizer.settings != Settings():
        content = json.dumps(p.tokenizer.settings.to_json(), indent=2) + "\n"
        (folder / SETTINGS_FILE).write_text(content)
        notes.append(f"the original normalises all text as English; these weights learned from {SETTINGS_FILE}'s rules")
    return notes


def _prefix(source: Path) -> Path:
    return source.with_name(source.name.removesuffix(".index"))


def _newest(folder: Path) -> Path:
    prefixes = [index.with_suffix("") for index in folder.glob("*.index")]

    def step(prefix: Path) -> tuple[int, str]:
        number = re.search(r"-(\d+)$", prefix.name)
        return (int(number[1]) if number else -1, prefix.name)

    return max(prefixes, key=step)


def _variables(prefix: Path) -> tuple[dict[str, np.ndarray], int]:
    tf = tensorflow()
    there = sum(demand_regular(file) for file in prefix.parent.glob(f"{prefix.name}.*"))
    with naming_damage(prefix):
        reader = tf.train.load_checkpoint(str(prefix))
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
        demand_fitting(sum(math.prod(shape) * dtypes[name].size for name, shape in shapes.items()), there, prefix)
        names = sorted(shapes)
        if "_CHECKPOINTABLE_OBJECT_GRAPH" in names:
            raise InputError(f"{prefix} is a checkpoint of TensorFlow 2 objects, not of the 2019 code")
        variables = {n: np.asarray(reader.get_tensor(n)) for n in names if not _OPTIMIZER.search(n)}
        return variables, len(names) - len(variables)


def _config(folder: Path, shapes: dict[str, tuple[int, ...]]) -> tuple[ModelConfig, list[str]]:
    sizes = sizes_of(shapes)
    for file in (folder / name for name in CONFIGS):
        if file.exists():
            config = model_config(read_json(file), str(file))
            check_sizes(config, sizes, str(file))
            return config, []
    if missing := SIZES.keys() - sizes.keys():
        raise InputError(f"{folder}: no {CONFIG}, and the weights do not tell {', '.join(sorted(missing))}")
    return ModelConfig(**sizes), [f"no {CONFIG}: sizes are those of the weights, the activation is taken to be gelu"]
