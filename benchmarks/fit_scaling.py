"""Fit the law of Hoffmann et al. 2022 to the runs of benchmarks/scaling.py, and compare it with the largest run.

    python -m benchmarks.fit_scaling

Reads benchmarks/measured/scaling; writes scaling_law.json, which xlnet_jax/planning/scaling_law.py reads, and
docs/results_scaling.png; prints tables of the runs, the law and its prediction.

The fit follows appendix D.2 of the paper: it minimizes the Huber loss (delta 0.001) of the logarithm of the loss from a
grid of starting points. Two differences save time: it uses only the best starting points, and a trust region instead of
L-BFGS, which reaches the same minimum. Intervals come from refits to runs drawn with replacement. The deeper networks
and the largest run are not fitted.
"""

import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares
from scipy.special import huber, logsumexp, softmax

from benchmarks import studies
from benchmarks.scaling import SCALES, best_rate, kept_rule
from benchmarks.studies import MEASURED, Record
from xlnet_jax.planning.scaling_law import FILE, INTERVAL, Fit, Law

SCALE = SCALES["small"]
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
    measured = studies.read(MEASURED / SCALE.name)
    runs = [run for name, run in measured.items() if name.startswith("isoflop")]
    sizes, tokens, losses = (np.array([run[key] for run in runs], float) for key in ("parameters", "tokens", "loss"))
    best = fit(sizes, tokens, losses)
    law = law_of(best)
    refits = refitted(sizes, tokens, losses, best)
    whole = Fit("plm", VOCAB_SIZE, law, refits, (sizes.min(), sizes.max()), (tokens.min(), tokens.max()))
    FILE.write_text(json.dumps(dataclasses.asdict(whole)) + "\n")
    _print_rates(measured)
    _print_runs(measured, law)
    _print_law(law, refits)
    if "largest" in measured:
        _print_largest(measured["largest"], law, refits)
    _draw(runs, measured.get("largest"), law)


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
    studies.print_table(
        ("network", "rule", "learning rate at a width of 64", "steps", "held-out loss"),
        (
            (f"{r['layers']} x {r['width']}", r["rule"], f"{r['rate']:g}", f"{r['steps']:,}", f"{r['loss']:.3f}")
            for r in sorted(runs, key=lambda run: (run["width"], run["rule"], run["rate"]))
        ),
    )
    print(f"\nbest rate {best_rate(SCALE, measured):g}, kept: {kept_rule(SCALE, measured)}")


def _print_runs(measured: dict[str, Record], law: Law) -> None:
    runs = [run for name, run in measured.items() if name.startswith(("isoflop", "deeper", "largest"))]
    studies.print_table(
        ("run", "network", "parameters", "tokens", "steps", "held-out loss", "by the law", "CPU minutes", "goodput"),
        (
            (
                run["name"],
                f"{run['layers']} x {run['width']}",
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
    print(f"\n{sum(run['seconds'] for run in measured.values()) / 3600:.1f} CPU hours over all {len(measured)} runs")


def _print_law(law: Law, refits: Sequence[Law]) -> None:
    rows = []
    for name in (field.name for field in dataclasses.fields(Law)):
        low, high = np.quantile([getattr(other, name) for other in refits], [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2])
        rows.append((name, f"{getattr(law, name):.4g}", f"{low:.4g} to {high:.4g}"))
    studies.print_table(("", "fitted", f"{INTERVAL:.0%} of {len(refits)} refits"), rows)


def _print_largest(run: Record, law: Law, refits: Sequence[Law]) -> None:
    predicted = law.loss(run["parameters"], run["tokens"])
    spread = [other.loss(run["parameters"], run["tokens"]) for other in refits]
    low, high = np.quantile(spread, [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2])
    print(
        f"\nlargest run: {run['loss']:.4f}, predicted {predicted:.4f} ({low:.4f} to {high:.4f}), "
        f"{100 * (run['loss'] / predicted - 1):+.2f} %"
    )


def _draw(runs: list[Record], largest: Record | None, law: Law) -> None:
    """Draw the loss of each group over network size, with the law's curves."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 4.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    budgets = sorted({float(run["name"].split("-")[1]) for run in runs})
    for number, budget in enumerate(budgets):
        group = sorted((r for r in runs if float(r["name"].split("-")[1]) == budget), key=lambda r: r["parameters"])
        color = f"C{number}"
        sizes = np.array([run["parameters"] for run in group], float)
        tokens = np.array([run["tokens"] for run in group], float)
        axes.plot(sizes, [run["loss"] for run in group], "o", color=color, label=f"{budget:.1e} FLOPs")
        between = np.geomspace(sizes[0], sizes[-1])
        # Tokens that the budget pays for, at sizes between those of the runs.
        paid = np.exp(np.interp(np.log(between), np.log(sizes), np.log(tokens)))
        axes.plot(between, law.loss(between, paid), color=color, lw=1)
    if largest:
        axes.plot(largest["parameters"], largest["loss"], "k*", ms=12, label="largest run, not fitted")
        axes.plot(
            largest["parameters"],
            law.loss(largest["parameters"], largest["tokens"]),
            "k_",
            ms=16,
            label="its prediction",
        )
    ngram = json.loads((MEASURED / "ngram.json").read_text())
    axes.axhline(ngram["loss"], ls=":", color="gray", label=f"{ngram['order']}-gram model, {ngram['loss']:.2f}")
    axes.set(xscale="log", xlabel="parameters in layers", ylabel="held-out loss, nats per target")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(Path(__file__).parents[1] / "docs" / "results_scaling.png")


if __name__ == "__main__":
    main()
