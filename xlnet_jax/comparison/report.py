"""Results of a comparison: the numbers of each contender over its seeds, as results.json and as a table."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import jax
import numpy as np
from etils import epath

from data_pipelines.corpus import Corpus
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.checkpoints.native import RESULTS
from xlnet_jax.comparison.budget import COST, Equal, step_tokens
from xlnet_jax.objectives.batches import batch_source
from xlnet_jax.objectives.build import objective_of
from xlnet_jax.objectives.flops import step_flops
from xlnet_jax.plots.comparison import draw_comparison
from xlnet_jax.settings.config import Config
from xlnet_jax.storage.files import write_durably
from xlnet_jax.storage.reading import write_versioned


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
        cost = COST[comparison.equal](config)
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
    text = table(comparison)
    write_durably(folder / "table.md", text.encode())
    return text


def table(comparison: Comparison) -> str:
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
                *(_cell(found, key) for key in learned),
            ]
        )
    return "".join(f"| {' | '.join(row)} |\n" for row in rows) + "\n" + "\n".join(_notes(comparison)) + "\n"


def _cell(found: Mapping[str, Statistic], key: str) -> str:
    return str(found[key]) if key in found else ""


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
