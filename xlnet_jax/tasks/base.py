"""What a task is to the run that finetunes for it: how examples are read, what the network reads of them, what it costs
to be wrong, and how right it was. One file a family of tasks; `families.py` lists them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import flax.linen as nn
import jax
import numpy as np
from etils import epath

from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.objectives.base import DeviceBatch
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.tasks.features import Features

E = TypeVar("E")


class Loss(NamedTuple):
    """Of a batch, as sums, so that parts of a batch add up."""

    loss_sum: jax.Array  # float32
    weight_sum: jax.Array  # float32: examples, or whatever the mean is over

    @classmethod
    def of(cls, each: jax.Array, batch: DeviceBatch) -> "Loss":
        """each: what every item costs, or every word, [B] or [B, W]; the batch has their weights as target_weights."""
        weights = batch["target_weights"]
        return cls((each * weights).sum(), weights.sum())


class Task(Protocol[E]):
    """One family. Made with the settings of the run (`FinetuneConfig`); E is its kind of example.

    Only `score` and `predict` are traced: pure functions of (params, batch), batch as `features.collate` makes it.
    """

    metric: str
    """what chooses the best checkpoint where the settings name nothing else; the higher the better"""

    draws_anew: bool
    """its training features differ from epoch to epoch, though not their number"""

    def read(self, paths: Sequence[str], labelled: bool) -> list[E]:
        """The examples of these files. InputError names file and line of what cannot be read; labelled: a label that is
        missing is a mistake."""
        ...

    def head(self, train: Sequence[E]) -> HeadConfig:
        """What is put on the network: its labels are those of the training examples."""
        ...

    def features(
        self, examples: Sequence[E], tokenizer: Tokenizer, head: HeadConfig, training: bool, epoch: int = 0
    ) -> Features:
        """What the network reads of them. training: with what `score` needs; otherwise only what `predict` does.
        epoch: of training, where it draws anew. InputError where a label is not the head's."""
        ...

    def score(self, model: nn.Module, params: Any, batch: DeviceBatch, dropout_key: jax.Array | None) -> Loss:
        """The loss of a batch, over items of weight batch["target_weights"]; dropout_key None = no dropout."""
        ...

    def predict(self, model: nn.Module, params: Any, batch: DeviceBatch) -> dict[str, jax.Array]:
        """What the network says, [B, …] arrays whose shapes do not depend on the bucket, nor numbers on the padding."""
        ...

    def metrics(self, examples: Sequence[E], features: Features, outputs: Mapping[str, np.ndarray]) -> dict[str, float]:
        """How right that is, by the official scores. outputs: [items, …] of `predict`, in the order of features."""
        ...

    def write(
        self, folder: epath.Path, examples: Sequence[E], features: Features, outputs: Mapping[str, np.ndarray]
    ) -> list[str]:
        """Writes files of predictions into a folder that exists, in the task's official form; returns their names."""
        ...
