"""Baseline of a finetuning run: the score of an answer that ignores the text, such as the most frequent label."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xlnet_jax.errors import InputError
from xlnet_jax.printing import counted
from xlnet_jax.tasks.task import Task

CORRELATIONS = ("pearson", "spearman", "mcc")
ERRORS = 2  # a score within this many standard errors of the baseline may be chance


@dataclass(frozen=True)
class Baseline:
    """Metrics of the best trivial answer (`Task.trivial_answers`)."""

    answer: str
    """description of the trivial answer, such as: always answers "good", the most frequent label"""
    metric: str
    """metric that chooses the best checkpoint"""
    metrics: Mapping[str, float]
    examples: int
    """number of examples that were scored"""
    top: float
    """highest possible value of the metrics: 1, or 100 for per cent"""

    @property
    def value(self) -> float:
        """Baseline value of `metric`."""
        return self.metrics[self.metric]

    def describe(self) -> str:
        """Return e.g. '0.512 accuracy: always answers "good", the most frequent label'."""
        return f"{self.value:.4g} {self.metric}: {self.answer}"

    def compare(self, metrics: Mapping[str, float]) -> list[str]:
        """Return lines on how far a run's metrics are above the baseline, or a warning that they are not."""
        value = metrics[self.metric]
        gain = value - self.value
        if not gain > 1e-9 * self.top:  # NaN is not above; the mean of equal numbers is rounded
            against = f"{self.metric} {value:.4g}, baseline {self.value:.4g} ({self.answer})"
            return [f"not above the baseline: {against}; {_ADVICE}"]
        lines = [f"{self.metric} {value:.4g}, {gain:.4g} above the baseline {self.value:.4g}"]
        margin = ERRORS * math.hypot(self._standard_error(value), self._standard_error(self.value))
        if gain < margin:
            lines.append(
                f"not above the baseline beyond chance: on {counted(self.examples, 'example')}, the difference varies "
                f"by ±{margin:.2g} (two standard errors); evaluate on more examples, or {_ADVICE}"
            )
        return lines

    def _standard_error(self, value: float) -> float:
        """Return the approximate standard error of a metric, taken as a share of the examples or as a correlation."""
        share = min(max(value / self.top, 0.0), 1.0)
        spread = 1 - share**2 if self.metric in CORRELATIONS else math.sqrt(share * (1 - share))
        return self.top * spread / math.sqrt(self.examples)


_ADVICE = (
    "try more steps (--steps), a network that was pretrained on more text (--init), or another learning rate "
    "(--optimizer.learning-rate)"
)


def measure_baseline(task: Task[Any, Any], train: Sequence[Any], examples: Sequence[Any]) -> Baseline:
    """Return the baseline on labelled examples: the trivial answer with the highest metric.

    Call it after `task.features`, which sets the labels. Raises InputError if the task does not have the metric that
    `selection.metric` names.
    """
    metric, best = task.selected_by, None
    for words, several in task.trivial_answers(train, examples).items():
        rows = [task.metrics(examples, answers) for answers in several]
        metrics = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
        if metric not in metrics:
            raise InputError("selection.metric", metric, f": the task has {', '.join(metrics)}")
        if best is None or metrics[metric] > best.value:
            best = Baseline(words, metric, metrics, len(examples), task.top)
    assert best
    return best
