"""Run a comparison: all its runs, one after the other, and then the results over seeds as results.json, a table and a
picture. Stopped runs resume, and finished runs are skipped.

WORKDIR/config.json holds the settings; all contenders share WORKDIR/tokenizer and WORKDIR/corpus.
WORKDIR/CONTENDER/seed-N/pretrained is a pretraining run, and WORKDIR/CONTENDER/seed-N/TASK a finetuning run. All runs
share one process, because jax reserves the memory of an accelerator for one. They do not affect each other: each has
its own programs and lock.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from etils import epath

from data_pipelines import windows
from data_pipelines.corpus import Corpus, SplitName
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.checkpoints.listing import RESULTS
from xlnet_jax.checkpoints.native import Results
from xlnet_jax.errors import InputError
from xlnet_jax.measurement.compare_settings import CompareConfig, finetune_configs, list_differences, shared_config
from xlnet_jax.measurement.contenders import CONTENDERS, STEP_COST, fit_to_budget, step_operations, step_tokens
from xlnet_jax.objectives.language_model import objective_of
from xlnet_jax.objectives.registry import batch_source
from xlnet_jax.plots.curves import draw_comparison
from xlnet_jax.printing import Console
from xlnet_jax.settings.config import Config
from xlnet_jax.settings.resolution import Resolution
from xlnet_jax.storage.files import write_durably
from xlnet_jax.storage.reading import read_versioned, write_versioned
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.defaults import make_task
from xlnet_jax.tasks.finetune import finetune_as, seed_folder
from xlnet_jax.training import machine, sharding
from xlnet_jax.training.hosts import connect
from xlnet_jax.training.metrics import read_records
from xlnet_jax.training.pretrain import pretrain
from xlnet_jax.training.resolve import Text
from xlnet_jax.training.stop import exit_code_of
from xlnet_jax.training.workdir import Workdir

PRETRAINED = "pretrained"
SPLITS: tuple[SplitName, ...] = ("train", "validation")


@dataclass(frozen=True)
class Comparison:
    """Settings, tokenizer and corpus of all runs."""

    settings: CompareConfig
    workdir: Workdir
    contenders: Mapping[str, Config]
    tasks: Mapping[str, FinetuneConfig]
    corpus: Corpus
    tokenizer: Tokenizer

    def folder(self, contender: str, seed: int, run: str = PRETRAINED) -> epath.Path:
        """Return the folder of a pretraining run, or of the run of a task."""
        return self.workdir.folder / contender / seed_folder(seed) / run

    def held_out(self, contender: str, seed: int) -> list[Mapping[str, Any]]:
        """Return the records of a pretraining run's evaluations, by step."""
        records = read_records(Workdir(self.folder(contender, seed)).metrics)
        return [r for r in records if r["split"] == "validation" and "loss" in r]


def compare(settings: CompareConfig) -> int:
    """Run a comparison. Return 0 after writing the table and the picture, or the exit code of a run that was stopped:
    its state is saved, and the same command continues."""
    if settings.tpu:
        machine.require_tpu()
    console = Console(soft_wrap=True, highlight=False, markup=False)
    text, common = Text.of(settings), shared_config(settings)
    _contenders(settings, common)  # refuse a small budget before hours of preparation
    with closing(Workdir(settings.workdir or f"runs/compare-{text.name}-{settings.preset}")) as workdir:
        workdir.lock()
        return _compare(settings, text, workdir, console)


def _compare(settings: CompareConfig, text: Text, workdir: Workdir, console: Console) -> int:
    comparison = _prepare(settings, text, workdir, console)
    for seed in settings.seeds:
        for name in comparison.contenders:
            if exit_code := _run(name, seed, comparison, console):
                return exit_code
    folder, results = comparison.workdir.folder, collect_results(comparison)
    table = make_table(results)
    write_versioned(folder / RESULTS, "comparison", results)
    write_durably(folder / "table.md", table.encode())
    console.print(f"\n{table}")
    draw_picture(comparison, results, folder / "comparison.png")
    console.print("".join(f"\n  {folder / name}" for name in ("table.md", "comparison.png", RESULTS)).lstrip("\n"))
    return 0


def _contenders(settings: CompareConfig, common: Config) -> dict[str, Config]:
    return {
        name: fit_to_budget(name, CONTENDERS[name](common), settings.budget, settings.equal)
        for name in settings.objectives
    }


def _prepare(settings: CompareConfig, text: Text, workdir: Workdir, console: Console) -> Comparison:
    """Prepare the tokenizer and corpus of all runs, and refuse here what a later run would refuse."""
    common = shared_config(settings)
    tasks = finetune_configs(settings)
    for finetune_config in tasks.values():
        task = make_task(finetune_config)
        task.read(finetune_config.train, "train")
        task.read(finetune_config.eval, "eval")
    shared = Resolution.of(common)
    known = text.required_tokenizer(shared, None)
    if workdir.config.exists() and (difference := list_differences(settings, workdir.settings(CompareConfig))):
        raise InputError(
            f"workdir {workdir.folder} holds a different comparison ({'; '.join(difference)}): give the same settings, "
            "or another `workdir`"
        )
    workdir.write_settings(settings)
    tokenizer = text.find_tokenizer(common, known, workdir)
    shared.set({"model.vocab_size": tokenizer.vocab_size})
    contenders = _contenders(settings, shared.final())
    # Blocks fit the windows of every contender, so that any contender can be added later.
    longest = max((contender(common) for contender in CONTENDERS.values()), key=lambda c: windows.block_len(c.data))
    corpus = text.find_corpus(longest, tokenizer, workdir)
    console.print(f"tokenizer   {tokenizer.vocab_size:,} pieces\ncorpus      {corpus.folder}, for all contenders")
    console.print(f"unknown     {corpus.unknown_share:.2%} of the training text are <unk>")
    for name, config in contenders.items():
        sharding.make_mesh(config)
        try:
            for split in SPLITS:
                batch_source(corpus, tokenizer, config, split)  # raises InputError where windows do not fit
        except InputError as mistake:
            raise InputError(f"{name}: {mistake}") from None
    return Comparison(settings, workdir, contenders, tasks, corpus, tokenizer)


def _run(name: str, seed: int, comparison: Comparison, console: Console) -> int:
    """Pretrain a contender with one seed and finetune it on all tasks. Return 0, or the exit code of a stopped run."""
    config, pretrained = comparison.contenders[name], comparison.folder(name, seed)
    workdir = Workdir(pretrained)
    is_evaluated = config.steps in (r["step"] for r in comparison.held_out(name, seed))
    if not (is_evaluated and (workdir.checkpoints / str(config.steps)).is_dir() and workdir.curves.exists()):
        console.print(f"\n---- {name}, seed {seed}: pretraining, {config.steps:,} steps")
        corpus = (str(comparison.corpus.folder),)
        run = replace(config, seed=seed, corpus=corpus, validation=(), tokenizer=None, workdir=str(pretrained))
        if exit_code := exit_code_of(pretrain(run).stopped):
            return exit_code
    for task, settings in comparison.tasks.items():
        folder = comparison.folder(name, seed, task)
        if (folder / RESULTS).exists():
            continue
        console.print(f"\n---- {name}, seed {seed}: {task}")
        begun = Workdir(folder).resumes(FinetuneConfig)  # it names the weights by their path before a move
        init = begun.init if begun else str(pretrained)
        finetuning = replace(settings, init=init, workdir=str(folder), seeds=(seed,))
        with connect(finetuning) as process:
            if exit_code := exit_code_of(finetune_as(process, finetuning).stopped):
                return exit_code
    return 0


def collect_results(comparison: Comparison) -> dict[str, Any]:
    """Return the content of results.json.

    For each contender: the cost of one pretraining as `parameters`, steps (`updates`), `tokens`, FLOPs (`operations`)
    and `passes` over the text. Over the seeds (`summarize`): `held_out_loss` in nats per target, `pair_loss` in nats
    per window if there is one, and the metric of each task on held-out examples.
    `baselines` has the metric of each task's trivial answer.
    """
    settings, contenders = comparison.settings, {}
    metrics = {task: config.selection.metric or make_task(config).metric for task, config in comparison.tasks.items()}
    for name, config in comparison.contenders.items():
        shapes = jax.eval_shape(lambda config=config: objective_of(config).init(jax.random.key(0)))
        per_pass = batch_source(comparison.corpus, comparison.tokenizer, config).steps_per_epoch
        ends = {seed: comparison.held_out(name, seed)[-1] for seed in settings.seeds}
        contenders[name] = {
            "parameters": sum(math.prod(a.shape) for a in jax.tree.leaves(shapes)),
            "updates": config.steps,
            "tokens": config.steps * step_tokens(config),
            "operations": config.steps * step_operations(config),
            "passes": config.steps / per_pass,
            "held_out_loss": summarize({seed: end["loss"] for seed, end in ends.items()}),
        }
        if all("pair_loss" in end for end in ends.values()):
            contenders[name]["pair_loss"] = summarize({seed: end["pair_loss"] for seed, end in ends.items()})
        for task, metric in metrics.items():
            files = {seed: comparison.folder(name, seed, task) / RESULTS for seed in settings.seeds}
            contenders[name][task] = summarize({seed: _read_score(file, metric) for seed, file in files.items()})
    first = next(iter(comparison.contenders)), settings.seeds[0]  # all runs of a task have one baseline
    baselines = {
        task: _read_baseline(comparison.folder(*first, task) / RESULTS, name) for task, name in metrics.items()
    }
    budget = {"budget": settings.budget, "equal": settings.equal, "seeds": list(settings.seeds)}
    return budget | {"metrics": metrics, "baselines": baselines, "contenders": contenders}


def _read_score(file: epath.Path, metric: str) -> float:
    again = "delete it, and run the same command again"
    metrics = read_versioned(file, "results", Results, again).metrics
    if metric not in metrics:
        raise InputError(f"{file} is damaged: it has no {metric}; {again}")
    return math.nan if (score := metrics[metric]) is None else score


def _read_baseline(file: epath.Path, metric: str) -> float | None:
    baseline = read_versioned(file, "results", Results).baseline
    return baseline.metrics.get(metric) if baseline else None


def summarize(by_seed: Mapping[int, float]) -> dict[str, Any]:
    """Return a value over seeds: each seed's, the mean, and the sample deviation (None for one seed)."""
    values = list(by_seed.values())
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {"seeds": dict(by_seed), "mean": float(np.mean(values)), "deviation": deviation}


def make_table(results: Mapping[str, Any]) -> str:
    """Return the results as a Markdown table, with notes."""
    contenders, metrics, seeds = results["contenders"], results["metrics"], list(map(str, results["seeds"]))
    losses = ["held_out_loss"] + ["pair_loss"] * any("pair_loss" in numbers for numbers in contenders.values())
    names = {"held_out_loss": "held-out loss", "pair_loss": "pair loss"}
    head = ["contender", "parameters", "updates", "tokens", "operations", "passes", *(names[loss] for loss in losses)]
    rows = [[*head, *(f"{task}, {metric}" for task, metric in metrics.items())]]
    rows.append(["---", *["---:"] * (len(rows[0]) - 1)])
    for name, numbers in contenders.items():
        costs = [f"{numbers[key]:,}" for key in ("parameters", "updates", "tokens")]
        shares = [f"{numbers['operations']:.3g}", f"{numbers['passes']:.2g}"]
        rows.append([name, *costs, *shares, *(show_summary(numbers.get(key)) for key in (*losses, *metrics))])
    if metrics:
        baselines = ("" if (value := results["baselines"][task]) is None else f"{value:.3f}" for task in metrics)
        rows.append(["baseline", *[""] * (len(head) - 1), *baselines])
    over = f"Mean ± sample deviation over the seeds {', '.join(seeds)}." if seeds[1:] else f"One seed, {seeds[0]}."
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return (
        f"{table}\nBudget: {results['budget']:,.0f} {results['equal']} each. {over}\n"
        "Held-out loss is in nats per target of each contender's objective: do not compare losses of different "
        "objectives. Compare tasks.\n"
        + "The baseline of a task is the score of an answer that ignores the text, such as the most frequent label.\n"
        * bool(metrics)
    )


def show_summary(numbers: Mapping[str, Any] | None) -> str:
    """Format a value of `summarize` as a table cell; empty for None."""
    if numbers is None:
        return ""
    deviation = numbers["deviation"]
    return f"{numbers['mean']:.3f}" + ("" if deviation is None else f" ± {deviation:.3f}")


def draw_picture(comparison: Comparison, results: Mapping[str, Any], path: epath.Path) -> None:
    """Write a PNG of the held-out losses over the cost so far, and of the scores of each task."""
    settings, losses = comparison.settings, {}
    for name, config in comparison.contenders.items():
        cost = STEP_COST[settings.equal](config)
        curves = [comparison.held_out(name, seed) for seed in settings.seeds]
        losses[name] = [[(record["step"] * cost, record["loss"]) for record in curve] for curve in curves]
    tasks: dict[str, dict[str, Sequence[float]]] = {
        task: {name: list(numbers[task]["seeds"].values()) for name, numbers in results["contenders"].items()}
        for task in results["metrics"]
    }
    draw_comparison(losses, settings.equal, tasks, results["metrics"], path)
