"""Run a comparison: all its runs, one after the other, then the numbers of each contender over its seeds, as
results.json, a table and a picture. Each run continues where it was stopped, and finished ones are skipped.
WORKDIR/config.json holds the settings; WORKDIR/tokenizer and WORKDIR/corpus are shared by all contenders;
WORKDIR/CONTENDER/seed-N/pretrained is a pretraining run, and WORKDIR/CONTENDER/seed-N/TASK a finetuning run. All
runs share one process: jax starts once, and keeps the memory of an accelerator to itself. Runs do not affect each
other, as each has its own programs and lock.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import jax
import numpy as np
from etils import epath

from data_pipelines import windows
from data_pipelines.corpus import Corpus, SplitName
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.checkpoints.native import RESULTS, Results
from xlnet_jax.comparison.contenders import CONTENDERS, STEP_COST, Equal, fit_to_budget, step_tokens
from xlnet_jax.comparison.settings import CompareConfig, finetune_configs, list_differences, shared_config
from xlnet_jax.costs import demand_address_space
from xlnet_jax.errors import InputError
from xlnet_jax.objectives.registry import batch_source, step_flops
from xlnet_jax.objectives.traced import objective_of
from xlnet_jax.plots.comparison import draw_comparison
from xlnet_jax.printing import Console
from xlnet_jax.settings.config import Config
from xlnet_jax.storage.files import write_durably
from xlnet_jax.storage.reading import read_versioned, write_versioned
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.defaults import make_task, with_files
from xlnet_jax.tasks.run import run as finetune
from xlnet_jax.tasks.run import seed_folder
from xlnet_jax.training import machine, sharding
from xlnet_jax.training.metrics import read_records
from xlnet_jax.training.pretrain import pretrain
from xlnet_jax.training.text import Text
from xlnet_jax.training.workdir import Workdir


@dataclass(frozen=True)
class Outcome:
    """Results of one contender with one seed."""

    held_out: Sequence[tuple[int, float]]
    """(step, nats per target) of each evaluation, ascending"""
    pair_loss: float | None
    """held-out nats per window at the end; None without a pair loss"""
    scores: Mapping[str, float]
    """metric of each task on its held-out examples"""


@dataclass(frozen=True)
class Statistic:
    """One number over several seeds."""

    seeds: Mapping[int, float]
    mean: float
    deviation: float | None
    """sample deviation; None with one seed"""

    @classmethod
    def of(cls, by_seed: Mapping[int, float]) -> "Statistic":
        """Return the statistic of one seed or more."""
        values = list(by_seed.values())
        return cls(by_seed, float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None)

    def __str__(self) -> str:
        return f"{self.mean:.3f}" + ("" if self.deviation is None else f" ± {self.deviation:.3f}")


@dataclass(frozen=True)
class Comparison:
    """Contenders, what they were given, and their outcomes."""

    budget: float
    equal: Equal
    seeds: Sequence[int]
    contenders: Mapping[str, Config]
    corpus: Corpus
    tokenizer: Tokenizer
    metrics: Mapping[str, str]
    """name of each task's metric"""
    outcomes: Mapping[str, Mapping[int, Outcome]]
    """outcome of each contender and seed"""

    def statistics(self, name: str) -> dict[str, Statistic]:
        """Return the numbers of a contender: held_out_loss; pair_loss, where it has one; and one for each task."""
        by_seed = self.outcomes[name]
        found = {"held_out_loss": {s: outcome.held_out[-1][1] for s, outcome in by_seed.items()}}
        if pairs := {s: o.pair_loss for s, o in by_seed.items() if o.pair_loss is not None}:
            found["pair_loss"] = pairs
        found |= {task: {s: outcome.scores[task] for s, outcome in by_seed.items()} for task in self.metrics}
        return {name: Statistic.of(values) for name, values in found.items()}

    def cost(self, name: str) -> dict[str, float]:
        """Return the cost of one pretraining: parameters, steps (`updates`), tokens, FLOPs (`operations`), and passes
        over the text."""
        config = self.contenders[name]
        shapes = jax.eval_shape(lambda: objective_of(config).init(jax.random.key(0)))
        per_pass = batch_source(self.corpus, self.tokenizer, config).steps_per_epoch
        return {
            "parameters": sum(math.prod(a.shape) for a in jax.tree.leaves(shapes)),
            "updates": config.steps,
            "tokens": config.steps * step_tokens(config),
            "operations": config.steps * step_flops(config),
            "passes": config.steps / per_pass,
        }


def draw_picture(comparison: Comparison, path: epath.Path) -> None:
    """Write a PNG of the held-out losses, over the cost so far, and of the scores of each task."""
    losses = {}
    for name, config in comparison.contenders.items():
        cost = STEP_COST[comparison.equal](config)
        outcomes = comparison.outcomes[name].values()
        losses[name] = [[(step * cost, loss) for step, loss in outcome.held_out] for outcome in outcomes]
    tasks = {
        task: {name: [o.scores[task] for o in outcomes.values()] for name, outcomes in comparison.outcomes.items()}
        for task in comparison.metrics
    }
    draw_comparison(losses, comparison.equal, tasks, comparison.metrics, path)


def write_report(comparison: Comparison, folder: epath.Path) -> str:
    """Write results.json and table.md; return the table."""
    results = {
        "budget": comparison.budget,
        "equal": comparison.equal,
        "seeds": list(comparison.seeds),
        "metrics": dict(comparison.metrics),
        "contenders": {
            name: comparison.cost(name) | {key: asdict(s) for key, s in comparison.statistics(name).items()}
            for name in comparison.contenders
        },
    }
    write_versioned(folder / RESULTS, "comparison", results)
    text = make_table(comparison)
    write_durably(folder / "table.md", text.encode())
    return text


def make_table(comparison: Comparison) -> str:
    """Return the table in Markdown, with notes on its numbers."""
    head = ["contender", "parameters", "updates", "tokens", "operations", "passes", "held-out loss", "pair loss"]
    has_pairs = any("pair_loss" in comparison.statistics(name) for name in comparison.contenders)
    head = head if has_pairs else head[:-1]
    rows = [[*head, *(f"{task}, {metric}" for task, metric in comparison.metrics.items())]]
    rows.append(["---", *["---:"] * (len(rows[0]) - 1)])
    for name in comparison.contenders:
        cost, found = comparison.cost(name), comparison.statistics(name)
        costs = [f"{cost[key]:,}" for key in ("parameters", "updates", "tokens")]
        learned = ["held_out_loss", *(["pair_loss"] if has_pairs else []), *comparison.metrics]
        rows.append(
            [
                name,
                *costs,
                f"{cost['operations']:.3g}",
                f"{cost['passes']:.2g}",
                *(str(found.get(key, "")) for key in learned),
            ]
        )
    return "".join(f"| {' | '.join(row)} |\n" for row in rows) + "\n" + "\n".join(_notes(comparison)) + "\n"


def _notes(comparison: Comparison) -> Iterable[str]:
    seeds = list(map(str, comparison.seeds))
    yield (
        f"Budget: {comparison.budget:,.0f} {comparison.equal} each. "
        + (f"Mean ± sample deviation over the seeds {', '.join(seeds)}." if seeds[1:] else f"One seed, {seeds[0]}.")
    )
    yield (
        "Held-out loss is in nats per target of a contender's own objective: losses of different objectives do not "
        "compare. Tasks do."
    )


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


def compare(settings: CompareConfig) -> int:
    """Run a comparison. Return 0 with the table and the picture written, or the exit code of a run that was stopped
    with its state saved: the same command goes on from there."""
    if settings.tpu:
        machine.demand_tpu()
    demand_address_space()
    console = Console(soft_wrap=True, highlight=False, markup=False)
    _contenders(settings)  # refuse a budget that is too small before hours go into a text
    prepared = _prepare(settings, console)
    for seed in settings.seeds:
        for name in prepared.contenders:
            if exit_code := _run(name, seed, prepared, console):
                return exit_code
    comparison = Comparison(
        settings.budget, settings.equal, settings.seeds, prepared.contenders, prepared.corpus, prepared.tokenizer,
        {task: _metric(config) for task, config in prepared.tasks.items()},
        {name: {seed: _outcome(name, seed, prepared) for seed in settings.seeds} for name in prepared.contenders},
    )  # fmt: skip
    folder = prepared.workdir.folder
    console.print(f"\n{write_report(comparison, folder)}")
    draw_picture(comparison, folder / "comparison.png")
    console.print("".join(f"\n  {folder / name}" for name in ("table.md", "comparison.png", RESULTS)).lstrip("\n"))
    return 0


def _contenders(settings: CompareConfig, vocab_size: int | None = None) -> dict[str, Config]:
    common = shared_config(settings)
    if vocab_size is not None:
        common = replace(common, model=replace(common.model, vocab_size=vocab_size))
    return {
        name: fit_to_budget(name, CONTENDERS[name](common), settings.budget, settings.equal)
        for name in settings.objectives
    }


def _prepare(settings: CompareConfig, console: Console) -> _Prepared:
    """Prepare one tokenizer and one corpus for all, and refuse here what a later run would refuse."""
    text, common = Text.of(settings), shared_config(settings)
    tasks = {task: with_files(config) for task, config in finetune_configs(settings).items()}
    for finetune_config in tasks.values():
        for examples in (finetune_config.train, finetune_config.eval):
            make_task(finetune_config).read(examples, True)
    given = text.demanded_tokenizer(common, None)
    workdir = Workdir(settings.workdir or f"runs/compare-{text.name}-{settings.preset}")
    _claim(workdir, settings)
    tokenizer = text.find_tokenizer(common, given, workdir)
    contenders = _contenders(settings, tokenizer.vocab_size)
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


def _claim(workdir: Workdir, settings: CompareConfig) -> None:
    workdir.lock()
    difference = list_differences(settings, workdir.settings(CompareConfig)) if workdir.config.exists() else ()
    if difference:
        raise InputError(
            f"workdir {workdir.folder} holds another comparison ({'; '.join(difference)}): give its settings, or "
            "another --workdir"
        )
    workdir.write_settings(settings)


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
