"""Fit the law of Hoffmann et al. 2022 to the runs of benchmarks/scaling.py, which train as in the paper, and to those
of the modern recipe (benchmarks/modern.py).

    python -m benchmarks.fit_scaling [--report]

Reads benchmarks/measured; writes scaling_law.json, which xlnet_jax/planning/scaling_law.py reads, and
docs/results_scaling.png; prints tables of the runs, both laws, their predictions of the largest runs, and the FLOPs
that the modern recipe needs for the losses of AdamW.

The fit follows appendix D.2 of the paper: it minimizes the Huber loss (delta 0.001) of the logarithm of the loss from a
grid of starting points. Two differences save time: it uses only the best starting points, and a trust region instead of
L-BFGS, which reaches the same minimum. Intervals come from refits to runs drawn with replacement. The deeper networks
and the largest runs are not fitted.
"""

import argparse
import dataclasses
import fnmatch
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import numpy as np
from scipy.optimize import least_squares
from scipy.special import huber, logsumexp, softmax

from benchmarks import modern, studies
from benchmarks.results import keep_table, look_up
from benchmarks.results import read as read_results
from benchmarks.scaling import SCALES, best_rate, kept_rule
from benchmarks.studies import MEASURED, Record
from xlnet_jax.planning.scaling_law import FILE, INTERVAL, Fit, Law, read_fits

SCALE = SCALES["small"]
STUDIES = {
    "adamw": (SCALE.name, ["isoflop*"], ["largest", "deeper*"], "as in the paper"),
    "muon": (modern.NAME, ["law*", "compare-*-modern-seed-0"], ["largest"], "with the modern presets"),
}
"""optimizer -> study, patterns of the runs that are fitted and that are not, and how they were trained"""
DELTA = 1e-3
REFITS = 200
VOCAB_SIZE = 8_000
"""vocabulary size of the recorded runs"""
LOGARITHMS, EXPONENTS = (0.0, 5.0, 10.0, 15.0, 20.0, 25.0), (0.0, 0.5, 1.0, 1.5, 2.0)
STARTS = 40
"""number of grid points to start from: the best ones"""
BOUNDS = ([-np.inf] * 3 + [min(EXPONENTS)] * 2, [np.inf] * 3 + [max(EXPONENTS)] * 2)
"""of a, b, e, alpha and beta: with few runs an exponent and its factor could grow without limit"""
GRID = tuple(itertools.product(LOGARITHMS, LOGARITHMS, (-1.0, -0.5, 0.0, 0.5, 1.0), EXPONENTS, EXPONENTS))
"""the paper's starting points of a = ln A, b = ln B, e = ln E, alpha and beta"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", action="store_true", help="print the tables of the laws as they are, and exit")
    if not parser.parse_args().report:
        fits = {method: fitted_to(runs_of(*where[:3])[0], where[3]) for method, where in STUDIES.items()}
        FILE.write_text(json.dumps({method: dataclasses.asdict(fit) for method, fit in fits.items()}) + "\n")
        read_fits.cache_clear()
    report(read_fits())
    draw(read_fits(), Path(__file__).parents[1] / "docs" / "results_scaling.png")


def report(fits: dict[str, Fit]) -> None:
    """Print the tables of the runs and of the laws, and keep them."""
    measured = studies.read(MEASURED / SCALE.name)
    _print_rates(measured)
    print(f"\n{sum(run['seconds'] for run in measured.values()) / 3600:.1f} CPU hours over all {len(measured)} runs")
    for method, where in STUDIES.items():
        runs, others = runs_of(*where[:3])
        _print_runs(method, [*runs, *others], fits[method].law)
        _print_law(method, fits[method])
    _print_largest({method: (runs_of(*where[:3])[1][0], fits[method]) for method, where in STUDIES.items()})
    _print_needed(fits["muon"], studies.read(MEASURED / modern.NAME))


def runs_of(study: str, fitted: Sequence[str], others: Sequence[str]) -> tuple[list[Record], list[Record]]:
    """Return the runs of a study that its law is fitted to, and those that it is not, the largest first.

    fitted, others: patterns of the names of the runs.
    """
    measured = studies.read(MEASURED / study)
    runs, rest = (
        [run for pattern in patterns for name, run in measured.items() if fnmatch.fnmatch(name, pattern)]
        for patterns in (fitted, others)
    )
    return runs, rest


def fitted_to(runs: Sequence[Record], recipe: str) -> Fit:
    """Return the law of runs. recipe: how they were trained, in messages."""
    sizes, tokens, losses = (np.array([run[key] for run in runs], float) for key in ("parameters", "tokens", "loss"))
    best = fit(sizes, tokens, losses)
    bounds = (sizes.min(), sizes.max()), (tokens.min(), tokens.max())
    return Fit("plm", recipe, VOCAB_SIZE, law_of(best), refitted(sizes, tokens, losses, best), *bounds)


# ---- the fit ---------------------------------------------------------------------------------------------------------


def fit(
    sizes: np.ndarray, tokens: np.ndarray, losses: np.ndarray, starts: Sequence[Sequence[float]] = GRID
) -> np.ndarray:
    """Return a, b, e, alpha, beta of the best fit over the best starting points.

    sizes, tokens, losses: [R], one per run.
    """
    runs = (sizes, tokens, losses)
    best = sorted(starts, key=lambda start: huber(DELTA, errors(start, *runs)).sum())[:STARTS]
    with np.errstate(all="ignore"):  # distant starting points overflow, and are not chosen
        ends = [_descend(start, runs) for start in best]
    return min(ends, key=lambda end: huber(DELTA, errors(end, *runs)).sum())


def _descend(point: Sequence[float] | np.ndarray, runs: tuple[np.ndarray, ...]) -> np.ndarray:
    """Return the minimum reached from a point. Begin with a wide Huber loss, which has few local minima."""
    point = np.clip(point, *BOUNDS)
    for delta in (100 * DELTA, 10 * DELTA, DELTA):
        point = least_squares(
            errors, point, jacobian, bounds=BOUNDS, loss="huber", f_scale=delta, x_scale="jac", args=runs
        ).x
    return np.asarray(point)


def errors(point: Sequence[float], sizes: np.ndarray, tokens: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """Return the errors of a law in the logarithms of the runs' losses (equation 3): [R]."""
    return logsumexp(_terms(point, sizes, tokens), axis=0) - np.log(losses)


def jacobian(point: Sequence[float], sizes: np.ndarray, tokens: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """Return the derivatives of the errors by a, b, e, alpha and beta: [R, 5]."""
    shares = softmax(_terms(point, sizes, tokens), axis=0)
    return np.stack([*shares, -shares[0] * np.log(sizes), -shares[1] * np.log(tokens)], axis=1)


def _terms(point: Sequence[float], sizes: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Return the logarithms of the three terms of the law: [3, R]."""
    a, b, e, alpha, beta = point
    return np.stack([a - alpha * np.log(sizes), b - beta * np.log(tokens), np.full(len(sizes), e)])


def law_of(point: np.ndarray) -> Law:
    a, b, e, alpha, beta = map(float, point)
    return Law(E=float(np.exp(e)), A=float(np.exp(a)), alpha=alpha, B=float(np.exp(b)), beta=beta)


def refitted(sizes: np.ndarray, tokens: np.ndarray, losses: np.ndarray, best: np.ndarray) -> tuple[Law, ...]:
    """Return laws fitted to runs drawn with replacement, starting from the best fit and from points near it."""
    draw = np.random.default_rng(0)
    laws = []
    while len(laws) < REFITS:
        drawn = draw.integers(len(losses), size=len(losses))
        if len(set(drawn)) > len(best):  # fewer runs than parameters do not determine a law
            starts = [best, *(best + draw.normal(0, 0.3, (4, len(best))))]
            laws.append(law_of(fit(sizes[drawn], tokens[drawn], losses[drawn], starts)))
    return tuple(laws)


# ---- what it prints --------------------------------------------------------------------------------------------------


def _print_rates(measured: dict[str, Record]) -> None:
    runs = [run for name, run in measured.items() if name.startswith(("tune", "transfer"))]
    keep_table(
        "scaling-rates",
        ("network, rule, rate at a width of 64", "steps", "held-out loss"),
        (
            (f"{r['layers']} x {r['width']}, {r['rule']}, {r['rate']:g}", f"{r['steps']:,}", f"{r['loss']:.3f}")
            for r in sorted(runs, key=lambda run: (run["width"], run["rule"], run["rate"]))
        ),
    )
    print(f"\nbest rate {best_rate(SCALE, measured):g}, kept: {kept_rule(SCALE, measured)}")


def _print_runs(method: str, runs: Sequence[Record], law: Law) -> None:
    keep_table(
        f"scaling-runs-{method}",
        ("network", "FLOPs", "parameters", "tokens", "steps", "held-out loss", "by the law", "CPU minutes", "goodput"),
        (
            (
                _network(run),
                f"{run['flops']:.1e}",
                f"{run['parameters']:,}",
                f"{run['tokens']:,}",
                f"{run['steps']:,}",
                f"{run['loss']:.3f}",
                f"{law.loss(run['parameters'], run['tokens']):.3f}",
                f"{run['seconds'] / 60:.1f}",
                f"{run['goodput']:.0%}",
            )
            for run in sorted(runs, key=lambda run: (run["flops"] // 1e11, run["parameters"]))
        ),
    )


def _network(run: Record) -> str:
    """Return layers x width."""
    words = run["command"].split()
    return " x ".join(words[words.index(f"--model.{name}") + 1] for name in ("num-layers", "d-model"))


def _print_law(method: str, fit: Fit) -> None:
    rows = []
    for name in (field.name for field in dataclasses.fields(Law)):
        low, high = interval([getattr(other, name) for other in fit.refits])
        rows.append((name, f"{getattr(fit.law, name):.4g}", f"{low:.4g} to {high:.4g}"))
    worst = max(
        abs(run["loss"] / fit.law.loss(run["parameters"], run["tokens"]) - 1)
        for run in runs_of(*STUDIES[method][:3])[0]
    )
    rows.append(("largest error of a fitted run", f"{worst:.1%}", ""))
    keep_table(
        f"scaling-law-{method}",
        (f"trained {fit.recipe}", "fitted", f"{INTERVAL:.0%} of {len(fit.refits)} refits"),
        rows,
    )


def _print_largest(largest: dict[str, tuple[Record, Fit]]) -> None:
    rows = []
    for run, fit in largest.values():
        where = run["parameters"], run["tokens"]
        predicted, (low, high) = fit.law.loss(*where), interval([other.loss(*where) for other in fit.refits])
        error = f"{run['loss'] / predicted - 1:+.1%}"
        rows.append([fit.recipe, f"{run['loss']:.3f}", f"{predicted:.3f}", f"{low:.3f}", f"{high:.3f}", error])
    keep_table("scaling-largest", ("largest run, trained", "loss", "predicted", "from", "to", "error"), rows)


def _print_needed(fit: Fit, measured: dict[str, Record]) -> None:
    """Print the FLOPs that the modern recipe needs for the losses of AdamW as in the paper, and with the same parts."""
    cases = {str(width): (width, [measured[f"compare-{width}-adamw-seed-0"]]) for width in modern.BUDGETS}
    if same := modern.of_runs(measured, f"same-parts-{modern.BUDGETS[64]:g}-seed-"):
        cases["64, AdamW with the same parts"] = (64, same)
    rows = []
    for name, (width, adamw) in cases.items():
        ours, loss, flops = (
            measured[f"compare-{width}-modern-seed-0"],
            mean(r["loss"] for r in adamw),
            adamw[0]["flops"],
        )
        a_token = ours["flops"] / ours["tokens"]
        needed = a_token * tokens_for(loss, ours["parameters"], fit.law)
        low, high = interval([a_token * tokens_for(loss, ours["parameters"], law) for law in fit.refits])
        share = f"{needed / flops:.2f}"
        rows.append((name, f"{loss:.3f}", f"{flops:.2g}", f"{needed:.2g} ({low:.2g} to {high:.2g})", share))
    keep_table("scaling-needed", ("width", "AdamW's loss", "its FLOPs", "modern needs, by the law", "share"), rows)


def tokens_for(loss: float, parameters: float, law: Law) -> float:
    """Return the tokens after which a network has this loss."""
    return float((law.B / (loss - law.loss(parameters, np.inf))) ** (1 / law.beta))


def interval(numbers: Sequence[float]) -> tuple[float, float]:
    """Return the bounds of the middle INTERVAL of them."""
    low, high = np.quantile(numbers, [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2])
    return low, high


def draw(fits: dict[str, Fit], path: Path) -> None:
    """Draw the losses of runs with equal FLOPs over network size, with the curves of their law."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 5.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    found = {method: runs_of(*where[:3]) for method, where in STUDIES.items()}
    budgets = sorted({f"{run['flops']:.1e}" for runs, _ in found.values() for run in runs}, key=float)
    for (method, (runs, others)), marker, line in zip(found.items(), "os", "-:", strict=True):
        fit = fits[method]
        for number, budget in enumerate(budgets):
            group = sorted((r for r in runs if f"{r['flops']:.1e}" == budget), key=lambda r: r["parameters"])
            if not group:
                continue
            color = f"C{number}"
            sizes = np.array([run["parameters"] for run in group], float)
            tokens = np.array([run["tokens"] for run in group], float)
            label = f"{budget} FLOPs, {fit.recipe}"
            axes.plot(sizes, [run["loss"] for run in group], marker, color=color, label=label)
            between = np.geomspace(sizes[0], sizes[-1])
            # Tokens that the budget pays for, at sizes between those of the runs.
            paid = np.exp(np.interp(np.log(between), np.log(sizes), np.log(tokens)))
            axes.plot(between, fit.law.loss(between, paid), line, color=color, lw=1)
        largest = others[0]
        where = largest["parameters"], largest["tokens"]
        axes.plot(where[0], largest["loss"], "k*", ms=12, label=f"{largest['flops']:.1e}, not fitted, {fit.recipe}")
        axes.plot(where[0], fit.law.loss(*where), "k_", ms=16, label="its prediction")
    ngram = float(look_up(read_results(), "ngram", "5-gram:", None))
    axes.axhline(ngram, ls="--", color="gray", label=f"5-gram model, {ngram:.2f}")
    axes.set(xscale="log", xlabel="parameters in layers", ylabel="held-out loss, nats per target")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path)


if __name__ == "__main__":
    main()
