"""Checkpoints of the 2019 code: names and layouts of their variables (modeling.py, function_builder.py, run_squad.py),
and their files: xlnet_config.json, NAME.ckpt.index and .data-*, spiece.model. TensorFlow 2 reads and writes them; it is
imported only when needed."""

import glob
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from data_pipelines.tokenizer import MODEL_FILE, SETTINGS_FILE, Tokenizer, TokenizerSettings
from xlnet_jax.errors import InputError
from xlnet_jax.interop.contents import Pretrained, assemble, describe_thresholds, require_layers
from xlnet_jax.interop.hf_settings import dense, norm
from xlnet_jax.interop.hf_xlnet import layer_weights, span_weights
from xlnet_jax.interop.weights import TWO_LEADING_ONES, Weight, left_behind, refuse_beyond_xlnet, stack, to_theirs
from xlnet_jax.settings.config import HeadConfig, ModelConfig
from xlnet_jax.storage.quiet import tensorflow
from xlnet_jax.storage.reading import naming_damage, read_json, require_fitting, require_regular

FILES = "*.index of TensorFlow 1"
CONFIG, RELEASE = "xlnet_config.json", "xlnet_model.ckpt"
CONFIGS = (CONFIG, "config.json")  # of a release, and of the 2019 training
# Optimizer variables: Adam's slots under their two names, and counters.
_OPTIMIZER = re.compile(r"/(Adam(_1)?|adam_[mv])$|^(beta[12]_power|global_step)$")
BODY = "model/transformer"
SUMMARY = "model/sequnece_summary"  # spelled as in the 2019 code
RACE_SCOPE = "logits/dense"

_BIASES = ("r_w_bias", "r_r_bias", "r_s_bias")


def weights(config: ModelConfig, head: HeadConfig | None) -> Iterator[Weight]:
    """Yield the table of a network: one entry per variable."""
    yield from _body(config)
    yield from _top(head)


def _body(config: ModelConfig) -> Iterator[Weight]:
    yield Weight(f"{BODY}/word_embedding/lookup_table", "backbone/word_embedding")
    # The 2019 code creates it only with a query stream.
    yield Weight(f"{BODY}/mask_emb/mask_emb", "backbone/mask_embedding", (), TWO_LEADING_ONES, required=False)
    for number, name in enumerate(_BIASES):
        if config.untie_r:
            yield Weight(f"{BODY}/{name}", "backbone/layers/attention/biases", (slice(None), number))
        else:
            yield Weight(f"{BODY}/{name}", "backbone/biases", (number,))
    yield Weight(f"{BODY}/seg_embed", "backbone/layers/attention/segment_embedding")
    for number in range(config.num_layers):
        yield from stack(_renamed(layer_weights(f"{BODY}/layer_{number}")), (number,))


def _top(head: HeadConfig | None) -> Iterator[Weight]:
    if head is None:
        yield Weight("model/lm_loss/bias", "output_bias")
    elif head.task == "question_answering":
        yield from _renamed(span_weights())
    else:
        if head.summary == "attn":
            yield Weight(f"{SUMMARY}/summary_bias", "summary/attention/query")
            for name in "qkvo":
                yield Weight(f"{SUMMARY}/abs_attn/{name}/kernel", f"summary/attention/{name}")
            yield from _renamed(norm(f"{SUMMARY}/abs_attn/LayerNorm", "summary/attention/norm"))
        if head.use_projection:
            yield from _renamed(dense(f"{SUMMARY}/summary", "summary/projection"))
        # Default scope of a task without a name.
        named = f"model/{head.scope or f'{head.task}_task'}/logit"
        scope = RACE_SCOPE if head.task == "multiple_choice" else named  # may have dots
        yield Weight(f"{scope}/kernel", "logits/kernel")
        yield Weight(f"{scope}/bias", "logits/bias")


def _renamed(weights: Iterable[Weight]) -> Iterator[Weight]:
    """Yield weights of Hugging Face, where kernels are transposed, under the names of the 2019 code."""
    for weight in weights:
        scope, _, kind = weight.name.replace("layer_norm", "LayerNorm").rpartition(".")
        is_norm = scope.endswith("LayerNorm")
        ends = {"weight": "gamma" if is_norm else "kernel", "bias": "beta" if is_norm else "bias"}
        yield Weight(f"{scope.replace('.', '/')}/{ends.get(kind, f'{kind}/kernel')}", weight.path)


def _head_of(variables: Mapping[str, np.ndarray]) -> HeadConfig | None:
    """Return the head that has these variables; None = language modeling, or only the backbone.

    The 2019 code does not store the type of its summary; if no variable shows it, it is the default, the last token.
    """
    if "start_logits/dense/kernel" in variables:
        return HeadConfig("question_answering")
    summary: Literal["attn", "last"] = "attn" if f"{SUMMARY}/summary_bias" in variables else "last"
    use_projection = f"{SUMMARY}/summary/kernel" in variables
    for name in sorted(variables):
        if found := re.fullmatch("model/([^/]+)/logit/kernel", name):
            num_labels = variables[name].shape[-1]
            task: Literal["regression", "classification"] = "regression" if num_labels == 1 else "classification"
            return HeadConfig(task, num_labels, summary, use_projection, scope=found[1])
    if f"{RACE_SCOPE}/kernel" in variables:
        return HeadConfig("multiple_choice", 4, summary, use_projection)
    return None


SIZES = {  # ours -> theirs, in xlnet_config.json
    "vocab_size": "n_token", "num_layers": "n_layer", "d_model": "d_model", "num_heads": "n_head",
    "d_head": "d_head", "d_ff": "d_inner", "untie_r": "untie_r",
}  # fmt: skip


def _read_config(folder: Path) -> ModelConfig | None:
    file = next((folder / name for name in CONFIGS if (folder / name).exists()), None)
    if file is None:
        return None
    theirs = read_json(file)
    if missing := [name for name in (*SIZES.values(), "ff_activation") if name not in theirs]:
        raise InputError(f"{file}: {', '.join(missing)} missing")
    if theirs["ff_activation"] not in ("gelu", "relu"):
        raise InputError(f"{file}: ff_activation {theirs['ff_activation']} is neither gelu nor relu")
    return ModelConfig(**{ours: theirs[name] for ours, name in SIZES.items()}, activation=theirs["ff_activation"])


def _config_of(variables: Mapping[str, np.ndarray]) -> ModelConfig:
    """Infer the settings from the variables, because the 2019 training writes no others."""
    d_model, num_heads, d_head = variables[f"{BODY}/layer_0/rel_attn/q/kernel"].shape
    return ModelConfig(
        vocab_size=len(variables[f"{BODY}/word_embedding/lookup_table"]),
        num_layers=sum(name.endswith("/rel_attn/q/kernel") for name in variables),
        d_model=d_model,
        num_heads=num_heads,
        d_head=d_head,
        d_ff=variables[f"{BODY}/layer_0/ff/layer_1/kernel"].shape[1],
        untie_r=variables[f"{BODY}/r_w_bias"].ndim == 3,
    )


def _to_config(config: ModelConfig, head: HeadConfig | None) -> dict[str, Any]:
    refuse_beyond_xlnet(config, "the 2019 code")
    if config.activation == "gelu_erf":
        raise InputError("the 2019 code cannot hold activation gelu_erf: `activation` gelu writes it as the tanh form")
    if config.layer_norm_eps != 1e-12:
        raise InputError(f"the 2019 code cannot hold layer_norm_eps {config.layer_norm_eps}, only 1e-12")
    if head and head.task in ("token_classification", "multilabel", "embedding"):
        raise InputError(f"the 2019 code has no head for {head.task}: use `to` hf or native")
    return {name: getattr(config, ours) for ours, name in SIZES.items()} | {"ff_activation": config.activation}


def is_checkpoint(source: Path) -> bool:
    """Return True for a folder with the index of a checkpoint, and for the prefix of a checkpoint."""
    if source.is_dir():
        return any(source.glob("*.index"))
    return Path(f"{_prefix(source)}.index").exists()


def read(source: Path, partial: bool) -> Pretrained:
    """Read the newest checkpoint in a folder, or the one with this prefix. partial: as in `assemble`.

    Raises InputError on files that are damaged or contradict each other.
    """
    prefix = _newest(source) if source.is_dir() else _prefix(source)
    variables, optimizer = _variables(prefix)
    notes = ["mem_len, clamp_len, dropout and the like have defaults: the 2019 code takes them as flags"]
    if optimizer:
        notes.append(f"{optimizer} optimizer variables are dropped: counters and Adam's slots")
    with naming_damage(prefix):
        config, head = _read_config(prefix.parent), _head_of(variables)
        if config is None:
            config = _config_of(variables)
            notes.append(f"no {CONFIG}: sizes come from the weights, and the activation is assumed to be gelu")
        require_layers(config, variables, prefix)
    tokenizer = Tokenizer.load(prefix.parent) if (prefix.parent / MODEL_FILE).exists() else None
    if tokenizer is None:
        notes.append(f"no {MODEL_FILE}: the tokenizer is left out")
    contents = Pretrained(config, {}, "", head, tokenizer, notes=tuple(notes))
    return assemble(contents, list(weights(config, head)), variables, str(source), partial)


def write(pretrained: Pretrained, folder: Path) -> list[str]:
    """Write a checkpoint of the 2019 code into an empty folder. Return notes on what it does not hold.

    Raises InputError on a network that the 2019 code does not support.
    """
    p = pretrained
    config = _to_config(p.model, p.head)
    if p.tokenizer and (p.tokenizer.foreign or p.tokenizer.symbols):
        raise InputError(f"the 2019 code needs a {MODEL_FILE}, which this tokenizer is not: use `to` native")
    table = list(weights(p.model, p.head))
    variables = to_theirs(p.params, table)
    names, tf = sorted(variables), tensorflow()
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
    notes = [f"{CONFIG} holds only sizes; the 2019 code takes the rest as flags: {' '.join(flags)}"]
    notes += left_behind(p.params, table)
    if thresholds := describe_thresholds(p.thresholds):
        notes.append(f"prediction thresholds are not written: {thresholds}")
    if p.tokenizer is None:
        return notes
    (folder / MODEL_FILE).write_bytes(p.tokenizer.model)
    if p.tokenizer.settings != TokenizerSettings():
        content = json.dumps(p.tokenizer.settings.to_json(), indent=2) + "\n"
        (folder / SETTINGS_FILE).write_text(content)
        notes.append(
            f"the 2019 code normalizes all text as English; these weights were trained by the rules in {SETTINGS_FILE}"
        )
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
    if glob.has_magic(str(prefix)):
        raise InputError(f"{prefix}: TensorFlow takes a name with *, ? or [ for a pattern: rename it")
    there = sum(require_regular(file) for file in prefix.parent.glob(f"{prefix.name}.*"))
    with naming_damage(prefix):
        reader = tf.train.load_checkpoint(str(prefix))
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
        require_fitting(sum(math.prod(shape) * dtypes[name].size for name, shape in shapes.items()), there, prefix)
        names = sorted(shapes)
        if "_CHECKPOINTABLE_OBJECT_GRAPH" in names:
            raise InputError(f"{prefix} is a checkpoint of TensorFlow 2 objects, not of the 2019 code")
        variables = {n: np.asarray(reader.get_tensor(n)) for n in names if not _OPTIMIZER.search(n)}
        return variables, len(names) - len(variables)
