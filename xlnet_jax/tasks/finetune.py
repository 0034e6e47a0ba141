"""Finetune a pretrained checkpoint on labelled examples, evaluate it and write its predictions; or evaluate and predict
with a checkpoint that is already finetuned. As in pretraining, the same command resumes an interrupted run.
"""

import hashlib
import json
import math
import shlex
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath
from rich.console import Console
from rich.table import Table

from xlnet_jax.checkpoints.listing import RESULTS
from xlnet_jax.checkpoints.native import write_thresholds
from xlnet_jax.errors import InputError
from xlnet_jax.plots.curves import draw_learning_curves
from xlnet_jax.settings.fields import differences, flatten, with_values
from xlnet_jax.settings.parser import with_keywords
from xlnet_jax.settings.resolution import Resolution, record_given
from xlnet_jax.storage.files import complete_file, name_on_disk, sync_tree, write_durably
from xlnet_jax.storage.reading import write_versioned
from xlnet_jax.tasks.baseline import measure_baseline
from xlnet_jax.tasks.config import FinetuneConfig, folder_of
from xlnet_jax.tasks.defaults import (
    DEFAULTS,
    family_of,
    make_task,
    split_contradictions,
    validate_finetuning,
)
from xlnet_jax.tasks.features import EncodedExamples, TrainingBatches
from xlnet_jax.tasks.model import RANKING, finetuning_of
from xlnet_jax.tasks.prepare import Prepared, describe_examples, memory_of_whole_texts, prepare, read_splits, weights_of
from xlnet_jax.tasks.readers import Role, rows_of
from xlnet_jax.tasks.selection import Predictor, Supervised, describe, evaluation_of
from xlnet_jax.tasks.task import Task
from xlnet_jax.training import sharding
from xlnet_jax.training.attention import check_attention
from xlnet_jax.training.callbacks import usual_callbacks
from xlnet_jax.training.checkpoint import Checkpoints
from xlnet_jax.training.fit import build_fitting, keep_fit
from xlnet_jax.training.hosts import Process, connect
from xlnet_jax.training.initial import begin_from, describe_origin, tokenizer_of
from xlnet_jax.training.loop import Callback, Run, train
from xlnet_jax.training.metrics import read_records
from xlnet_jax.training.selection import Result, or_lowest
from xlnet_jax.training.step import AbstractBatch, Program, batch_like
from xlnet_jax.training.stop import exit_code_of, is_interrupt
from xlnet_jax.training.workdir import Workdir


def finetune(config: FinetuneConfig | None = None, *, callbacks: Sequence[Callback] = (), **settings: Any) -> Result:
    """Finetune a checkpoint for a task, in this process and on all its devices; return the result.

    The same call resumes a run that was stopped, and returns the result of a finished one. Without `train`, it writes
    the predictions of a finetuned checkpoint for the examples of `eval` and `predict`. With `check` it only reads the
    examples, and the result has no metrics.

    config: all settings. Each counts as given, except those of the network, which come with the weights. None = the
    defaults of `task`. settings: fields of FinetuneConfig by name, with sections as dictionaries: task="sst-2",
    init="runs/mine", train="glue/SST-2", steps=200, optimizer={"learning_rate": 1e-4}.

    train, eval and predict are names of files, or rows: a list of dictionaries or a pandas DataFrame, which is written
    to WORKDIR/examples. Rows have the columns of the task. For token classification these are words and labels, lists
    of equal length; for question answering question, context, and answers {"text": […], "answer_start": […]}, as in
    SQuAD on the Hub.

    It runs in this process, or in one process per host as `pretrain` does. callbacks: are called by process 0 while the
    run trains, each seed as a run of its own. Raises InputError if settings contradict each other, the weights or the
    workdir, or an example cannot be read.
    """
    if config is None:
        task = settings.get("task", FinetuneConfig().task)
        if task not in DEFAULTS:
            raise InputError("task", task, f"must be one of {', '.join(DEFAULTS)}")
        config = DEFAULTS[task]()
    else:
        given = {setting.python_name for setting in flatten(config) if not setting.has("weights")}
        if settings.get("epochs", config.epochs) is not None:
            given.remove("steps")  # which the epochs replace
        config = record_given(config, given)
    rows = {role: found for role in ("train", "eval", "predict") if (found := rows_of(settings.get(role))) is not None}
    config = with_keywords(config, settings | dict.fromkeys(rows, "rows"))
    validate_finetuning(config)
    config = replace(config, workdir=folder_of(config))
    if rows:
        config = with_keywords(config, _write_rows(config, rows))
    with connect(config) as process:
        return finetune_as(process, config, callbacks)


def _write_rows(config: FinetuneConfig, rows: dict[str, list[dict[str, Any]]]) -> dict[str, str]:
    """Write the rows of each role to a JSON Lines file named after their hash. Return its path by the role."""
    workdir = Workdir(folder_of(config))
    workdir.make()
    folder = workdir.folder / "examples"
    folder.mkdir(exist_ok=True)
    paths = {}
    for role, of_role in rows.items():
        content = "".join(f"{json.dumps(row, default=str)}\n" for row in of_role).encode()
        paths[role] = str(folder / f"{role}-{hashlib.sha256(content).hexdigest()[:12]}.jsonl")
        with complete_file(paths[role], writer=uuid.uuid4().hex) as file:  # all processes of a run write it
            file.write_bytes(content)
    return paths


def run_finetuning(config: FinetuneConfig) -> int:
    """Finetune, evaluate and predict, as the command does. Return the exit code."""
    with connect(config, is_command=True) as process:
        return exit_code_of(finetune_as(process, config).stopped)


def finetune_as(process: Process, config: FinetuneConfig, callbacks: Sequence[Callback] = ()) -> Result:
    """Finetune, evaluate and predict, as this process of a run. Only process 0 writes files, except checkpoints."""
    with closing(Workdir(folder_of(config))) as workdir:
        if process.first:
            workdir.lock()
        return (
            _finetune_seeds(config, workdir, process, callbacks) if config.train else predict(config, workdir, process)
        )


def _finetune_seeds(config: FinetuneConfig, top: Workdir, process: Process, callbacks: Sequence[Callback]) -> Result:
    seeds = config.seeds
    if len(seeds) > 1:
        _require_no_run(top, "give several seeds a `workdir` of their own")
    elif any(top.folder.glob(f"{seed_folder('*')}/config.json")):
        raise InputError(f"workdir {top.folder} holds the runs of several seeds: give one seed a `workdir` of its own")
    workdirs = {s: top if len(seeds) == 1 else Workdir(top.folder / seed_folder(s)) for s in seeds}
    prepared, results = None, {}
    for number, (seed, workdir) in enumerate(workdirs.items(), 1):
        if prepared is None or prepared.task.draws_anew:
            prepared = prepare(config, seed, list(workdirs.values()), process.console)
        if config.check:
            return Result(str(top.folder), str(config.init), 0, "", {}, task=config.task, baseline=prepared.baseline)
        if len(seeds) > 1:
            process.console.print(f"\nseed        {seed}, {number} of {len(seeds)}, in {workdir.folder}")
        of_seed = prepared.settings.branch()
        of_seed.set({"seed": seed})
        with closing(workdir), workdir.keep_programs():
            result = finetune_seed(replace(prepared, settings=of_seed), workdir, process, callbacks)
        if is_interrupt(result.stopped):
            return result
        results[seed] = result
        process.began = time.time()
    if len(seeds) > 1 and process.first:
        result = summarize(top.folder, results, process.console)
    return result


def seed_folder(seed: int | str) -> str:
    """Return the name of the folder of one seed in a run with several; "*" matches all."""
    return f"seed-{seed}"


def _require_no_run(workdir: Workdir, hint: str) -> None:
    """Raise InputError if the workdir holds a run, whose results and predictions would be overwritten."""
    if workdir.has_checkpoints:
        raise InputError(f"workdir {workdir.folder} holds a run, with results of its own: {hint}")


def summarize(workdir: epath.Path, by_seed: Mapping[int, Result], console: Console) -> Result:
    """Print the metrics of each seed, their mean and sample standard deviation. Write them to results.json, with the
    checkpoint of the best seed. Return the best seed's result with the mean metrics."""
    names = list(dict.fromkeys(name for result in by_seed.values() for name in result.metrics))
    columns = {name: [r.metrics.get(name, math.nan) for r in by_seed.values()] for name in names}
    mean = {name: float(np.mean(values)) for name, values in columns.items()}
    deviation = {name: float(np.std(values, ddof=1)) for name, values in columns.items()}
    table = Table("seed", "step", *names)
    for i, (seed, result) in enumerate(by_seed.items()):
        table.add_row(str(seed), f"{result.step:,}", *(f"{columns[name][i]:.4g}" for name in names))
    table.add_section()
    table.add_row("mean", "", *(f"{mean[name]:.4g} ± {deviation[name]:.2g}" for name in names))
    baseline = next(iter(by_seed.values())).baseline
    if baseline:
        table.add_row("baseline", "", *(f"{baseline.metrics.get(name, math.nan):.4g}" for name in names))
    console.print(table)
    if baseline:
        console.print("\n".join(("mean of the seeds:", *baseline.compare(mean))))
    best = max(by_seed.values(), key=lambda result: or_lowest(result.metrics.get(result.metric, math.nan)))
    content = {
        "task": best.task,
        "checkpoint": best.checkpoint.removeprefix(f"{workdir}/"),
        "metric": best.metric,
        "mean": mean,
        "deviation": deviation,
        "baseline": baseline and asdict(baseline),
        "seeds": {str(seed): _row(result) for seed, result in by_seed.items()},
    }
    write_versioned(workdir / RESULTS, "results", content)
    return replace(best, workdir=str(workdir), metrics=mean)


def _row(result: Result) -> dict[str, Any]:
    """Return what results.json holds, with paths relative to the workdir, so that it can be moved."""
    row, above = asdict(result), f"{result.workdir}/"
    row = {name: row[name] for name in ("task", "checkpoint", "step", "metric", "metrics", "predictions", "baseline")}
    paths = [path.removeprefix(above) for path in result.predictions]
    return row | {"checkpoint": result.checkpoint.removeprefix(above), "predictions": paths}


def finetune_seed(prepared: Prepared, workdir: Workdir, process: Process, callbacks: Sequence[Callback]) -> Result:
    """Train, evaluate and predict with one seed."""
    settings, task = prepared.settings, prepared.task
    # ---- workdir ----------------------------------------------------------------------------------------------------
    keep_fit(settings, workdir.resumes(FinetuneConfig))
    if process.first:
        workdir.claim(settings.config)
        if not workdir.has_checkpoints:  # an earlier attempt with other weights may have left a tokenizer
            workdir.tokenizer.rmtree(missing_ok=True)
            prepared.tokenizer.save(workdir.tokenizer)
    process.require_same("other examples in `train`", {"SHA-256": prepared.sha256[:12]})
    workdir.require_shared()
    # ---- program and weights ----------------------------------------------------------------------------------------
    given = settings.config
    batches = TrainingBatches(prepared.training_features, given.data, given.seed, given.balance == "sampling")
    program, memory = build_fitting(settings, _builder(settings.config, task, batches, process), workdir, process)
    config = settings.final()
    params, origin = dict[str, Any](), "all weights randomly initialized"
    if prepared.start and not config.reinitialize:
        params, drawn = weights_of(prepared.start, config.head, program.plan.params)
        origin = describe_origin(config.init, drawn)
    # ---- evaluation -------------------------------------------------------------------------------------------------
    predictor, held_out = Predictor(program), prepared.splits.get("eval")
    evaluation = evaluation_of(predictor, task, held_out, prepared.baseline) if held_out else None
    # ---- loop -------------------------------------------------------------------------------------------------------
    run = Run(
        config, workdir, program, batches, evaluation, params, origin, memory,
        rates=lambda seconds: {"seconds_per_step": seconds, "examples_per_second": config.data.batch_size / seconds},
        locate=lambda batch: f"(seed {config.seed}, batch {batch})",
        callbacks=[*usual_callbacks(workdir, config.log.wandb, process.console), *callbacks],
    )  # fmt: skip
    process.console.print(run.describe(f"{config.data.batch_size:,} examples of up to {config.data.seq_len} tokens"))
    epochs = config.steps / batches.steps_per_epoch
    process.console.print(f"steps       {config.steps:,}, {epochs:,.1f} epochs of {batches.steps_per_epoch:,}")
    data = {"examples_sha256": prepared.sha256}
    with Checkpoints(workdir.checkpoints, config, workdir.tokenizer, 1, data, process, evaluation) as checkpoints:
        loop = train(run, checkpoints, process)
        result = replace(loop.result(), task=config.task, baseline=prepared.baseline)
        if loop.is_interrupted:
            return result
        params = checkpoints.restore_params(result.step, program.plan.params)
    # ---- scores and predictions of the best checkpoint --------------------------------------------------------------
    metrics, files, picture = predict_splits(task, prepared.splits, predictor, params, workdir, process)
    result = replace(result, metrics=metrics, predictions=files)
    if process.first:
        _write_results(result, config, task, workdir)
        _report(result, workdir, picture, process.console)
    return result


def _builder(
    config: FinetuneConfig, task: Task[Any, Any], batches: TrainingBatches, process: Process
) -> Callable[[FinetuneConfig], tuple[Program[Supervised], AbstractBatch]]:
    """Return a function that makes the program of settings, and the shapes of its largest batch."""
    attention, longest = check_attention(config, process), batches.longest

    def build(config: FinetuneConfig) -> tuple[Program[Supervised], AbstractBatch]:
        for broken in split_contradictions(config):
            raise broken
        computed = with_values(config, {"model.attention": attention})
        program = Program.of(computed, Supervised(computed, task))
        return program, batch_like(longest, config.data.batch_size, program.mesh)

    return build


def _write_results(result: Result, config: FinetuneConfig, task: Task[Any, Any], workdir: Workdir) -> None:
    """Draw the curves and write results.json."""
    unit = "squared error" if config.head.task == "regression" and config.task != RANKING else "nats"
    title, records = f"{workdir.folder.name}: finetuning for {config.task}", read_records(workdir.metrics)
    best = result.step if result.metric else None
    draw_learning_curves(records, task.selected_by, best, unit, workdir.curves, title)
    if task.tuned_thresholds:
        write_thresholds(epath.Path(result.checkpoint), task.tuned_thresholds)
    sync_tree(workdir.folder)  # results.json is the last file to be written: when it exists, the run is complete
    write_versioned(workdir.folder / RESULTS, "results", _row(result))


def _report(result: Result, workdir: Workdir, picture: str | None, console: Console) -> None:
    """Print the metrics, the paths of all files, and what to run next."""
    there, copy = name_on_disk(result.workdir)
    command = shlex.join(["python", "-m", "xlnet_jax.finetune", "--task", result.task, "--init", there])
    places = [
        ("checkpoint", result.checkpoint + (f", the best by {result.metric}" if result.metric else "")),
        ("curves", workdir.curves if workdir.curves.exists() else None),
        ((picture or "").removesuffix(".png"), picture and workdir.folder / picture),
        *(("predictions", file) for file in result.predictions),
        ("results", workdir.folder / RESULTS),
        ("metrics", f"{workdir.metrics} and {workdir.tensorboard}"),
    ]
    following = [
        ("copy", copy),
        ("predict", f"{command} --predict FILES"),
        ("in Python", f"xlnet_jax.load({there!r}).predict([...])"),
    ]
    if result.task == "embedding":
        vectors = shlex.join(["python", "-m", "xlnet_jax.embed", there, "--text", "FILES", "--out", "vectors.npy"])
        following[1:] = [("embed", vectors), ("in Python", f"xlnet_jax.load({there!r}).encode([...])")]
    console.print(f"\n{describe(result.metrics)}" if result.metrics else "")
    if result.baseline:
        console.print("\n".join(result.baseline.compare(result.metrics)))
    console.print("\n".join(f"  {name:12} {place}" for name, place in places if place))
    if result.task != RANKING:  # whose command needs its collection of documents too
        console.print("next\n" + "\n".join(f"  {name:12} {line}" for name, line in following if line))


def predict(config: FinetuneConfig, workdir: Workdir, process: Process) -> Result:
    """Write the predictions and metrics of the checkpoint config.init.

    Raises InputError if the checkpoint has no head for the task, or the workdir holds a training run.
    """
    say = process.console.print
    _require_no_run(workdir, "give predictions another `workdir`")
    settings = Resolution.of(config, DEFAULTS[config.task]())
    start = begin_from(settings, None)
    config = settings.config
    validate_finetuning(config)
    assert start is not None
    wanted = config.head.task
    found = start.head if start.head and start.head.task == wanted else None
    if found is None and config.head.has_weights:
        has = "vocabulary scores" if start.head is None else f"a head for {start.head.task}"
        raise InputError(
            "init",
            config.init,
            f"has {has}, and `task` {config.task} needs a head for {wanted}: give `train` to finetune it, or name a "
            "finetuned checkpoint",
        )
    settings.set({"head": found or config.head, **memory_of_whole_texts(config.model)})
    there = finetuning_of(Path(str(config.init)))
    taken = settings_of_reading(there, settings.config) if there else {}
    settings.choose(taken, f"in the checkpoint's finetuning for {there.task}" if there else "")
    thresholds = {name: value for name, value in start.thresholds.items() if name not in taken}
    settings.choose(thresholds, "the checkpoint's finetuning chose it by its scores on `eval`")
    for line in settings.log:
        say(line)
    config = settings.final()
    task = make_task(config)
    splits = read_splits(config, task, tokenizer_of(start, config))
    say("\n".join(describe_examples(task, splits)))
    if config.check:
        return Result(str(workdir.folder), str(config.init), 0, "", {}, task=config.task)
    program = Program.of(config, Supervised(config, task))
    params, _ = weights_of(start, config.head, program.plan.params)
    params = sharding.from_host(params, sharding.shardings_of(program.plan.params))
    metrics, files, picture = predict_splits(task, splits, Predictor(program), params, workdir, process)
    baseline = None
    if "eval" in splits:
        examples = splits["eval"].examples
        baseline = measure_baseline(task, examples, examples)
        say(f"baseline    {baseline.describe()} of these examples")
        say("\n".join((f"eval        {describe(metrics)}", *baseline.compare(metrics))))
    say("\n".join(f"  {file}" for file in [*files, *([workdir.folder / picture] if picture else [])]))
    return Result(
        str(workdir.folder), str(config.init), 0, "", metrics, task=config.task, predictions=files, baseline=baseline
    )


def predict_splits(
    task: Task[Any, Any],
    splits: Mapping[Role, EncodedExamples],
    predictor: Predictor,
    params: Any,
    workdir: Workdir,
    process: Process,
) -> tuple[dict[str, float], tuple[str, ...], str | None]:
    """Write the predictions of all splits. Return the metrics on "eval", the files of predictions, and the name of the
    plot of predictions and labels of "eval"; None if the task has no plot."""
    metrics: dict[str, float] = {}
    files, picture = [], None
    for name, split in splits.items():
        outputs = predictor.outputs(params, split.features)
        assert outputs is not None
        answers = task.answers(split.examples, split.features, outputs)
        if name == "eval":
            metrics = task.metrics(split.examples, answers)
        if process.first:
            folder = workdir.folder / "predictions" / name
            folder.mkdir(parents=True, exist_ok=True)
            files += [str(folder / file) for file in task.write(folder, split.examples, answers)]
            if name == "eval":
                write_durably(folder / "metrics.json", (json.dumps(metrics, indent=2) + "\n").encode())
                title = f"{workdir.folder.name}: predictions for the examples of eval"
                picture = task.draw(split.examples, answers, workdir.folder, title)
    return metrics, tuple(files), picture


def settings_of_reading(there: FinetuneConfig, config: FinetuneConfig) -> dict[str, Any]:
    """Return the settings with which a finetuning run read and cut its texts, where they differ, so that prediction
    does the same; {} for a task of another family."""
    if family_of(there) != family_of(config):
        return {}
    sections = ["data.", "qa.", "label-threshold", "temperature", "model.mem-len"]
    sections += ["columns."] * (there.task == config.task)
    return {s.python_name: s.value for s, _ in differences(there, config) if s.name.startswith(tuple(sections))}
