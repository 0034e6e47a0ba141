"""Protocol of a finetuning task: how its examples are read, which features the network reads, its loss and its metrics.

A family of tasks is a folder whose task.py holds one class with these methods; `families.py` lists the classes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import flax.linen as nn
import jax
import numpy as np
from etils import epath

from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.objectives.base import BatchDropout, DeviceBatch
from xlnet_jax.plots.confusion import Confusion, Scatter
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.tasks.features import Features

E = TypeVar("E")


class Loss(NamedTuple):
    """Loss of a batch as sums, so that the parts of a batch add up."""

    loss_sum: jax.Array  # float32
    weight_sum: jax.Array  # float32: examples, or whatever the mean is over

    @classmethod
    def of(cls, each: jax.Array, batch: DeviceBatch) -> "Loss":
        """Sum the losses of items, or of their words, by the weights of the batch.

        each: float32 [B] or [B, W]; batch["target_weights"] has the same shape.
        """
        weights = batch["target_weights"]
        return cls((each * weights).sum(), weights.sum())


class Prediction(NamedTuple):
    """Prediction for one input of a Python user."""

    value: str | float | tuple[str, ...]
    """label of a text or a pair; number of a regression; label of each word; text of an answer, "" where the question
    is taken as unanswerable; text of an option"""
    probabilities: Mapping[str, float]
    """probability of each label or option, or of the likeliest answers among themselves; none for numbers and words"""


class Task(Protocol[E]):
    """Family of tasks, made with the settings of the run (`FinetuneConfig`, InputError where they contradict each
    other); E is its type of example.

    jax traces `score` and `predict` alone: pure functions of (params, batch), where `features.collate` made the batch.
    An item is one row of a batch; an example may have several.
    """

    metric: str
    """what chooses the best checkpoint where the settings name nothing else; the higher the better"""

    draws_anew: bool
    """its training features differ from epoch to epoch, though not their number"""

    def read(self, paths: Sequence[str], labelled: bool) -> list[E]:
        """Read the examples of files, in their order.

        labelled: for training and evaluation, where every example needs a label; otherwise labels are not read. Raises
        InputError, with file and line, on what cannot be read.
        """
        ...

    def head(self, train: Sequence[E]) -> HeadConfig:
        """Return the head to put on the network, with the labels of the training examples."""
        ...

    def features(
        self, examples: Sequence[E], tokenizer: Tokenizer, head: HeadConfig, training: bool, epoch: int = 0
    ) -> Features:
        """Turn examples into items of tokens, int32, and values.

        training: add the values that `score` reads, such as labels. epoch: of training, for a task that draws anew.
        Raises InputError where a label is not among those of the head.
        """
        ...

    def score(self, model: nn.Module, params: Any, batch: DeviceBatch, dropout: BatchDropout | None) -> Loss:
        """Return the loss of a batch in nats (regression: squared error), over items of weight batch["target_weights"].
        dropout None = none."""
        ...

    def predict(self, model: nn.Module, params: Any, batch: DeviceBatch) -> dict[str, jax.Array]:
        """Return arrays [B, …]. Their shapes do not depend on the length of the batch, nor their numbers on its
        padding."""
        ...

    def metrics(self, examples: Sequence[E], features: Features, outputs: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return the official metrics by name, as fractions of 1 unless the family says per cent. outputs: [items, …]
        from `predict`, in the order of the features."""
        ...

    def write(
        self, folder: epath.Path, examples: Sequence[E], features: Features, outputs: Mapping[str, np.ndarray]
    ) -> list[str]:
        """Write prediction files, in the official form of the task, into a folder that exists. Return their names.
        outputs as in `metrics`."""
        ...


class PredictingTask(Task[E], Protocol[E]):
    """Task that also predicts for values of Python code, in place of files."""

    def examples_of(self, inputs: Sequence[Any]) -> list[E]:
        """Return unlabelled examples of the values that Python code gives, in their order. Raises InputError, with the
        number of the input, on one of another form."""
        ...

    def predictions(
        self, examples: Sequence[E], features: Features, outputs: Mapping[str, np.ndarray]
    ) -> list[Prediction]:
        """Return the prediction for each example, as `write` writes it. outputs as in `metrics`."""
        ...


@runtime_checkable
class TuningTask(Task[E], Protocol[E]):
    """Task that chooses a threshold of its predictions by the examples that it evaluates."""

    @property
    def tuned(self) -> Mapping[str, float]:
        """Thresholds that the last evaluation chose, by the name of their setting; none where settings give them."""
        ...


@runtime_checkable
class ComparingTask(Task[E], Protocol[E]):
    """Task whose predictions are drawn beside the true labels at the end of a run."""

    def compare(
        self, examples: Sequence[E], features: Features, outputs: Mapping[str, np.ndarray]
    ) -> Confusion | Scatter | None:
        """Return the predictions for labelled examples beside their labels; None where no picture shows them. outputs
        as in `metrics`."""
        ...
