"""A finetuning run: from a pretrained checkpoint and labelled examples to a model, its scores and its predictions.

The same command after any interruption goes on where it stood, as in pretraining.
"""

import functools
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import optax
from etils import epath
from rich.console import Console

from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.checkpoints import native
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.errors import InputError
from xlnet_jax.interop.weights import flatten, nest
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.settings.plain import from_dict
from xlnet_jax.storage.files import read_json, write_durably
from xlnet_jax.tasks.base import Task
from xlnet_jax.tasks.batches import TrainingBatches
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.defaults import DEFAULTS
from xlnet_jax.tasks.families import make_task, with_files
from xlnet_jax.tasks.features import Features
from xlnet_jax.tasks.objective import Supervised
from xlnet_jax.tasks.results import Result, seed_folder, summarize, write_result
from xlnet_jax.tasks.rules import validate_finetuning
from xlnet_jax.tasks.selection import Predictor, Selection, describe
from xlnet_jax.training import sharding
from xlnet_jax.training.initial import begin_from, shown, tokenizer_of
from xlnet_jax.training.optimizer import make_optimizer
from xlnet_jax.training.run.checkpoint import Checkpoints
from xlnet_jax.training.run.compile_cache import programs_kept_in
from xlnet_jax.training.run.course import Course, introduction
from xlnet_jax.training.run.hosts import ALONE, Hosts
from xlnet_jax.training.run.workdir import Workdir
from xlnet_jax.training.state import StatePlan, TrainState, init_state, plan_state, with_params
from xlnet_jax.training.step import make_train_step
from xlnet_jax.training.watch.wandb import demand_wandb

PREDICTIONS, METRICS = "predictions", "metrics.json"


@dataclass(frozen=True)
class Split:
    """Examples that are only looked at, and what the network reads of them."""

    examples: Sequence[Any]
    features: Features


@dataclass(frozen=True)
class Prepared:
    """All that a run of any seed needs. splits: eval and predict, those that are given."""

    config: FinetuneConfig
    task: Task[Any]
    start: Pretrained | None  # None where all seeds go on from checkpoints of their own
    tokenizer: Tokenizer
    train: Sequence[Any]
    splits: Mapping[str, Split]
    training_features: Callable[[int], Features]  # of an epoch

    @functools.cached_property
    def sha256(self) -> str:
        """Of what is learned from."""
        digest = hashlib.sha256()
        for example in self.train:
            digest.update(repr(example).encode())
        return digest.hexdigest()


def finetune(config: FinetuneConfig, hosts: Hosts = ALONE) -> int:
    """Finetunes, evaluates and predicts as the settings say. Returns 0, or the exit code of a run that was stopped with
    its state saved. Of several processes, process 0 alone writes what is not a checkpoint."""
    began = time.time()
    console = Console(soft_wrap=True, highlight=False, markup=False, quiet=not hosts.first)
    jax.devices()  # all processes find them together, and none before the others
    if config.log.wandb and hosts.first:
        demand_wandb(config.log.wandb)
    config = with_files(config)
    if not config.train:
        return _predict_only(config, Workdir(config.workdir or f"runs/{config.task}-predictions"), hosts, console)
    top, seeds = Workdir(config.workdir or f"runs/{config.task}"), config.seeds
    if len(seeds) > 1:
        _demand_no_run(top, "give several seeds a --workdir of their own")
    elif any(top.folder.glob(f"{seed_folder('*')}/config.json")):
        raise InputError(f"workdir {top.folder} holds the runs of several seeds: give one seed a --workdir of its own")
    workdirs = {s: top if len(seeds) == 1 else Workdir(top.folder / seed_folder(s)) for s in seeds}
    prepared, results = None, {}
    for seed, workdir in workdirs.items():
        if prepared is None or prepared.task.draws_anew:
            prepared = _prepare(replace(config, seed=seed), list(workdirs.values()), console)
        if len(seeds) > 1:
            console.print(f"\nseed        {seed}, {list(seeds).index(seed) + 1} of {len(seeds)}, in {workdir.folder}")
        of_seed = replace(prepared, config=replace(prepared.config, seed=seed))
        with programs_kept_in(str(workdir.compiled)):
            result, exit_code = _train(of_seed, workdir, hosts, console, began)
        if result is None:
            return exit_code
        results[seed] = result
        began = time.time()
    if len(seeds) > 1 and hosts.first:
        summarize(top.folder, results, console)
    return 0


def _prepare(config: FinetuneConfig, workdirs: Sequence[Workdir], console: Console) -> Prepared:
    # ---- weights ----------------------------------------------------------------------------------------------------
    there = [workdir.resumes(FinetuneConfig) for workdir in workdirs]
    own = there[0] if all(there) else None
    config, start = begin_from(config.init, config, own, DEFAULTS[config.task]().model)
    if not config.model.mem_len:  # a row of same_length sees as far as the memory is long
        config = replace(config, model=replace(config.model, same_length=False))
    if source := start or own:
        config = replace(config, objective=source.objective)
    validate_finetuning(replace(config, seed=0))  # --seeds has set it
    tokenizer = tokenizer_of(start, config) if start else Tokenizer.load(workdirs[0].tokenizer)
    if config.reinitialize:
        config = _drawn_like(start or own, config)
    # ---- examples ---------------------------------------------------------------------------------------------------
    task = make_task(config)
    train = task.read(config.train, True)
    config = replace(config, head=task.head(train))
    splits = _splits(config, task, tokenizer)

    @functools.lru_cache(1)
    def drawn(epoch: int) -> Features:
        return task.features(train, tokenizer, config.head, training=True, epoch=epoch)

    def training_features(epoch: int) -> Features:
        return drawn(epoch if task.draws_anew else 0)

    config = with_steps(config, len(training_features(0)))
    sharding.make_mesh(config)
    read = [f"{len(train):,} to learn from", *(f"{len(s.examples):,} to {name}" for name, s in splits.items())]
    console.print(f"examples    {', '.join(read)}")
    return Prepared(config, task, start, tokenizer, train, splits, training_features)


def _drawn_like(source: Pretrained | FinetuneConfig | None, config: FinetuneConfig) -> FinetuneConfig:
    """Weights drawn afresh are as large as those were before pretraining, unless the settings say how large: a narrow
    network learns little from what suits a wide one, and the comparison would be with that."""
    assert source
    if config.model.init_std != DEFAULTS[config.task]().model.init_std:
        return config
    return replace(config, model=replace(config.model, init_std=source.model.init_std))


def _splits(config: FinetuneConfig, task: Task[Any], tokenizer: Tokenizer) -> dict[str, Split]:
    splits = {}
    for name, paths, labelled in (("eval", config.eval, True), ("predict", config.predict, False)):
        if paths:
            examples = task.read(paths, labelled)
            splits[name] = Split(examples, task.features(examples, tokenizer, config.head, training=False))
    return splits


def with_steps(config: FinetuneConfig, items: int) -> FinetuneConfig:
    """The settings with the updates that `epochs` come to; a warmup that nobody set keeps its share of the steps."""
    default = DEFAULTS[config.task]()
    steps = config.steps
    if config.epochs is not None:
        steps = max(round(config.epochs * -(-items // config.data.batch_size)), 1)
    optimizer = config.optimizer
    if steps != default.steps and optimizer.warmup_steps == default.optimizer.warmup_steps:
        optimizer = replace(optimizer, warmup_steps=round(optimizer.warmup_steps * steps / default.steps))
    return replace(config, steps=steps, optimizer=optimizer)


def _train(run: Prepared, workdir: Workdir, hosts: Hosts, console: Console, began: float) -> tuple[Result | None, int]:
    config = run.config
    if hosts.first:
        workdir.claim(config)
        if not workdir.has_checkpoints:  # what is there may be of other weights, that nothing was learned from
            workdir.tokenizer.rmtree(missing_ok=True)
            run.tokenizer.save(workdir.tokenizer)
    _demand_same_examples(hosts.gather(f"claimed {workdir.folder}", run.sha256))
    hosts.demand_shared(workdir.folder)
    # ---- model and batches ------------------------------------------------------------------------------------------
    mesh = sharding.make_mesh(config)
    objective, tx = Supervised(config, config.head, run.task), make_optimizer(config.optimizer, config.steps)
    plan = plan_state(objective, tx, mesh)
    rows = sharding.process_rows(mesh, config.data.batch_size)
    batches = TrainingBatches(run.training_features, config.data, config.seed)
    predictor = Predictor(config, objective, plan, mesh)
    selection = _selection(run, predictor)
    epochs = config.steps / batches.steps_per_epoch
    examples = f"{config.data.batch_size:,} examples of up to {config.data.seq_len} tokens"
    console.print(introduction(config, plan, mesh, len(rows), examples))
    console.print(f"steps       {config.steps:,}, {epochs:,.1f} epochs of {batches.steps_per_epoch:,}")
    # ---- training, and the best checkpoint --------------------------------------------------------------------------
    course = Course(
        config,
        workdir,
        plan,
        lambda: _first_state(run, objective, tx, plan, console),
        make_train_step(config, objective, tx, plan, mesh),
        lambda start: batches.iterate(start, config.steps, rows),
        sharding.batch_to_mesh(mesh, config.data.batch_size),
        selection,
        {},
        lambda seconds: {"seconds_per_step": seconds, "examples_per_second": config.data.batch_size / seconds},
        lambda batch: f"(seed {config.seed}, batch {batch})",
    )
    chosen = (lambda: selection.best_step) if selection else (lambda: None)
    data = {"examples_sha256": run.sha256}
    with Checkpoints(workdir.checkpoints, config, workdir.tokenizer, 1, data, chosen) as checkpoints:
        done, exit_code = course.follow(checkpoints, hosts, console, began)
        if exit_code:
            return None, exit_code
        best = selection.best_step if selection else None
        if best is not None and not checkpoints.has(best):  # an update that was skipped leaves none
            best = None
        step = done if best is None else best
        params = checkpoints.restore_params(step, plan.abstract.params)
    metrics, files = _judge(run.task, run.splits, predictor, params, workdir.folder, hosts)
    result = Result(
        config.task,
        f"checkpoints/{step}",
        step,
        selection.metric if selection and best is not None else "",
        metrics,
        tuple(files),
    )
    if hosts.first:
        write_result(workdir.folder, result)
        _close(result, workdir, console)
    return result, 0


def _demand_same_examples(sha256_of_hosts: Sequence[str]) -> None:
    first, *others = sha256_of_hosts
    if differing := [i for i, sha256 in enumerate(others, 1) if sha256 != first]:
        raise InputError(
            f"--train has other examples at process {differing[0]} than at process 0: give all hosts the same files"
        )


def _selection(run: Prepared, predictor: Predictor) -> Selection | None:
    if "eval" not in run.splits:
        return None
    held_out = run.splits["eval"]
    metric = run.config.selection.metric or run.task.metric
    return Selection(run.config, predictor, run.task, held_out.examples, held_out.features, metric)


def _first_state(
    run: Prepared, objective: Supervised, tx: optax.GradientTransformation, plan: StatePlan, console: Console
) -> TrainState:
    state = init_state(run.config.seed, objective, tx, plan)
    if run.start is None or run.config.reinitialize:
        console.print("init        all weights drawn afresh")
        return state
    params, drawn = _weights_of(run.start, run.config.head, plan)
    afresh = f"; drawn afresh: {', '.join(drawn)}" if drawn else ""
    console.print(f"init        weights of {shown(run.config.init)}{afresh}")
    return with_params(state, params, plan)


def _weights_of(start: Pretrained, head: HeadConfig, plan: StatePlan) -> tuple[dict[str, Any], list[str]]:
    """Those that the network takes over, and the names of those that it lacks. A head comes along where it is the same
    one, for the same labels; without one, a summary of <cls> begins as pretraining has read pairs there."""
    wanted, given = flatten(plan.abstract.params), flatten(start.params)
    pooler = {
        path.replace("pair_head/pooler", "summary/projection"): array
        for path, array in given.items()
        if path.startswith("pair_head/pooler/") and head.summary in ("first", "last")
    }
    given |= pooler
    same_head = start.head is not None and (start.head.task, start.head.labels) == (head.task, head.labels)
    taken = {
        path: given[path]
        for path in wanted
        if path in given
        and (path.startswith("backbone/") or same_head or path in pooler)
        and given[path].shape == wanted[path].shape
    }
    return nest(taken), sorted({path.partition("/")[0] for path in wanted.keys() - taken.keys()})


def _judge(
    task: Task[Any],
    splits: Mapping[str, Split],
    predictor: Predictor,
    params: Any,
    folder: epath.Path,
    hosts: Hosts,
) -> tuple[dict[str, float], list[str]]:
    """The metrics of the evaluation's examples, and the files of predictions for all."""
    metrics: dict[str, float] = {}
    files = []
    for name, split in splits.items():
        outputs = predictor.outputs(params, split.features)
        assert outputs is not None
        if name == "eval":
            metrics = task.metrics(split.examples, split.features, outputs)
        if hosts.first:
            target = folder / PREDICTIONS / name
            target.mkdir(parents=True, exist_ok=True)
            files += [
                f"{PREDICTIONS}/{name}/{file}" for file in task.write(target, split.examples, split.features, outputs)
            ]
            if name == "eval":
                write_durably(target / METRICS, (json.dumps(metrics, indent=2) + "\n").encode())
    return metrics, files


def _predict_only(config: FinetuneConfig, workdir: Workdir, hosts: Hosts, console: Console) -> int:
    """Without examples to learn from: what a finetuned checkpoint says."""
    _demand_no_run(workdir, "give predictions another --workdir")
    config, start = begin_from(config.init, config, None, DEFAULTS[config.task]().model)
    validate_finetuning(config)
    assert start is not None
    head = _demand_head(start, config)
    config = _as_it_learned(replace(config, head=head))
    task, tokenizer = make_task(config), tokenizer_of(start, config)
    splits = _splits(config, task, tokenizer)
    mesh = sharding.make_mesh(config)
    objective = Supervised(config, head, task)
    plan = plan_state(objective, optax.identity(), mesh)
    params, _ = _weights_of(start, head, plan)
    predictor = Predictor(config, objective, plan, mesh)
    params = sharding.from_host(params, plan.shardings.params)
    workdir.make()
    metrics, files = _judge(task, splits, predictor, params, workdir.folder, hosts)
    if metrics:
        console.print(f"eval        {describe(metrics)}")
    console.print("".join(f"  {workdir.folder / file}\n" for file in files).rstrip())
    return 0


def _demand_no_run(workdir: Workdir, hint: str) -> None:
    """Its results and predictions would be overwritten."""
    if workdir.has_checkpoints:
        raise InputError(f"workdir {workdir.folder} holds a run, with results of its own: {hint}")


def _as_it_learned(config: FinetuneConfig) -> FinetuneConfig:
    """What nobody set is as in the finetuning that made the checkpoint, where that is known: texts are read and cut as
    they were there."""
    folder = native.find(Path(config.init)) if Path(config.init).is_dir() else None
    settings = read_json(folder / native.CONFIG) if folder else {}
    if settings.get("task") != config.task:
        return config
    there, usual = from_dict(FinetuneConfig, settings), DEFAULTS[config.task]()
    sections: dict[str, Any] = {}
    for name in ("data", "columns", "qa", "choice"):
        ours, theirs, default = (vars(getattr(c, name)) for c in (config, there, usual))
        unset = {key: theirs[key] for key, value in ours.items() if value == default[key]}
        sections[name] = replace(getattr(config, name), **unset)
    if config.model.mem_len == usual.model.mem_len:
        sections["model"] = replace(config.model, mem_len=there.model.mem_len)
    return replace(config, **sections)


def _demand_head(start: Pretrained, config: FinetuneConfig) -> HeadConfig:
    wanted = config.head.task
    if start.head is None or start.head.task != wanted:
        has = "vocabulary scores" if start.head is None else f"a head for {start.head.task}"
        raise InputError(
            f"--init {config.init} has {has}, and --task {config.task} needs a head for {wanted}: give --train to "
            "finetune it, or a checkpoint that was"
        )
    return start.head


def _close(result: Result, workdir: Workdir, console: Console) -> None:
    how = f", the best by {result.metric}" if result.metric else ""
    score = f"\n{describe(result.metrics)}" if result.metrics else ""
    files = "".join(f"  predictions  {workdir.folder / file}\n" for file in result.predictions)
    console.print(
        f"{score}\n"
        f"  checkpoint   {workdir.folder / result.checkpoint}{how}\n"
        f"{files}"
        f"  results      {workdir.folder / 'results.json'}\n"
        f"  metrics      {workdir.metrics} and {workdir.tensorboard}"
    )
