"""Prepare a finetuning run: weights, tokenizer, examples, features, and the settings for a network narrower than the
papers' (benchmarks/narrow_start.py measures the gain of each).
"""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console

from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.interop.weights import flatten, nest
from xlnet_jax.settings.config import HeadConfig, ModelConfig
from xlnet_jax.settings.resolution import Resolution, Values
from xlnet_jax.tasks.baseline import Baseline, measure_baseline
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.defaults import DEFAULTS, make_task, validate_finetuning
from xlnet_jax.tasks.features import EncodedExamples, Features, weigh_labels
from xlnet_jax.tasks.labels import describe_labels
from xlnet_jax.tasks.readers import Role
from xlnet_jax.tasks.task import Task
from xlnet_jax.training import sharding
from xlnet_jax.training.initial import begin_from, tokenizer_of
from xlnet_jax.training.workdir import Workdir


@dataclass(frozen=True)
class Prepared:
    """What the runs of all seeds share."""

    settings: Resolution[FinetuneConfig]
    """up to what depends on a seed"""
    task: Task[Any, Any]
    start: Pretrained | None
    """None if all seeds resume from their own checkpoints"""
    tokenizer: Tokenizer
    sha256: str
    """of the training examples"""
    training_features: Callable[[int], Features]
    """returns the features of the training examples in an epoch"""
    splits: Mapping[Role, EncodedExamples]
    """"eval" and "predict", if the settings name files for them"""
    baseline: Baseline | None
    """on the examples of `eval`; None without them"""


def prepare(config: FinetuneConfig, seed: int, workdirs: Sequence[Workdir], console: Console) -> Prepared:
    """Read weights and examples for runs that differ only in their seed. seed: draws the examples of tasks that draw
    some. workdirs: one for each seed.

    Raises InputError if settings contradict each other or the weights, a file cannot be read, or the tokenizer does not
    know the script of the examples.
    """
    # ---- weights ----------------------------------------------------------------------------------------------------
    settings = Resolution.of(config, DEFAULTS[config.task]())
    there = [workdir.resumes(FinetuneConfig) for workdir in workdirs]
    own = there[0] if all(there) else None
    start = begin_from(settings, own)
    source = start or own
    assert source is not None
    settings.set({"objective": source.objective, "seed": seed})
    settings.set(memory_of_whole_texts(settings.config.model))
    validate_finetuning(settings.config)
    tokenizer = tokenizer_of(start, settings.config) if start else Tokenizer.load(workdirs[0].tokenizer)
    # ---- a narrow network -------------------------------------------------------------------------------------------
    # Draw new weights with the standard deviation that pretraining used: the default suits wide networks, and with it a
    # narrow network learns little.
    settings.choose({"model.init_std": source.model.init_std})
    why = f"the network is {settings.config.model.d_model} wide; --no-narrow-start undoes this"
    settings.choose(narrow_start(settings.config, source), why)
    settings.choose(frozen_start(settings.config), "only the head is trained")
    # ---- examples ---------------------------------------------------------------------------------------------------
    task = make_task(settings.config)
    train = task.read(config.train, "train")
    head = task.head(train)
    settings.set({"head": head})
    unknown = require_known(task, train, tokenizer, "train")
    splits = read_splits(settings.config, task, tokenizer)

    @functools.lru_cache(1)
    def drawn(epoch: int) -> Features:
        features = task.features(train, tokenizer, head, training=True, epoch=epoch)
        if config.balance == "weights":
            values = {**features.values, "target_weights": weigh_labels(features)}
            features = dataclasses.replace(features, values=values)
        return features

    def training_features(epoch: int) -> Features:
        return drawn(epoch if task.draws_anew else 0)

    # ---- steps ------------------------------------------------------------------------------------------------------
    settings.set(steps_of(config, len(training_features(0))))
    settings.choose({"optimizer.warmup_steps": own.optimizer.warmup_steps} if own else warmup_of(settings.config))
    sharding.make_mesh(settings.config)  # raises InputError if the mesh does not fit, before the workdir is claimed
    for line in describe_examples(task, {"train": EncodedExamples(train, training_features(0)), **splits}, unknown):
        console.print(line)
    baseline = measure_baseline(task, train, splits["eval"].examples) if "eval" in splits else None
    if baseline:
        console.print(f"baseline    {baseline.describe()}")
    for line in settings.log:
        console.print(line)
    digest = hashlib.sha256()
    for example in train:
        digest.update(repr(example).encode())
    return Prepared(settings, task, start, tokenizer, digest.hexdigest(), training_features, splits, baseline)


def steps_of(config: FinetuneConfig, examples: int) -> Values:
    """Return the steps that `epochs` come to on so many examples, or windows of them."""
    if config.epochs is None:
        return {}
    steps_per_epoch = -(-examples // config.data.batch_size)
    return {"steps": max(round(config.epochs * steps_per_epoch), 1), "epochs": None}


def warmup_of(config: FinetuneConfig) -> Values:
    """Return a warmup that is the same share of the run as in the task's defaults."""
    usual = DEFAULTS[config.task]()
    return {"optimizer.warmup_steps": round(usual.optimizer.warmup_steps * config.steps / usual.steps)}


def read_splits(config: FinetuneConfig, task: Task[Any, Any], tokenizer: Tokenizer) -> dict[Role, EncodedExamples]:
    """Read the examples evaluate and to predict, if the settings name files for them."""
    splits = {}
    roles: tuple[Role, ...] = ("eval", "predict")
    for role in roles:
        if paths := getattr(config, role):
            examples = task.read(paths, role)
            require_known(task, examples, tokenizer, role)
            splits[role] = EncodedExamples(examples, task.features(examples, tokenizer, config.head, training=False))
    return splits


def require_known(task: Task[Any, Any], examples: Sequence[Any], tokenizer: Tokenizer, role: Role) -> float:
    """Return the share of the letters that the tokenizer does not know (`Tokenizer.require_known`)."""
    return tokenizer.require_known((max(task.texts_of(each), key=len) for each in examples), f"`{role}`")


USES: dict[Role, str] = {"train": "training", "eval": "eval", "predict": "to predict"}


def describe_examples(task: Task[Any, Any], splits: Mapping[Role, EncodedExamples], unknown: float = 0.0) -> list[str]:
    """Return at most three lines: numbers of examples, with those that were left out, are blank, or are used twice;
    labels; and the number of texts that are cut. unknown: share of the letters that the tokenizer does not know."""
    known = {task.texts_of(example) for example in splits["train"].examples} if "train" in splits else set()
    read, cut = [], []
    labels: list[Any] = []
    for role, (examples, features) in splits.items():
        faults = task.faults[role]
        notes = [f"{count:,} {what}" for what, count in (("blank", faults.blank), ("faulty", faults.faulty)) if count]
        if role == "eval" and known:
            twice = sum(task.texts_of(example) in known for example in examples)
            notes.append(f"{twice:,} also in train")
        shown = ", ".join(notes)
        read.append(f"{len(examples):,} {USES[role]}{shown and f' ({shown})'}")
        cut.append(f"{features.cut:,} {USES[role]}")
        if role != "predict" and not labels:
            labels = [label for example in examples for label in task.labels_of(example)]
    lines = [f"examples    {', '.join(read)}"]
    if labels:
        lines.append(f"labels      {describe_labels(labels)}")
    letters = unknown and f"; {unknown:.2%} of the training letters are <unk>"
    return [*lines, f"cut texts   {', '.join(cut)}{letters or ''}"]


def memory_of_whole_texts(model: ModelConfig) -> Values:
    """Return the settings with which a network reads whole texts: with same_length, each token would see only mem_len
    tokens back."""
    return {"model.same_length": model.same_length and model.mem_len > 0}


def weights_of(start: Pretrained, head: HeadConfig, abstract_params: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the parameters that the network takes from the checkpoint, and the names of the parts that it does not
    have.

    The head is taken if it is for the same task and labels, in any order. Otherwise a summary of <cls> starts from the
    pooler that pretraining trained on pairs.
    """
    wanted, given = flatten(abstract_params), flatten(start.params)
    other = start.head
    if other is None or other.task != head.task or sorted(other.labels) != sorted(head.labels):
        given = {path: array for path, array in given.items() if path.startswith(("backbone/", "pair_head/pooler/"))}
    elif head.labels:
        columns = [other.labels.index(label) for label in head.labels]
        given |= {path: np.asarray(given[path])[..., columns] for path in _BY_LABEL if path in given}
    if head.summary in ("first", "last"):
        given |= {path.replace("pair_head/pooler", "summary/projection"): array for path, array in given.items()}
    taken = {path: given[path] for path in wanted if path in given and given[path].shape == wanted[path].shape}
    return nest(taken), sorted({path.partition("/")[0] for path in wanted.keys() - taken.keys()})


_BY_LABEL = ("logits/kernel", "logits/bias")  # their last axis is the labels


WIDE = 768
"""width of the narrowest network in the papers"""
_TUNED_RATE, _TUNED_WIDTH = 1e-3, 128
FROZEN_RATE = 1e-3
"""learning rate of a head that is trained alone"""


def narrow_start(config: FinetuneConfig, source: Pretrained | FinetuneConfig) -> Values:
    """Return the settings with which a narrow network starts, if `narrow_start` is on; {} for a wide one.

    source: the checkpoint that the run starts from, or the settings of the run that it resumes.

    - The learning rate depends on the width (`learning_rate_of`).
    - Dropout is that of pretraining: a network that was pretrained without dropout learns less with the task's 0.1.
      Token classification keeps the task's dropout, because it trains on few sentences for many epochs.
    - The summary, for heads that have one, is that of the checkpoint's head, or else the mean of all hidden states.
      XLNet's pretraining does not train <cls>, and a small network needs many examples to learn a summary there. BERT's
      pretraining trains <cls>, so BERT networks keep the summary of the task.
    """
    if config.model.d_model >= WIDE or not config.narrow_start:
        return {}
    values: dict[str, Any] = {"optimizer.learning_rate": learning_rate_of(config.task, config.model.d_model)}
    if config.head.task != "token_classification":
        values |= {"model.dropout": source.model.dropout, "model.attention_dropout": source.model.attention_dropout}
    if config.head.reads_summary and not config.model.reads_cls_first:
        values["head.summary"] = source.head.summary if source.head and source.head.reads_summary else "mean"
    return values


def frozen_start(config: FinetuneConfig) -> Values:
    """Return the settings with which a head is trained alone, if `frozen` is on: a learning rate for random weights
    (`FROZEN_RATE`), and for XLNet the mean of all hidden states, because pretraining does not train <cls>."""
    if not config.frozen:
        return {}
    reads_mean = config.head.reads_summary and config.head.summary == "last" and not config.model.reads_cls_first
    return {"optimizer.learning_rate": FROZEN_RATE} | ({"head.summary": "mean"} if reads_mean else {})


def learning_rate_of(task: str, width: int) -> float:
    """Return the default learning rate of a task: its own, or one for the width of a narrow network.

    Networks of width 128 and 192 learn as well or better with 1e-3 than with 3e-4 on all tasks of
    benchmarks/measured/eight_tasks. For wider ones the rate falls as 1 / width, as in muP (Yang et al. 2022, table 3).
    """
    own = DEFAULTS[task]().optimizer.learning_rate
    return own if width >= WIDE else max(own, _TUNED_RATE * min(_TUNED_WIDTH / width, 1))
