"""A finetuning run: from a pretrained checkpoint and labelled examples to a model, its scores and its predictions; or
predictions of a finetuned checkpoint alone. As in pretraining, the same command resumes after any interruption.
"""

import json
import math
import shlex
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from rich.console import Console
from rich.table import Table

from xlnet_jax.checkpoints.native import RESULTS, write_thresholds
from xlnet_jax.errors import InputError
from xlnet_jax.interop.contents import describe_thresholds
from xlnet_jax.plots.curves import draw_learning_curves
from xlnet_jax.settings.config import DistributedConfig
from xlnet_jax.settings.fields import given_in, with_values
from xlnet_jax.storage.files import name_on_disk, sync_tree, write_durably
from xlnet_jax.storage.reading import write_versioned
from xlnet_jax.tasks.config import FinetuneConfig, folder_of
from xlnet_jax.tasks.defaults import DEFAULTS, is_of_one_family, make_task, validate_finetuning, with_files
from xlnet_jax.tasks.features import TrainingBatches
from xlnet_jax.tasks.model import RANKING, finetuning_of, with_thresholds
from xlnet_jax.tasks.prepare import Prepared, Split, prepare, read_splits, weights_of
from xlnet_jax.tasks.selection import Predictor, Selection, Supervised, describe, or_lowest
from xlnet_jax.tasks.task import Task
from xlnet_jax.training import sharding
from xlnet_jax.training.attention import check_attention, two_texts
from xlnet_jax.training.checkpoint import Checkpoints
from xlnet_jax.training.fit import build_fitting, keep_fit
from xlnet_jax.training.hosts import Hosts, Process, connect
from xlnet_jax.training.initial import begin_from, tokenizer_of
from xlnet_jax.training.loop import Numbers, Run, train
from xlnet_jax.training.metrics import read_records
from xlnet_jax.training.step import AbstractBatch, Program, batch_like
from xlnet_jax.training.workdir import Workdir


@dataclass(frozen=True)
class Result:
    """Result of a run, or of one seed of it."""

    workdir: str
    """folder of the run: checkpoints, results.json, metrics.jsonl, predictions/"""
    task: str
    checkpoint: str
    """folder of the checkpoint that is the result, for `load`: the best one, or the last where nothing was evaluated;
    of several seeds that of the best; of predictions alone the one that made them"""
    step: int
    metric: str
    """metric by which it was chosen; "" where nothing was evaluated"""
    metrics: Mapping[str, float]
    """metrics of that checkpoint on the examples of `eval`; of several seeds their mean"""
    predictions: tuple[str, ...]
    """files of predictions"""


def write_result(workdir: epath.Path, result: Result) -> None:
    """Write results.json of a run with one seed."""
    _write(workdir, _row(workdir, result))


def summarize(workdir: epath.Path, by_seed: Mapping[int, Result], console: Console) -> Result:
    """Print the metrics of each seed with their mean and sample standard deviation; write them to results.json, with
    the checkpoint of the seed whose metric is the highest. Return that seed's result with the mean of the metrics."""
    names = list(dict.fromkeys(name for result in by_seed.values() for name in result.metrics))
    columns = {name: [r.metrics.get(name, float("nan")) for r in by_seed.values()] for name in names}
    mean = {name: float(np.mean(values)) for name, values in columns.items()}
    deviation = {name: float(np.std(values, ddof=1)) for name, values in columns.items()}
    table = Table("seed", "step", *names)
    for i, (seed, result) in enumerate(by_seed.items()):
        table.add_row(str(seed), f"{result.step:,}", *(f"{columns[name][i]:.4g}" for name in names))
    table.add_section()
    table.add_row("mean", "", *(f"{mean[name]:.4g} ± {deviation[name]:.2g}" for name in names))
    console.print(table)
    best = max(by_seed.values(), key=lambda result: or_lowest(result.metrics.get(result.metric, math.nan)))
    _write(
        workdir,
        {
            "task": best.task,
            "checkpoint": _relative(workdir, best.checkpoint),
            "metric": best.metric,
            "mean": mean,
            "deviation": deviation,
            "seeds": {str(seed): _row(epath.Path(r.workdir), r) for seed, r in by_seed.items()},
        },
    )
    return replace(best, workdir=str(workdir), metrics=mean)


def seed_folder(seed: int | str) -> str:
    """Return the folder of one seed of a run with several; "*" matches all."""
    return f"seed-{seed}"


def _row(workdir: epath.Path, result: Result) -> dict[str, Any]:
    """Return a result with paths relative to its workdir, which may move."""
    row = asdict(result)
    del row["workdir"]
    paths = tuple(_relative(workdir, path) for path in result.predictions)
    return row | {"checkpoint": _relative(workdir, result.checkpoint), "predictions": paths}


def _relative(workdir: epath.Path, path: str) -> str:
    return path.removeprefix(f"{workdir}/")


def _write(workdir: epath.Path, values: dict[str, Any]) -> None:
    write_versioned(workdir / RESULTS, "results", values)


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


def run(config: FinetuneConfig, *, is_command: bool = False) -> tuple[Result | None, int]:
    """Finetune, evaluate and predict. Return the result and exit code 0; (None, exit code) of a run that was stopped
    with its state saved.

    The run is in this process, or in one process on each host as in `pretrain`; is_command: likewise. Raises InputError
    where settings contradict each other, the weights or the workdir, or a file of examples cannot be read.
    """
    with connect(config) as hosts:
        config = replace(config, distributed=DistributedConfig())
        return _run(config, Process.begin(config, hosts, is_command))


def run_finetuning(config: FinetuneConfig) -> int:
    """Finetune, evaluate and predict as the command does; return the exit code."""
    return run(config, is_command=True)[1]


def _run(config: FinetuneConfig, process: Process) -> tuple[Result | None, int]:
    """Finetune, evaluate and predict. Process 0 alone writes everything but the checkpoints."""
    config = with_files(config)
    if not config.train:
        return predict(config, process), 0
    top, seeds = Workdir(folder_of(config)), config.seeds
    if len(seeds) > 1:
        demand_no_run(top, "give several seeds a `workdir` of their own")
    elif any(top.folder.glob(f"{seed_folder('*')}/config.json")):
        raise InputError(f"workdir {top.folder} holds the runs of several seeds: give one seed a `workdir` of its own")
    workdirs = {s: top if len(seeds) == 1 else Workdir(top.folder / seed_folder(s)) for s in seeds}
    prepared, results = None, {}
    for number, (seed, workdir) in enumerate(workdirs.items(), 1):
        if prepared is None or prepared.task.draws_anew:
            prepared = prepare(replace(config, seed=seed), list(workdirs.values()), process.console)
        if len(seeds) > 1:
            process.console.print(f"\nseed        {seed}, {number} of {len(seeds)}, in {workdir.folder}")
        of_seed = replace(prepared, config=replace(prepared.config, seed=seed))
        with closing(workdir), workdir.keep_programs():
            result, exit_code = _train(of_seed, workdir, process)
        if result is None:
            return None, exit_code
        results[seed] = result
        process = replace(process, began=time.time())
    if len(seeds) > 1 and process.hosts.first:
        result = summarize(top.folder, results, process.console)
    return result, 0


def _train(prepared: Prepared, workdir: Workdir, process: Process) -> tuple[Result | None, int]:
    """Return the result, or None and the exit code of a stop."""
    prepared = replace(prepared, config=keep_fit(prepared.config, workdir.resumes(FinetuneConfig)))
    _claim(prepared, workdir, process.hosts)
    predictor, selection, run = _build(prepared, workdir, process)
    data = {"examples_sha256": prepared.sha256}

    def best_step() -> int | None:
        return selection.best_step if selection else None

    # ---- training ---------------------------------------------------------------------------------------------------
    folder, tokenizer = workdir.checkpoints, workdir.tokenizer
    with Checkpoints(folder, run.config, tokenizer, 1, data, best_step, process.hosts) as checkpoints:
        done, exit_code = train(run, checkpoints, process)
        if exit_code:
            return None, exit_code
        best = best_step()
        if best is not None and not checkpoints.has(best):  # a skipped step leaves no checkpoint
            best = None
        step = done if best is None else best
        params = checkpoints.restore_params(step, run.program.plan.params)
    # ---- scores and predictions of the best checkpoint ---------------------------------------------------------------
    found = predict_splits(prepared.task, prepared.splits, predictor, params, workdir, process)
    chosen_by = selection.metric if selection and best is not None else ""
    here = workdir.folder
    files = tuple(str(here / file) for file in found.files)
    checkpoint = here / "checkpoints" / str(step)
    result = Result(str(here), prepared.config.task, str(checkpoint), step, chosen_by, found.metrics, files)
    if process.hosts.first:
        has_curves = _draw_curves(run, prepared.config, selection.metric if selection else "", result)
        if found.thresholds:
            write_thresholds(checkpoint, found.thresholds)
        sync_tree(workdir.folder)  # once results.json exists, all of it does
        write_result(workdir.folder, result)
        _report(result, workdir, has_curves, found.picture, process.console)
    return result, 0


def _claim(prepared: Prepared, workdir: Workdir, hosts: Hosts) -> None:
    """Take the workdir for this run. Raise InputError where it holds another run, or the hosts read other examples."""
    if hosts.first:
        workdir.claim(prepared.config)
        if not workdir.has_checkpoints:  # an attempt with other weights may have left its tokenizer
            workdir.tokenizer.rmtree(missing_ok=True)
            prepared.tokenizer.save(workdir.tokenizer)
    hosts.demand_same("other examples in `train`", {"SHA-256": prepared.sha256[:12]})
    workdir.demand_shared()


def _build(prepared: Prepared, workdir: Workdir, process: Process) -> tuple[Predictor, Selection | None, Run]:
    config, console = prepared.config, process.console
    if prepared.narrow:
        console.print(f"narrow      {prepared.narrow}; --no-narrow-start keeps the values in parentheses")
    # ---- batches, objective and state -------------------------------------------------------------------------------
    mem_len = config.model.mem_len if config.data.long_texts == "memory" else 0
    attention = check_attention(config, process, lambda: two_texts(config.data.seq_len, mem_len))
    batches = TrainingBatches(prepared.training_features, config.data, config.seed)
    longest = batches.longest

    def build(config: FinetuneConfig) -> tuple[Program[Supervised], AbstractBatch]:
        computed = with_values(config, {"model.attention": attention})
        program = Program.of(computed, Supervised(computed, prepared.task))
        return program, batch_like(longest, config.data.batch_size, program.mesh)

    config, program, memory = build_fitting(config, build, workdir, process)
    weights = prepared.weights(program.plan.params)
    # ---- evaluation -------------------------------------------------------------------------------------------------
    predictor, selection = Predictor(program), None
    if held_out := prepared.splits.get("eval"):
        metric = config.selection.metric or prepared.task.metric
        selection = Selection(config, predictor, prepared.task, held_out.examples, held_out.features, metric)

    def rates(seconds: float) -> Numbers:
        return {"seconds_per_step": seconds, "examples_per_second": config.data.batch_size / seconds}

    def locate(batch: int) -> str:
        return f"(seed {config.seed}, batch {batch})"

    run = Run(config, workdir, program, batches, selection, weights, memory, rates, locate)
    console.print(run.describe(f"{config.data.batch_size:,} examples of up to {config.data.seq_len} tokens"))
    epochs = config.steps / batches.steps_per_epoch
    console.print(f"steps       {config.steps:,}, {epochs:,.1f} epochs of {batches.steps_per_epoch:,}")
    return predictor, selection, run


def _draw_curves(run: Run, config: FinetuneConfig, metric: str, result: Result) -> bool:
    """Draw the learning curves; return False where there is nothing to show."""
    chosen = result.step if result.metric else None
    of_numbers = config.head.task == "regression" and config.task != "ranking"
    unit = "squared error" if of_numbers else "nats"
    title = f"{run.workdir.folder.name}: finetuning for {config.task}"
    return draw_learning_curves(read_records(run.workdir.metrics), metric, chosen, unit, run.workdir.curves, title)


def _report(result: Result, workdir: Workdir, has_curves: bool, picture: str | None, console: Console) -> None:
    """Print the metrics, and where everything is."""
    how = f", the best by {result.metric}" if result.metric else ""
    score = f"\n{describe(result.metrics)}" if result.metrics else ""
    pictures = f"  curves       {workdir.curves}\n" if has_curves else ""
    pictures += f"  {picture.removesuffix('.png'):12} {workdir.folder / picture}\n" if picture else ""
    files = "".join(f"  predictions  {file}\n" for file in result.predictions)
    there, copy = name_on_disk(str(workdir.folder))
    command = shlex.join(["python", "-m", "xlnet_jax.finetune", "--task", result.task, "--init", there])
    following = "\nnext\n" + (f"  copy         {copy}\n" if copy else "")
    following += f"  predict      {command} --predict FILES\n  in Python    xlnet_jax.load({there!r}).predict([...])"
    console.print(
        f"{score}\n"
        f"  checkpoint   {result.checkpoint}{how}\n"
        f"{pictures}"
        f"{files}"
        f"  results      {workdir.folder / 'results.json'}\n"
        f"  metrics      {workdir.metrics} and {workdir.tensorboard}"
        f"{'' if result.task == RANKING else following}"  # whose command needs its collection of documents too
    )
