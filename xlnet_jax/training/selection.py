"""Evaluation on held-out examples while a run trains, the best checkpoint by it, early stopping, and the result."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Numbers = Mapping[str, float]


@dataclass
class Evaluation:
    """How a run evaluates, and the evaluations that it has done."""

    every_steps: int
    """number of steps between evaluations; the last step is evaluated too"""
    measure: Callable[[Any, Callable[[], bool]], Numbers | None]
    """return the metrics of these parameters; None if the function, which is called between batches, returned True"""
    describe: Callable[[Numbers], str]
    """return the metrics as one line"""
    metric: str
    """metric that chooses the best checkpoint"""
    is_better_high: bool
    """the best value of the metric is the highest, not the lowest"""
    patience: int = 0
    """end the run after this many consecutive evaluations without improvement; 0 = never"""
    history: list[tuple[int, Numbers]] = field(default_factory=list)
    """(step, metrics) of every evaluation, ascending"""

    def recall(self, records: Iterable[Mapping[str, Any]], step: int) -> None:
        """Load the evaluations up to `step` from the records of the run that is resumed."""
        rows = {r["step"]: r for r in records if r["split"] == "validation" and r["step"] <= step and self.metric in r}
        self.history = [
            (n, {name: float(value) for name, value in row.items() if name not in ("step", "split")})
            for n, row in sorted(rows.items())
        ]

    def add(self, step: int, numbers: Numbers) -> None:
        """Add the evaluation of a step."""
        self.history = [row for row in self.history if row[0] < step] + [(step, numbers)]

    @property
    def best_step(self) -> int | None:
        """Step with the best metric, the first if several are equal; None before the first evaluation."""
        sign = 1 if self.is_better_high else -1
        return max(self.history, key=lambda row: or_lowest(sign * row[1][self.metric]), default=(None, {}))[0]

    @property
    def is_best(self) -> bool:
        """True if the last evaluation was the best."""
        return bool(self.history) and self.best_step == self.history[-1][0]

    @property
    def is_enough(self) -> bool:
        """True if the last `patience` evaluations did not improve on an earlier one."""
        best = self.best_step or 0
        return 0 < self.patience <= sum(step > best for step, _ in self.history)


def or_lowest(value: float) -> float:
    """Return a metric as a sort key, with NaN below all numbers."""
    return -math.inf if math.isnan(value) else value


@dataclass(frozen=True)
class Result:
    """Result of a run, or of one seed of a finetuning run."""

    workdir: str
    """folder of the run: checkpoints, metrics.jsonl; in finetuning also results.json and predictions/"""
    checkpoint: str
    """folder of the resulting checkpoint, for `load`: the best one, or the last if nothing was evaluated; with several
    seeds the best seed's; with prediction only the checkpoint that predicted"""
    step: int
    """its step"""
    metric: str
    """metric that chose it; "" if nothing was evaluated"""
    metrics: Mapping[str, float]
    """its metrics on held-out examples; with several seeds the mean"""
    last_checkpoint: str = ""
    """folder of the last checkpoint, from which the same call continues; "" with prediction only"""
    steps: int = 0
    """number of steps done"""
    stopped: str = ""
    """what ended the run before its last step: patience, a callback, or an interrupt: the name of a signal, such as
    SIGTERM, or a notice of the platform. After an interrupt the same call continues. "" = nothing"""
    task: str = ""
    """task of a finetuning run"""
    predictions: tuple[str, ...] = ()
    """files of predictions"""
    baseline: Any = None
    """`Baseline` of a finetuning run: score of the best answer that ignores the text, on the same examples; None if
    nothing was evaluated"""
