"""Compare the recipe of the `modern` presets with AdamW: FLOPs to reach a held-out loss, and the effect of each part.

    python -m benchmarks.modern CORPUS DATA [--only 'compare*'] [--jobs 2] [--workdir runs/modern]
    python -m benchmarks.modern --report

CORPUS is that of benchmarks/scaling.py, DATA that of benchmarks/eight_tasks.py. Networks and learning rates of "adamw"
are those of the scaling law: muP, and the best of five rates. A run of "modern" spends half of the FLOPs of the run of
"adamw" beside it, those of Muon's products included. All losses are measured by `evaluate` on the same held-out
windows, which share no text and have 22 targets in 128 pieces, whatever a recipe trains with.

The runs, in order:

- tune: the smallest network at several learning rates, with equal FLOPs;
- compare: three widths; five seeds of the smallest;
- variant: the smallest network with the modern recipe without one of its parts, or with something else, with equal
  FLOPs; and AdamW with zero init, with all of its FLOPs;
- law, largest: networks of five widths with several budgets, which `python -m benchmarks.fit_scaling` fits a law to,
  and the run that it predicts;
- transfer: the largest networks of "compare" finetuned on three tasks.
"""

import argparse
import fnmatch
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import eight_tasks, studies
from benchmarks.eight_tasks import Task
from benchmarks.results import keep_table
from benchmarks.studies import Job, Record, Study, run_module
from xlnet_jax.costs import layer_parameters
from xlnet_jax.measurement.contenders import step_operations
from xlnet_jax.objectives.presets import parse_config
from xlnet_jax.settings.config import Config

NAME = "modern"
Settings = dict[str, str | int | float | bool]

NETWORK: Settings = {"preset": "demo", "model.num-layers": 2, "model.d-head": 32, "eval.max-windows": 4096}
TARGETS: Settings = {"data.num-predict": 22, "data.mask-alpha": 6}
MORE_TARGETS: Settings = {"data.num-predict": 64, "data.mask-alpha": 2}
PAIRS: Settings = {
    "data.window": "pairs", "data.reuse-len": 64, "data.perm-size": 64, "data.windows-per-block": 16,
    "model.mem-len": 64,
}  # fmt: skip
READ_ONCE: Settings = {
    "data.window": "sentences", "data.reuse-len": 0, "data.perm-size": 128, "data.windows-per-block": 9,
}  # fmt: skip
HELD_OUT = {**READ_ONCE, **TARGETS}
RECIPES: dict[str, Settings] = {
    "adamw": {"optimizer.method": "adamw", "optimizer.matrix-rate": 1, **PAIRS, **TARGETS},
    "modern": {
        "optimizer.method": "muon", "optimizer.matrix-rate": 2.5, **READ_ONCE, "model.mem-len": 0, **MORE_TARGETS,
        "model.zero-init": True,
    },
}  # fmt: skip
RECIPES["same-parts"] = {**RECIPES["modern"], "optimizer.method": "adamw", "optimizer.matrix-rate": 1}
COMPARED = ("adamw", "modern")
"""the recipes of the tables by width"""
PARTS: dict[str, Settings] = {
    "Muon": {"optimizer.method": "adamw", "optimizer.matrix-rate": 1, "optimizer.learning-rate": 4e-3},
    "more targets": TARGETS,
    "windows that read each token once": PAIRS,
    "zero init": {"model.zero-init": False},
}
"""what undoes each part of the modern recipe"""
ALTERNATIVES: dict[str, Settings] = {
    "a third of the tokens as targets": {"data.num-predict": 43, "data.mask-alpha": 3},
    "pairs": {"data.window": "pairs"},
    "dropout": {"model.dropout": 0.1, "model.attention-dropout": 0.1},
    "pre-norm": {"model.norm": "pre"},
    "schedule wsd": {"optimizer.schedule": "wsd"},
}
"""alternatives that the recipe does not use"""
RATES = {"adamw": (4e-3,), "modern": (8e-3, 1.6e-2, 3.2e-2), "same-parts": (4e-3, 8e-3, 1.6e-2)}
TUNING_FLOPS = {"adamw": 5.76e12, "modern": 5.76e12, "same-parts": 4e12}
"""that of "same-parts" is the budget of modern beside AdamW, so its best run is seed 0 of the comparison"""
BUDGETS = {64: 8e12, 96: 1.2e13, 160: 2.4e13}
"""FLOPs of "adamw" by width"""
LAW = ((96, 4e12), (64, 1.2e13), (96, 1.2e13), (64, 4e13), (96, 4e13), (160, 4e13), (224, 4e13), (320, 4e13))
"""widths and FLOPs of the runs of "modern" that are only for the law"""
LARGEST = (320, 8e13)
"""width and FLOPs of the run that the law predicts"""
SHARE = 1 / 2
"""FLOPs of "modern" as a share of them"""
SEEDS = range(5)
SAME_PARTS_SEEDS = range(3)
TASKS = [task for task in eight_tasks.TASKS if task.name in ("sst-2", "squad", "cola")]
RATE, FINETUNING_SEEDS = 1e-3, range(3)
"""learning rate and seeds of finetuning"""
PAPERS = "loss_on_papers_windows"


@dataclass(frozen=True)
class Run:
    """One pretraining run of the study."""

    name: str
    width: int
    flops: float
    settings: Settings
    seed: int = 0

    def words(self) -> list[str]:
        """Return the settings of the train command as flags, but for its steps."""
        sizes: Settings = {
            "model.d-model": self.width, "model.num-heads": self.width // 32, "model.d-ff": 4 * self.width,
            "model.init-std": round(0.08 * (128 / self.width) ** 0.5, 4), "seed": self.seed,
        }  # fmt: skip
        return flags({**NETWORK, **sizes, **self.settings})

    def config(self, vocab_size: int) -> Config:
        """Return the settings, but for its steps."""
        return parse_config([*self.words(), "--model.vocab-size", str(vocab_size)], "train", "")

    def steps(self, vocab_size: int) -> int:
        """Return the steps that the budget pays for."""
        return int(self.flops // step_operations(self.config(vocab_size)))

    def papers_windows(self) -> Settings:
        """Return the settings that evaluate the run on the paper's windows, with the memory of its training."""
        pairs = {name: value for name, value in PAIRS.items() if name != "model.mem-len"}
        return {**pairs, **TARGETS, "mem-len": self.settings["model.mem-len"]}

    def command(self, corpus: str, steps: int, workdir: Path) -> list[str]:
        """Return module and arguments of the run."""
        length: Settings = {
            "steps": steps, "optimizer.warmup-steps": steps // 20, "eval.every-steps": steps,
            "log.every-steps": max(steps // 50, 1), "checkpoint.every-steps": steps, "checkpoint.every-minutes": 3,
            "checkpoint.keep": 1, "corpus": corpus, "workdir": str(workdir),
        }  # fmt: skip
        return ["xlnet_jax.train", *self.words(), *flags(length)]

    def record(self, corpus: str, steps: int, workdir: Path) -> Record:
        """Return the results of the run."""
        losses = {}
        config = self.config(json.loads((Path(corpus) / "manifest.json").read_text())["vocab_size"])
        for kind, settings in {"loss": HELD_OUT, PAPERS: self.papers_windows()}.items():
            out = workdir / f"{kind}.json"
            run_module(
                "xlnet_jax.evaluate", workdir, "--max-windows", 4096, *flags(settings), "--out", out, "--overwrite"
            )
            losses[kind] = round(float(json.loads(out.read_text())["loss"]), 4)
        command = self.command(corpus, steps, workdir)
        return {
            "command": studies.shown(command, workdir, CORPUS=corpus),
            "steps": steps,
            "flops": self.flops,
            "parameters": layer_parameters(config.model),
            "tokens": steps * config.data.batch_size * config.data.seq_len,
            **losses,
            **studies.time_of(workdir),
        }


def flags(settings: Settings) -> list[str]:
    """Return the words of a command line."""
    words = []
    for name, value in settings.items():
        if isinstance(value, bool):
            section, _, name_there = name.rpartition(".")
            words.append(f"--{section}.{'' if value else 'no-'}{name_there}")
        else:
            words += [f"--{name}", str(value)]
    return words


# ---- the runs --------------------------------------------------------------------------------------------------------


def tuning(recipe: str) -> list[Run]:
    """Return the smallest network at every learning rate."""
    return [
        Run(f"tune-{recipe}-{rate:g}", 64, TUNING_FLOPS[recipe], {**RECIPES[recipe], "optimizer.learning-rate": rate})
        for rate in RATES[recipe]
    ]


def best_rate(recipe: str, measured: dict[str, Record]) -> float | None:
    """Return the learning rate of the best tuning run; None if one is missing."""
    losses = {rate: measured.get(f"tune-{recipe}-{rate:g}", {}).get("loss") for rate in RATES[recipe]}
    return None if None in losses.values() else min(losses, key=lambda rate: losses[rate])


def variants(rate: float) -> list[Run]:
    """Return the runs of the smallest network without each part of the modern recipe, with each alternative, and of
    AdamW with zero init."""
    modern = {**RECIPES["modern"], "optimizer.learning-rate": rate}
    changes = [(f"without {name}", change) for name, change in PARTS.items()]
    changes += [(f"with {name}", change) for name, change in ALTERNATIVES.items()]
    from_zero: Settings = {**RECIPES["adamw"], "optimizer.learning-rate": RATES["adamw"][0], "model.zero-init": True}
    return [
        *[
            Run(f"variant-{name.replace(' ', '-')}", 64, SHARE * BUDGETS[64], {**modern, **change})
            for name, change in changes
        ],
        Run("variant-AdamW-with-zero-init", 64, BUDGETS[64], from_zero),
    ]


def adamw_at(width: int, rate: float) -> Settings:
    """Return the settings of AdamW at a width, by muP. rate: the best at the smallest width."""
    return {
        **RECIPES["adamw"], "optimizer.learning-rate": rate, "optimizer.matrix-rate": round(min(BUDGETS) / width, 4)
    }  # fmt: skip


def modern_at(width: int, rate: float) -> Settings:
    """Return the settings of the modern recipe at a width. As in the presets, the rate is in proportion to the initial
    size of embeddings, and that of matrices stays. rate: the best at the smallest width."""
    slower, of_matrices = (min(BUDGETS) / width) ** 0.5, float(RECIPES["modern"]["optimizer.matrix-rate"])
    return {
        **RECIPES["modern"],
        "optimizer.learning-rate": round(slower * rate, 5),
        "optimizer.matrix-rate": round(of_matrices / slower, 3),
    }


def comparison(rates: dict[str, float]) -> list[Run]:
    """Return the runs of both recipes at every width; five seeds of the smallest."""
    runs = []
    for seed in SEEDS:
        for width, budget in BUDGETS.items() if seed == 0 else [min(BUDGETS.items())]:
            for recipe, share, at in (("adamw", 1.0, adamw_at), ("modern", SHARE, modern_at)):
                name = f"compare-{width}-{recipe}-seed-{seed}"
                runs.append(Run(name, width, share * budget, at(width, rates[recipe]), seed))
    return runs


def same_parts(rate: float) -> list[Run]:
    """Return the runs of AdamW with the parts of the modern recipe: with the FLOPs of modern, and with all of AdamW's.
    Seed 0 of the first is the tuning run with the best rate."""
    settings: Settings = {**RECIPES["same-parts"], "optimizer.learning-rate": rate}
    return [
        Run(f"same-parts-{share * BUDGETS[64]:g}-seed-{seed}", 64, share * BUDGETS[64], settings, seed)
        for share, seeds in ((SHARE, SAME_PARTS_SEEDS[1:]), (1.0, SAME_PARTS_SEEDS))
        for seed in seeds
    ]


def of_law(rate: float) -> list[Run]:
    """Return the runs of the modern recipe for the law, beside those of `comparison`."""
    named = {f"law-{flops:g}-{width}": (width, flops) for width, flops in LAW} | {"largest": LARGEST}
    return [Run(name, width, flops, modern_at(width, rate)) for name, (width, flops) in named.items()]


def transfer(task: Task, recipe: str, data: Path, workdirs: Path) -> Job:
    """Return the job that finetunes the largest network of a recipe."""
    init, files = str(workdirs / f"compare-{max(BUDGETS)}-{recipe}-seed-0"), (data / task.train, data / task.dev)
    command = partial(task.command, "pretrained", RATE, FINETUNING_SEEDS, files, init)

    def record(workdir: Path) -> Record:
        of_seeds = json.loads((workdir / "results.json").read_text())["seeds"].values()
        return {
            "command": studies.shown(command(workdir), workdir, DATA=str(data), PRETRAINED=init),
            "scores": [task.scale * result["metrics"][task.metric] for result in of_seeds],
            **studies.time_of(workdir),
        }

    return Job(f"transfer-{task.name}-{recipe}", command, record)


def transfers(data: Path, workdirs: Path) -> list[Job]:
    """Return the finetuning jobs of both recipes."""
    return [transfer(task, recipe, data, workdirs) for task in TASKS for recipe in COMPARED]


# ---- running them ----------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="?", help="folder of data_pipelines.prepare")
    parser.add_argument("data", nargs="?", type=Path, help="folder of the tasks")
    parser.add_argument("--report", action="store_true", help="print the tables of recorded runs, and exit")
    studies.add_arguments(parser, NAME)
    given = parser.parse_args()
    if not given.report and given.data is None:
        parser.error("give CORPUS and DATA, or --report")
    if not given.report:
        vocab_size = json.loads((Path(given.corpus) / "manifest.json").read_text())["vocab_size"]
        study = Study(NAME, given.workdir, given.jobs)

        def run(runs: Iterable[Run]) -> None:
            jobs = []  # made here, because the threads of the study must not read settings at the same time
            for each in runs:
                if fnmatch.fnmatch(each.name, given.only):
                    of_run = (given.corpus, each.steps(vocab_size))
                    jobs.append(Job(each.name, partial(each.command, *of_run), partial(each.record, *of_run)))
            study.run(jobs)

        run(each for recipe in RECIPES for each in tuning(recipe))
        rates = {recipe: rate for recipe in RECIPES if (rate := best_rate(recipe, study.measured()))}
        if len(rates) == len(RECIPES):
            run(comparison(rates))
            run(same_parts(rates["same-parts"]))
            run(variants(rates["modern"]))
            run(of_law(rates["modern"]))
            study.run(job for job in transfers(given.data, given.workdir) if fnmatch.fnmatch(job.name, given.only))
    report(studies.read(studies.MEASURED / NAME))


def report(measured: dict[str, Record]) -> None:
    """Print the tables of the recorded runs, and keep them."""
    tuned = {name.removeprefix("tune-"): record for name, record in measured.items() if name.startswith("tune-")}
    keep_table(
        "modern-tuning", ("recipe and rate", "steps", "held-out loss"),
        [(name, f"{record['steps']:,}", f"{record['loss']:.3f}") for name, record in tuned.items()],
    )  # fmt: skip
    changed = {"modern": measured.get(f"compare-64-modern-seed-{SEEDS[0]}")} | {
        name.removeprefix("variant-").replace("-", " "): record
        for name, record in measured.items() if name.startswith("variant-")
    }  # fmt: skip
    keep_table(
        "modern-parts", ("recipe", "FLOPs", "steps", "held-out loss"),
        [(n, f"{r['flops']:.2g}", f"{r['steps']:,}", f"{r['loss']:.3f}") for n, r in changed.items() if r],
    )  # fmt: skip
    rows = []
    for width in BUDGETS:
        found = {r: of_runs(measured, f"compare-{width}-{r}-seed-") for r in COMPARED}
        if all(found.values()):
            cells = [(f"{runs[0]['flops']:.2g}", _spread(runs, "loss")) for runs in found.values()]
            rows.append([str(width), str(len(found["modern"])), *(cell for pair in cells for cell in pair)])
    heads = (head for recipe in COMPARED for head in (f"FLOPs of {recipe}", f"loss of {recipe}"))
    keep_table("modern-widths", ["width", "seeds", *heads], rows)
    if rate := best_rate("same-parts", measured):
        half, whole = (f"{share * BUDGETS[64]:.2g}" for share in (SHARE, 1.0))
        tuning_run = [measured[f"tune-same-parts-{rate:g}"]]
        seeds = slice(len(SAME_PARTS_SEEDS))
        groups = {
            f"AdamW, {whole}": of_runs(measured, "compare-64-adamw-seed-")[seeds],
            f"AdamW with the same parts, {half}": [*tuning_run, *of_runs(measured, f"same-parts-{half}-seed-")],
            f"AdamW with the same parts, {whole}": of_runs(measured, f"same-parts-{whole}-seed-"),
            f"modern, {half}": of_runs(measured, "compare-64-modern-seed-")[seeds],
        }
        keep_table(
            "modern-same-parts",
            ("recipe, FLOPs", "seeds", "windows that share no text", "seeds", "the paper's windows"),
            [
                (name, str(len(runs)), _spread(runs, "loss"), str(len(of_papers)), _spread(of_papers, PAPERS))
                for name, runs in groups.items() if (of_papers := [run for run in runs if PAPERS in run])
            ],
        )  # fmt: skip
    rows = []
    for task in TASKS:
        runs = [measured.get(f"transfer-{task.name}-{recipe}") for recipe in COMPARED]
        if all(runs):
            scores = (run["scores"] for run in runs if run)
            cells = (f"{statistics.mean(found):.1f} ± {statistics.stdev(found):.1f}" for found in scores)
            rows.append([f"{task.name}, {task.metric}", *cells])
    keep_table("modern-tasks", ["finetuned", *COMPARED], rows)
    print(f"\n{sum(run['seconds'] for run in measured.values()) / 3600:.1f} CPU hours")


def of_runs(measured: dict[str, Record], begin: str) -> list[Record]:
    """Return the records of the runs whose names begin so, in the order of seeds."""
    return [record for name, record in sorted(measured.items()) if name.startswith(begin)]


def _spread(runs: Sequence[Record], kind: str) -> str:
    losses = [run[kind] for run in runs]
    deviation = f" ± {statistics.stdev(losses):.3f}" if len(losses) > 1 else ""
    return f"{statistics.mean(losses):.3f}{deviation}"


if __name__ == "__main__":
    main()
