"""Run of a comparison: all its runs, one after the other. Each continues where it was stopped, finished ones are
skipped.

WORKDIR/config.json                    settings              WORKDIR/tokenizer, corpus   shared by all contenders
WORKDIR/CONTENDER/seed-N/pretrained    a pretraining run     WORKDIR/CONTENDER/seed-N/TASK   a finetuning run
WORKDIR/results.json, table.md, comparison.png    results

All runs share one process: jax starts once, and keeps the memory of an accelerator to itself. Runs do not affect each
other, as each has its own programs and lock.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from etils import epath

from data_pipelines import windows
from data_pipelines.corpus import Corpus, SplitName
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.checkpoints.native import RESULTS, Results
from xlnet_jax.comparison import request as asked
from xlnet_jax.comparison.budget import within_budget
from xlnet_jax.comparison.contenders import CONTENDERS
from xlnet_jax.comparison.report import Comparison, Outcome, draw_picture, write_report
from xlnet_jax.comparison.request import CompareConfig
from xlnet_jax.costs.address_space import demand_address_space
from xlnet_jax.errors import InputError
from xlnet_jax.objectives.batches import batch_source
from xlnet_jax.printing import Console
from xlnet_jax.settings.config import Config
from xlnet_jax.storage.reading import read_versioned
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.families import make_task, with_files
from xlnet_jax.tasks.results import seed_folder
from xlnet_jax.tasks.run import run as finetune
from xlnet_jax.training import sharding
from xlnet_jax.training.pretrain import pretrain
from xlnet_jax.training.run import runtime
from xlnet_jax.training.run.workdir import Workdir
from xlnet_jax.training.text import Text
from xlnet_jax.training.watch.metrics import read_records

PRETRAINED = "pretrained"
SPLITS: tuple[SplitName, ...] = ("train", "validation")


@dataclass(frozen=True)
class _Prepared:
    """Tokenizer, corpus and settings that all runs share."""

    workdir: Workdir
    contenders: Mapping[str, Config]
    tasks: Mapping[str, FinetuneConfig]
    corpus: Corpus
    tokenizer: Tokenizer

    def folder(self, contender: str, seed: int, run: str) -> epath.Path:
        return self.workdir.folder / contender / seed_folder(seed) / run


def compare(request: CompareConfig) -> int:
    """Run a comparison. Return 0 with the table and the picture written, or the exit code of a run that was stopped
    with its state saved: the same command goes on from there."""
    if request.tpu:
        runtime.demand_tpu()
    demand_address_space()
    console = Console(soft_wrap=True, highlight=False, markup=False)
    _contenders(request)  # refuse a budget that is too small before hours go into a text
    prepared = _prepare(request, console)
    for seed in request.seeds:
        for name in prepared.contenders:
            if exit_code := _run(name, seed, prepared, console):
                return exit_code
    comparison = Comparison(
        request.budget, request.equal, request.seeds, prepared.contenders, prepared.corpus, prepared.tokenizer,
        {task: _metric(config) for task, config in prepared.tasks.items()},
        {name: {seed: _outcome(name, seed, prepared) for seed in request.seeds} for name in prepared.contenders},
    )  # fmt: skip
    folder = prepared.workdir.folder
    console.print(f"\n{write_report(comparison, folder)}")
    draw_picture(comparison, folder / "comparison.png")
    console.print("".join(f"\n  {folder / name}" for name in ("table.md", "comparison.png", RESULTS)).lstrip("\n"))
    return 0


def _contenders(request: CompareConfig, vocab_size: int | None = None) -> dict[str, Config]:
    common = asked.common(request)
    if vocab_size is not None:
        common = replace(common, model=replace(common.model, vocab_size=vocab_size))
    return {
        name: within_budget(name, CONTENDERS[name](common), request.budget, request.equal)
        for name in request.objectives
    }


def _prepare(request: CompareConfig, console: Console) -> _Prepared:
    """Prepare one tokenizer and one corpus for all, and refuse here what a later run would refuse."""
    text, common = Text.of(request), asked.common(request)
    tasks = {task: with_files(config) for task, config in asked.finetuning(request).items()}
    for settings in tasks.values():
        for examples in (settings.train, settings.eval):
            make_task(settings).read(examples, True)
    given = text.demanded_tokenizer(common, None)
    workdir = Workdir(request.workdir or f"runs/compare-{text.name}-{request.preset}")
    _claim(workdir, request)
    tokenizer = text.find_tokenizer(common, given, workdir)
    contenders = _contenders(request, tokenizer.vocab_size)
    # Blocks fit every contender there is, so that any of them can be added later.
    longest = max((contender(common) for contender in CONTENDERS.values()), key=lambda c: windows.block_len(c.data))
    corpus = text.find_corpus(longest, tokenizer, workdir)
    console.print(f"tokenizer   {tokenizer.vocab_size:,} pieces\ncorpus      {corpus.folder}, of all contenders")
    console.print(f"unknown     {corpus.unknown_share:.2%} of the training text are <unk>")
    for name, config in contenders.items():
        sharding.make_mesh(config)
        try:
            for split in SPLITS:
                batch_source(corpus, tokenizer, config, split)  # raises InputError where windows do not fit
        except InputError as mistake:
            raise InputError(f"{name}: {mistake}") from None
    return _Prepared(workdir, contenders, tasks, corpus, tokenizer)


def _claim(workdir: Workdir, request: CompareConfig) -> None:
    workdir.lock()
    difference = asked.difference(request, workdir.settings(CompareConfig)) if workdir.config.exists() else ()
    if difference:
        raise InputError(
            f"workdir {workdir.folder} holds another comparison ({'; '.join(difference)}): give its settings, or "
            "another --workdir"
        )
    workdir.write_settings(request)


def _run(name: str, seed: int, prepared: _Prepared, console: Console) -> int:
    """Pretrain a contender with one seed, and finetune it on all tasks. Return 0, or the exit code of a stop."""
    config, pretrained = prepared.contenders[name], prepared.folder(name, seed, PRETRAINED)
    if not _is_pretrained(pretrained, config.steps):
        console.print(f"\n---- {name}, seed {seed}: pretraining, {config.steps:,} steps")
        corpus = (str(prepared.corpus.folder),)
        run = replace(config, seed=seed, corpus=corpus, validation=(), tokenizer=None, workdir=str(pretrained))
        if exit_code := pretrain(run):
            return exit_code
    for task, settings in prepared.tasks.items():
        folder = prepared.folder(name, seed, task)
        if (folder / RESULTS).exists():
            continue
        console.print(f"\n---- {name}, seed {seed}: {task}")
        _, exit_code = finetune(replace(settings, init=str(pretrained), workdir=str(folder), seeds=(seed,)))
        if exit_code:
            return exit_code
    return 0


def _is_pretrained(folder: epath.Path, steps: int) -> bool:
    """Return whether a run was saved and evaluated at its end, and its curves were drawn."""
    workdir = Workdir(folder)
    evaluated = (r["step"] for r in read_records(workdir.metrics) if r["split"] == "validation" and "loss" in r)
    return (workdir.checkpoints / str(steps)).is_dir() and steps in evaluated and workdir.curves.exists()


def _outcome(name: str, seed: int, prepared: _Prepared) -> Outcome:
    records = read_records(Workdir(prepared.folder(name, seed, PRETRAINED)).metrics)
    held_out = [r for r in records if r["split"] == "validation" and "loss" in r]
    scores = {}
    for task, config in prepared.tasks.items():
        file, metric = prepared.folder(name, seed, task) / RESULTS, _metric(config)
        again = "delete it, and the same command measures again"
        metrics = read_versioned(file, "results", Results, again).metrics
        if metric not in metrics:
            raise InputError(f"{file} is damaged: it has no {metric}; {again}")
        scores[task] = math.nan if (score := metrics[metric]) is None else score
    return Outcome([(r["step"], r["loss"]) for r in held_out], held_out[-1].get("pair_loss"), scores)


def _metric(config: FinetuneConfig) -> str:
    return config.selection.metric or make_task(config).metric
