"""A finetuning run: from a pretrained checkpoint and labelled examples to a model, its scores and its predictions.

As in pretraining, the same command resumes after any interruption.
"""

import shlex
import time
from contextlib import closing
from dataclasses import replace

from rich.console import Console

from xlnet_jax.checkpoints.native import write_thresholds
from xlnet_jax.errors import InputError
from xlnet_jax.plots.curves import draw_learning_curves
from xlnet_jax.settings.config import DistributedConfig
from xlnet_jax.settings.fields import with_values
from xlnet_jax.storage.files import name_on_disk
from xlnet_jax.storage.folders import sync_tree
from xlnet_jax.tasks.batches import TrainingBatches
from xlnet_jax.tasks.config import FinetuneConfig, folder_of
from xlnet_jax.tasks.families import with_files
from xlnet_jax.tasks.model import RANKING
from xlnet_jax.tasks.objective import Supervised
from xlnet_jax.tasks.predict import demand_no_run, predict, predict_splits
from xlnet_jax.tasks.prepare import Prepared, prepare
from xlnet_jax.tasks.results import Result, seed_folder, summarize, write_result
from xlnet_jax.tasks.selection import Predictor, Selection, describe
from xlnet_jax.training.attention import check_attention
from xlnet_jax.training.fit import Memory, fit_memory, keep_fit
from xlnet_jax.training.kernel_check import Texts
from xlnet_jax.training.loop import train
from xlnet_jax.training.program import AbstractBatch, Program, batch_like
from xlnet_jax.training.run.checkpoint import Checkpoints
from xlnet_jax.training.run.compile_cache import programs_kept_in
from xlnet_jax.training.run.hosts import Hosts, connect
from xlnet_jax.training.run.process import Process
from xlnet_jax.training.run.workdir import Workdir
from xlnet_jax.training.training_run import Numbers, Run
from xlnet_jax.training.watch.metrics import read_records


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
        with closing(workdir), programs_kept_in(str(workdir.compiled)):
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
    texts = Texts(config.data.seq_len, config.model.mem_len if config.data.long_texts == "memory" else 0)
    attention = check_attention(config, process, texts)
    batches = TrainingBatches(prepared.training_features, config.data, config.seed)
    longest = batches.longest

    def build(config: FinetuneConfig) -> tuple[Program[Supervised], AbstractBatch]:
        computed = with_values(config, {"model.attention": attention})
        program = Program.of(computed, Supervised(computed, prepared.task))
        return program, batch_like(longest, config.data.batch_size, program.mesh)

    config = fit_memory(config, build, workdir, process)
    program, batch = build(config)
    memory = Memory.of(program, batch, config, workdir, process)
    if not memory.fits:
        raise memory.refusal(workdir)
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
