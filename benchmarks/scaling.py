"""A scaling study: five networks of 0.1 to 3 million parameters, several budgets of FLOPs, one law for their losses.

    python -m benchmarks.scaling CORPUS [--only 'isoflop*'] [--jobs 2] [--workdir runs/scaling]

CORPUS is a folder of data_pipelines.prepare. That of the recorded runs was made of novels, speeches and a part of C4 by

    python -m data_pipelines.tokenizer train --source novels.txt speeches.txt --vocab-size 8000 --out tokenizer
    python -m data_pipelines.prepare --source novels.txt speeches.txt C4 --weights 0.84 0.08 0.08 \\
        --tokenizer tokenizer --block-len 1152 --validation-fraction 0.03 --out CORPUS

Each run is the ordinary train command; benchmarks/studies.py says how runs are stopped, resumed and recorded.

The runs, in their order:

- tune: the smallest network at several learning rates;
- transfer: a network three times as wide, with as many steps, at the best rate, its half and its double, by two rules:
  one rate at all widths, and muP's, by which the matrices of layers learn at a rate that falls with the width. The rule
  with the lower loss at the rate that was best for the small network is kept;
- isoflop: groups of networks that spend equal FLOPs;
- largest: the largest network with twice the FLOPs of the last group, which the fit does not see.
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
from xlnet_jax.objectives.flops import step_flops
from xlnet_jax.objectives.presets import demo
from xlnet_jax.settings.config import Config

NAME = "scaling"
D_HEAD = 32
BASE_WIDTH = 64
SIZES = {"2x64": (2, 64), "2x96": (2, 96), "3x128": (3, 128), "4x160": (4, 160), "6x192": (6, 192)}
"""name -> layers, width"""
BUDGETS = (4e12, 1.2e13, 4e13, 1.2e14)
"""FLOPs of the groups"""
LARGEST = 2.4e14
STEPS_AT_LEAST = 400
"""shorter runs have hardly left the loss of word frequencies, where no law of size and tokens holds"""
TUNING_STEPS = 1500
RATES = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)


@dataclass(frozen=True)
class Run:
    """One pretraining run of the study."""

    name: str
    layers: int
    width: int
    steps: int
    rate: float
    """learning rate at BASE_WIDTH"""
    rule: str = "one rate"
    """how the rate follows the width: "one rate", or "muP" """
    seed: int = 0

    @property
    def parameters(self) -> int:
        """Weights of the matrices in all layers: attention's five and the feed-forward's two."""
        return 13 * self.layers * self.width**2

    def settings(self) -> dict[str, str | int | float]:
        """Return what the run sets on the train command."""
        warmup = max(self.steps // 20, 20)
        given = {
            "preset": "demo", "steps": self.steps, "seed": self.seed, "model.num-layers": self.layers,
            "model.d-model": self.width, "model.num-heads": self.width // D_HEAD, "model.d-head": D_HEAD,
            "model.d-ff": 4 * self.width,
            # The demo's 0.08 at a width of 128: the outputs of layers are then as large at every width.
            "model.init-std": round(0.08 * (128 / self.width) ** 0.5, 4),
            "optimizer.learning-rate": self.rate, "optimizer.warmup-steps": warmup,
        }  # fmt: skip
        return given | ({"optimizer.matrix-rate": round(BASE_WIDTH / self.width, 4)} if self.rule == "muP" else {})

    def command(self, corpus: str, workdir: Path) -> list[str]:
        """Return module and arguments of the run."""
        reports = {
            "eval.every-steps": self.steps, "eval.max-windows": 4096, "log.every-steps": max(self.steps // 50, 1),
            "checkpoint.every-steps": self.steps, "checkpoint.every-minutes": 3, "checkpoint.keep": 1,
        }  # fmt: skip
        flags = [word for name, value in (self.settings() | reports).items() for word in (f"--{name}", str(value))]
        return ["xlnet_jax.train", *flags, "--corpus", corpus, "--workdir", str(workdir)]


def config_of(layers: int, width: int, vocab_size: int) -> Config:
    """Return the settings of a network of the study."""
    start = demo()
    sizes = {"num_layers": layers, "d_model": width, "num_heads": width // D_HEAD, "d_head": D_HEAD, "d_ff": 4 * width}
    return replace(start, model=replace(start.model, vocab_size=vocab_size, **sizes))


def steps_for(flops: float, layers: int, width: int, vocab_size: int) -> int:
    """Return the steps that a budget pays for."""
    return int(flops // step_flops(config_of(layers, width, vocab_size)))


# ---- the runs --------------------------------------------------------------------------------------------------------


def tuning() -> list[Run]:
    """Return the smallest network at every learning rate."""
    layers, width = SIZES["2x64"]
    return [Run(f"tune-{rate:g}", layers, width, TUNING_STEPS, rate) for rate in RATES]


def transfers(measured: dict[str, Record]) -> list[Run]:
    """Return a network three times as wide at the best rate and beside it, by both rules; none before the tuning."""
    best = best_rate(measured)
    if best is None:
        return []
    return [
        Run(f"transfer-{rule.replace(' ', '-')}-{factor * best:g}", 2, 192, TUNING_STEPS, factor * best, rule)
        for rule in ("one rate", "muP")
        for factor in (1, 0.5, 2)
    ]


def groups(measured: dict[str, Record], vocab_size: int) -> list[Run]:
    """Return the runs of the groups and the largest run, by the rate and the rule that are kept; none before these are
    known."""
    rate, rule = best_rate(measured), kept_rule(measured)
    if rate is None or rule is None:
        return []
    runs = []
    for budget in BUDGETS:
        for name, (layers, width) in SIZES.items():
            steps = steps_for(budget, layers, width, vocab_size)
            if steps >= STEPS_AT_LEAST:
                runs.append(Run(f"isoflop-{budget:g}-{name}", layers, width, steps, rate, rule))
    layers, width = SIZES["6x192"]
    return [*runs, Run("largest", layers, width, steps_for(LARGEST, layers, width, vocab_size), rate, rule)]


def best_rate(measured: dict[str, Record]) -> float | None:
    """Return the learning rate of the best tuning run, or None while one is missing."""
    if not all(run.name in measured for run in tuning()):
        return None
    return min(tuning(), key=lambda run: measured[run.name]["loss"]).rate


def kept_rule(measured: dict[str, Record]) -> str | None:
    """Return the rule whose loss is lower at the rate that was tuned on the small network, or None while one is
    missing."""
    runs = [run for run in transfers(measured) if run.rate == best_rate(measured)]
    if not runs or not all(run.name in measured for run in runs):
        return None
    return min(runs, key=lambda run: measured[run.name]["loss"]).rule


# ---- running them ----------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", help="folder of data_pipelines.prepare")
    studies.add_arguments(parser, NAME)
    given = parser.parse_args()
    vocab_size = json.loads((Path(given.corpus) / "manifest.json").read_text())["vocab_size"]
    study = Study(NAME, given.workdir, given.jobs)

    def run(runs: Iterable[Run]) -> None:
        wanted = [run for run in runs if fnmatch.fnmatch(run.name, given.only)]
        study.run(
            Job(run.name, partial(run.command, given.corpus), partial(record_of, run, given.corpus, vocab_size))
            for run in wanted
        )

    run(tuning())
    run(transfers(study.measured()))
    run(groups(study.measured(), vocab_size))


def record_of(run: Run, corpus: str, vocab_size: int, workdir: Path) -> Record:
    """Return what a run has measured."""
    held_out = studies.rows_of(workdir, "validation")[-1]
    config = config_of(run.layers, run.width, vocab_size)
    return {
        "command": studies.shown(run.command(corpus, workdir), workdir, CORPUS=corpus),
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
