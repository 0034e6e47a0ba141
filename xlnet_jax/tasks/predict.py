"""Predict with a finetuned checkpoint, without training."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from xlnet_jax.errors import InputError
from xlnet_jax.interop.contents import describe_thresholds
from xlnet_jax.settings.fields import given_in
from xlnet_jax.storage.files import write_durably
from xlnet_jax.tasks.base import Task
from xlnet_jax.tasks.config import FinetuneConfig, folder_of
from xlnet_jax.tasks.defaults import DEFAULTS
from xlnet_jax.tasks.families import is_of_one_family, make_task
from xlnet_jax.tasks.model import finetuning_of, with_thresholds
from xlnet_jax.tasks.objective import Supervised
from xlnet_jax.tasks.prepare import Split, read_splits, weights_of
from xlnet_jax.tasks.results import Result
from xlnet_jax.tasks.rules import validate_finetuning
from xlnet_jax.tasks.selection import Predictor, describe
from xlnet_jax.training import sharding
from xlnet_jax.training.initial import begin_from, tokenizer_of
from xlnet_jax.training.program import Program
from xlnet_jax.training.run.process import Process
from xlnet_jax.training.run.workdir import Workdir

PREDICTIONS, METRICS = "predictions", "metrics.json"


def predict(config: FinetuneConfig, process: Process) -> Result:
    """Write the predictions and scores of the checkpoint config.init.

    Raises InputError where the checkpoint has no head for the task, or the workdir holds a training run.
    """
    workdir = Workdir(folder_of(config))
    demand_no_run(workdir, "give predictions another `workdir`")
    config, start = begin_from(config.init, config, None, DEFAULTS[config.task]())
    validate_finetuning(config)
    assert start is not None
    wanted = config.head.task
    if start.head is None or start.head.task != wanted:
        has = "vocabulary scores" if start.head is None else f"a head for {start.head.task}"
        raise InputError(
            f"`init` {config.init} has {has}, and `task` {config.task} needs a head for {wanted}: give `train` to "
            "finetune it, or a checkpoint that was"
        )
    unset = _take_settings_of_checkpoint(replace(config, head=start.head), process.console)
    config = with_thresholds(unset, start.thresholds)
    if config != unset:
        process.console.print(f"thresholds  of the checkpoint: {describe_thresholds(start.thresholds)}")
    task = make_task(config)
    splits = read_splits(config, task, tokenizer_of(start, config))
    program = Program.of(config, Supervised(config, task))
    params, _ = weights_of(start, config.head, program.plan.params)
    workdir.make()
    params = sharding.from_host(params, sharding.shardings_of(program.plan.params))
    found = predict_splits(task, splits, Predictor(program), params, workdir, process)
    if found.metrics:
        process.console.print(f"eval        {describe(found.metrics)}")
    files = (*found.files, *filter(None, [found.picture]))
    process.console.print("".join(f"  {workdir.folder / file}\n" for file in files).rstrip())
    written = tuple(str(workdir.folder / file) for file in found.files)
    return Result(str(workdir.folder), config.task, config.init, 0, "", found.metrics, written)


class Predicted(NamedTuple):
    """Predictions on disk; paths are relative to the workdir."""

    metrics: dict[str, float]
    """metrics of the split "eval"; none without it"""
    files: tuple[str, ...]
    """files of predictions"""
    picture: str | None
    """picture of the predictions of "eval" beside their labels; None = there is none"""
    thresholds: Mapping[str, float]
    """thresholds that were chosen by "eval" """


def predict_splits(
    task: Task[Any, Any],
    splits: Mapping[str, Split],
    predictor: Predictor,
    params: Any,
    workdir: Workdir,
    process: Process,
) -> Predicted:
    """Write the predictions of all splits, and the metrics and the picture of "eval"."""
    metrics: dict[str, float] = {}
    thresholds: Mapping[str, float] = {}
    files, picture = [], None
    for name, split in splits.items():
        outputs = predictor.outputs(params, split.features)
        assert outputs is not None
        answers = task.answers(split.examples, split.features, outputs)
        if name == "eval":
            metrics, thresholds = task.metrics(split.examples, answers), task.tuned_thresholds
        if process.hosts.first:
            folder = workdir.folder / PREDICTIONS / name
            folder.mkdir(parents=True, exist_ok=True)
            files += [f"{PREDICTIONS}/{name}/{file}" for file in task.write(folder, split.examples, answers)]
            if name == "eval":
                write_durably(folder / METRICS, (json.dumps(metrics, indent=2) + "\n").encode())
                if found := task.compare(split.examples, answers):
                    picture, title = found.file, f"{workdir.folder.name}: predictions for the examples of eval"
                    found.draw(workdir.folder / picture, title)
    return Predicted(metrics, tuple(files), picture, thresholds)


def demand_no_run(workdir: Workdir, hint: str) -> None:
    """Raise InputError where a run in the workdir would lose its results and predictions."""
    if workdir.has_checkpoints:
        raise InputError(f"workdir {workdir.folder} holds a run, with results of its own: {hint}")


def _take_settings_of_checkpoint(config: FinetuneConfig, console: Console) -> FinetuneConfig:
    """Take settings that nobody gave from the finetuning that made the checkpoint, where it was for a task of the same
    family, and print them: texts are then read and cut as they were there."""
    there = finetuning_of(Path(config.init))
    if there is None or not is_of_one_family(there, config):
        return config
    taken, changed, given = config, [], given_in(config, DEFAULTS[config.task]())
    for name in ("data", "multilabel", "qa", "choice", *(["columns"] if there.task == config.task else [])):
        ours, theirs = (vars(getattr(c, name)) for c in (config, there))
        unset = {
            key: theirs[key]
            for key, value in ours.items()
            if value != theirs[key] and f"{name}.{key.replace('_', '-')}" not in given
        }
        taken = replace(taken, **{name: replace(getattr(config, name), **unset)})
        changed += [f"{name}.{key.replace('_', '-')} {value}" for key, value in unset.items()]
    if config.model.mem_len != there.model.mem_len and "model.mem-len" not in given:
        taken = replace(taken, model=replace(config.model, mem_len=there.model.mem_len))
        changed += [f"model.mem-len {there.model.mem_len}"]
    if changed:
        console.print(f"settings    as the checkpoint was finetuned for {there.task}: {', '.join(changed)}")
    return taken
