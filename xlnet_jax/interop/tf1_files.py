"""The 2019 code's checkpoints: xlnet_config.json, NAME.ckpt.index and .data-*, spiece.model. TensorFlow 2 reads and
writes the format; it is imported where it is needed."""

import json
import math
import re
from pathlib import Path

import numpy as np

from data_pipelines.tokenizer import MODEL_FILE, SETTINGS_FILE, Settings, Tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.interop import tf1
from xlnet_jax.interop.contents import Found, Pretrained, check_sizes, describe_thresholds, notes_on_padding
from xlnet_jax.interop.weights import left_behind, to_theirs
from xlnet_jax.settings.config import ModelConfig
from xlnet_jax.storage.quiet_tensorflow import tensorflow
from xlnet_jax.storage.reading import demand_fitting, demand_regular, naming_damage, read_json

CONFIG, RELEASE = "xlnet_config.json", "xlnet_model.ckpt"
CONFIGS = (CONFIG, "config.json")  # of a release, and of what the original's training writes
# Of the optimizer, not of the network: Adam's slots under their two names, and its counters.
_OPTIMIZER = re.compile(r"/(Adam(_1)?|adam_[mv])$|^(beta[12]_power|global_step)$")


def recognised(source: Path) -> bool:
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
    head = tf1.head_of(variables, logits[0].shape[-1] if logits else None)
    if head and head.reads_summary and head.summary == "last":
        notes.append("which token the summary takes is not in the checkpoint: the last, the original's default")
    tokenizer = Tokenizer.load(prefix.parent) if (prefix.parent / MODEL_FILE).exists() else None
    if tokenizer is None:
        notes.append(f"no {MODEL_FILE}: the tokenizer does not come along")
    return Found(config, head, tf1.weights(config, head), variables, tokenizer, None, {}, tuple(notes))


def write(pretrained: Pretrained, folder: Path) -> list[str]:
    """Write a checkpoint of the 2019 code into an empty folder. Return notes on what it does not hold.

    Raises InputError on a network that the original does not have.
    """
    tf = tensorflow()
    p = pretrained
    config = tf1.to_config(p.model, p.head)
    if p.tokenizer and p.tokenizer.foreign:
        raise InputError(f"the original reads a {MODEL_FILE}, and this tokenizer is none: native can hold it")
    table = tf1.weights(p.model, p.head)
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
    sizes = tf1.sizes_of(shapes)
    for file in (folder / name for name in CONFIGS):
        if file.exists():
            config = tf1.model_config(read_json(file), str(file))
            check_sizes(config, sizes, str(file))
            return config, []
    if missing := tf1.SIZES.keys() - sizes.keys():
        raise InputError(f"{folder}: no {CONFIG}, and the weights do not tell {', '.join(sorted(missing))}")
    return ModelConfig(**sizes), [f"no {CONFIG}: sizes are those of the weights, the activation is taken to be gelu"]
