"""Run a scaling study: networks of five sizes with several budgets of FLOPs.

    python -m benchmarks.scaling CORPUS [--only 'isoflop*'] [--jobs 2] [--workdir runs/scaling]
    python -m benchmarks.scaling CORPUS --scale base --budget

CORPUS is a folder of data_pipelines.prepare. For the recorded runs it was made from novels, speeches and a part of C4:

    python -m data_pipelines.tokenizer train --source novels.txt speeches.txt --vocab-size 8000 --out tokenizer
    python -m data_pipelines.prepare --source novels.txt speeches.txt C4 --weights 0.84 0.08 0.08 \\
        --tokenizer tokenizer --block-len 1152 --validation-fraction 0.03 --out CORPUS

The scale "small" (0.1 to 3 million parameters in layers) is for CPUs. The scale "base" goes up to 12 x 768 and is for a
GPU; --budget prints the cost of its runs and exits. The networks of a scale differ only in width, because muP transfers
learning rates between widths and no such rule is known for the depth of this architecture. Each run is a normal train
command; benchmarks/studies.py explains how runs are stopped, resumed and recorded.

The runs, in order:

- tune: the smallest network at several learning rates;
- transfer: a wider network with the same number of steps, at the best rate, half of it and twice of it, by two rules:
  one rate for all widths, and muP, where the rate of the layers' matrices falls with the width. The rule with the lower
  loss at the smallest network's best rate is used for the other runs;
- isoflop: groups of networks that spend equal FLOPs;
- deeper: networks with more layers and the FLOPs of the last group, which are not fitted;
- largest: the largest network with more FLOPs than the last group, which is not fitted.
"""

import argparse
import fnmatch
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks import studies
from benchmarks.studies import Job, Record, Study
from xlnet_jax.objectives.presets import PRESETS
from xlnet_jax.objectives.registry import step_flops
from xlnet_jax.settings.config import Config

STEPS_AT_LEAST = 750
"""shorter runs hardly get below the loss of word frequencies, where no law of size and tokens holds"""


@dataclass(frozen=True)
class Scale:
    """Sizes and budgets of a study."""

    name: str
    """its folder in benchmarks/measured"""
    preset: str
    d_head: int
    sizes: tuple[tuple[int, int], ...]
    """layers and width of each network; the first is tuned"""
    transfer: tuple[int, int]
    """layers and width of the network that the best rate is transferred to"""
    deeper: tuple[tuple[int, int], ...]
    """layers and width of the deeper networks, which are not fitted"""
    budgets: tuple[float, ...]
    """FLOPs of the groups"""
    largest: float
    """FLOPs of the largest network's run that is not fitted"""
    rates: tuple[float, ...]
    tuning_steps: int
    init_std: float
    """standard deviation of the initializer at a width of 128. It falls with the square root of the width, so that the
    outputs of layers have the same scale at every width"""
    max_windows: int
    """windows of held-out text"""

    @property
    def base_width(self) -> int:
        return self.sizes[0][1]

    def config(self, layers: int, width: int, vocab_size: int) -> Config:
        """Return the settings of a network of the study."""
        start, heads = PRESETS[self.preset](), width // self.d_head
        sizes = {
            "num_layers": layers, "d_model": width, "num_heads": heads, "d_head": self.d_head, "d_ff": 4 * width,
        }  # fmt: skip
        return replace(start, model=replace(start.model, vocab_size=vocab_size, **sizes))

    def steps_for(self, flops: float, layers: int, width: int, vocab_size: int) -> int:
        """Return the steps that a budget pays for."""
        return int(flops // step_flops(self.config(layers, width, vocab_size)))


SCALES = {
    "small": Scale(
        name="scaling",
        preset="demo",
        d_head=32,
        sizes=((2, 64), (2, 96), (2, 160), (2, 224), (2, 320)),
        transfer=(2, 192),
        deeper=((3, 128), (4, 160)),
        budgets=(4e12, 1.2e13, 4e13, 8e13),
        largest=1.2e14,
        rates=(1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2),
        tuning_steps=1500,
        init_std=0.08,
        max_windows=4096,
    ),
    # Batches and windows are those of the preset, 256 x 512.
    "base": Scale(
        name="scaling_base",
        preset="base",
        d_head=64,
        sizes=((12, 128), (12, 256), (12, 384), (12, 512), (12, 768)),
        transfer=(12, 512),
        deeper=((18, 512),),
        budgets=(3e16, 1e17, 3e17, 1e18),
        largest=2e18,
        rates=(5e-4, 1e-3, 2e-3, 4e-3, 8e-3),
        tuning_steps=3000,
        init_std=0.0566,
        max_windows=16_384,
    ),
}


@dataclass(frozen=True)
class Run:
    """One pretraining run of the study."""

    name: str
    layers: int
    width: int
    steps: int
    rate: float
    """learning rate at the width of the smallest network"""
    rule: str = "one rate"
    """how the rate depends on the width: "one rate" or "muP" """
    seed: int = 0

    @property
    def parameters(self) -> int:
        """Weights of the matrices in all layers: attention's five and the feed-forward's two."""
        return 13 * self.layers * self.width**2

    def settings(self, scale: Scale) -> dict[str, str | int | float]:
        """Return the settings of the train command that differ from the preset."""
        warmup = max(self.steps // 20, 20)
        given = {
            "preset": scale.preset, "steps": self.steps, "seed": self.seed, "model.num-layers": self.layers,
            "model.d-model": self.width, "model.num-heads": self.width // scale.d_head, "model.d-head": scale.d_head,
            "model.d-ff": 4 * self.width, "model.init-std": round(scale.init_std * (128 / self.width) ** 0.5, 4),
            "optimizer.method": "adamw", "optimizer.learning-rate": self.rate, "optimizer.warmup-steps": warmup,
        }  # fmt: skip
        share = round(scale.base_width / self.width, 4)
        return given | {"optimizer.matrix-rate": share if self.rule == "muP" else 1}

    def command(self, scale: Scale, corpus: str, workdir: Path) -> list[str]:
        """Return module and arguments of the run."""
        reports = {
            "eval.every-steps": self.steps, "eval.max-windows": scale.max_windows,
            "log.every-steps": max(self.steps // 50, 1), "checkpoint.every-steps": self.steps,
            "checkpoint.every-minutes": 3, "checkpoint.keep": 1,
        }  # fmt: skip
        settings = self.settings(scale) | reports
        flags = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        return ["xlnet_jax.train", *flags, "--corpus", corpus, "--workdir", str(workdir)]


# ---- the runs --------------------------------------------------------------------------------------------------------


def tuning(scale: Scale) -> list[Run]:
    """Return the smallest network at every learning rate."""
    layers, width = scale.sizes[0]
    return [Run(f"tune-{rate:g}", layers, width, scale.tuning_steps, rate) for rate in scale.rates]


def transfers(scale: Scale, best: float) -> list[Run]:
    """Return a wider network at the best rate, half of it and twice of it, by both rules."""
    layers, width = scale.transfer
    return [
        Run(
            f"transfer-{rule.replace(' ', '-')}-{factor * best:g}",
            layers,
            width,
            scale.tuning_steps,
            factor * best,
            rule,
        )
        for rule in ("one rate", "muP")
        for factor in (1, 0.5, 2)
    ]


def groups(scale: Scale, rate: float, rule: str, vocab_size: int) -> list[Run]:
    """Return the groups, the deeper networks and the largest run, with the chosen rate and rule."""
    runs = []
    for budget in scale.budgets:
        for layers, width in scale.sizes:
            steps = scale.steps_for(budget, layers, width, vocab_size)
            if steps >= STEPS_AT_LEAST:
                runs.append(Run(f"isoflop-{budget:g}-{layers}x{width}", layers, width, steps, rate, rule))
    for layers, width in scale.deeper:
        steps = scale.steps_for(scale.budgets[-1], layers, width, vocab_size)
        runs.append(Run(f"deeper-{layers}x{width}", layers, width, steps, rate, rule))
    layers, width = scale.sizes[-1]
    return [*runs, Run("largest", layers, width, scale.steps_for(scale.largest, layers, width, vocab_size), rate, rule)]


def best_rate(scale: Scale, measured: dict[str, Record]) -> float | None:
    """Return the learning rate of the best tuning run, or None if one is missing."""
    if not all(run.name in measured for run in tuning(scale)):
        return None
    return min(tuning(scale), key=lambda run: measured[run.name]["loss"]).rate


def kept_rule(scale: Scale, measured: dict[str, Record]) -> str | None:
    """Return the rule with the lower loss at the smallest network's best rate, or None if a run is missing."""
    best = best_rate(scale, measured)
    if best is None:
        return None
    runs = [run for run in transfers(scale, best) if run.rate == best]
    if not all(run.name in measured for run in runs):
        return None
    return min(runs, key=lambda run: measured[run.name]["loss"]).rule


# ---- running them ----------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", help="folder of data_pipelines.prepare")
    parser.add_argument("--scale", choices=SCALES, default="small")
    parser.add_argument("--budget", action="store_true", help="print the cost of the runs, and exit")
    parser.add_argument("--speed", type=float, default=2e14, help="FLOPs per second, for the hours of --budget")
    studies.add_arguments(parser, "scaling")
    given = parser.parse_args()
    scale = SCALES[given.scale]
    vocab_size = json.loads((Path(given.corpus) / "manifest.json").read_text())["vocab_size"]
    if given.budget:
        print(budget_of(scale, vocab_size, given.speed))
        return
    study = Study(scale.name, given.workdir, given.jobs)

    def run(runs: Iterable[Run]) -> None:
        wanted = [run for run in runs if fnmatch.fnmatch(run.name, given.only)]
        study.run(
            Job(
                run.name, partial(run.command, scale, given.corpus),
                partial(record_of, run, scale, given.corpus, vocab_size),
            )
            for run in wanted
        )  # fmt: skip

    run(tuning(scale))
    if rate := best_rate(scale, study.measured()):
        run(transfers(scale, rate))
        if rule := kept_rule(scale, study.measured()):
            run(groups(scale, rate, rule, vocab_size))


def budget_of(scale: Scale, vocab_size: int, speed: float) -> str:
    """Return the cost of the runs, one line per kind. speed: FLOPs per second."""
    rate = scale.rates[0]  # the rate does not change the cost
    runs = [*tuning(scale), *transfers(scale, rate), *groups(scale, rate, "muP", vocab_size)]
    by_kind: dict[str, list[float]] = {}
    for run in runs:
        kind = run.name.rpartition("-")[0] if run.name.startswith("isoflop") else run.name.partition("-")[0]
        by_kind.setdefault(kind, []).append(run.steps * step_flops(scale.config(run.layers, run.width, vocab_size)))
    by_kind["all"] = [cost for costs in by_kind.values() for cost in costs]
    return "\n".join(
        f"{kind:16} {len(costs):3} runs  {sum(costs):.2e} FLOPs  {sum(costs) / speed / 3600:6.2f} hours at {speed:g}/s"
        for kind, costs in by_kind.items()
    )


def record_of(run: Run, scale: Scale, corpus: str, vocab_size: int, workdir: Path) -> Record:
    """Return the results of a run."""
    held_out = studies.rows_of(workdir, "validation")[-1]
    config = scale.config(run.layers, run.width, vocab_size)
    return {
        "command": studies.shown(run.command(scale, corpus, workdir), workdir, CORPUS=corpus),
        **asdict(run),
        "parameters": run.parameters,
        "tokens": run.steps * config.data.batch_size * config.data.seq_len,
        "flops": run.steps * step_flops(config),
        "loss": held_out["loss"],
        "unigram": held_out["unigram"],
        "train_losses": [[row["step"], round(row["loss"], 4)] for row in studies.rows_of(workdir, "train")],
        **studies.time_of(workdir),
    }


if __name__ == "__main__":
    main()
