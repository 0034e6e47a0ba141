"""Multi-label classification: any number of labels for a text, each decided by itself."""

import csv
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from etils import epath

from data_pipelines.readers import whole
from xlnet_jax.errors import InputError
from xlnet_jax.objectives.base import BatchDropout, DeviceBatch
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.tasks.base import Loss, Prediction
from xlnet_jax.tasks.classification.scores import multilabel_scores
from xlnet_jax.tasks.classification.tables import Row, field
from xlnet_jax.tasks.classification.task import PREDICTIONS, TextExample, TextTask, label_number
from xlnet_jax.tasks.features import Features
from xlnet_jax.tasks.losses import multilabel_loss_B


class Multilabel(TextTask):
    """Labels of one text or two: a field with `columns.label_separator` between them, or a list; none is allowed."""

    def _label(self, row: Row) -> tuple[str, ...]:
        value, where = field(row, self._published.label, "label"), f"{row.where}: its label"
        if value is None:
            raise InputError(f"{where} is missing; training and evaluation need one, or an empty list")
        if isinstance(value, str):
            names = [part.strip() for part in value.split(self._config.columns.label_separator)]
        elif isinstance(value, list | tuple | np.ndarray) and not any(isinstance(one, list | dict) for one in value):
            names = [str(one).strip() for one in value]
        else:
            raise InputError(f"{where} {value!r:.60} is neither text nor a list of labels")
        return tuple(whole(name, where) for name in dict.fromkeys(names) if name)

    def head(self, train: Sequence[TextExample]) -> HeadConfig:
        """Return a head with the labels of the training examples, sorted. Raises InputError where none has a label."""
        labels = tuple(sorted({label for example in train for label in _labels_of(example)}))
        if not labels:
            raise InputError(f"{train[0].where}: no example has a label; there is nothing to learn")
        return dataclasses.replace(self._config.head, num_labels=len(labels), labels=labels)

    def _targets(self, examples: Sequence[TextExample]) -> np.ndarray:
        """Return bool [examples, labels]: which label each example has."""
        has = np.zeros((len(examples), len(self._labels)), bool)
        for row, example in zip(has, examples, strict=True):
            row[[label_number(example, label, self._labels) for label in _labels_of(example)]] = True
        return has

    def score(self, model: nn.Module, params: Any, batch: DeviceBatch, dropout: BatchDropout | None) -> Loss:
        """Return the binary cross-entropy in nats, averaged over the labels."""
        return Loss.of(multilabel_loss_B(self._outputs(model, params, batch, dropout), batch["labels"]), batch)

    def predict(self, model: nn.Module, params: Any, batch: DeviceBatch) -> dict[str, jax.Array]:
        """Return probabilities, float32 [B, C] over the labels."""
        return {"probabilities": jax.nn.sigmoid(self._outputs(model, params, batch, None))}

    def metrics(
        self, examples: Sequence[TextExample], features: Features, outputs: Mapping[str, np.ndarray]
    ) -> dict[str, float]:
        """Return the metrics of `multilabel_scores`, at multilabel.threshold."""
        true = self._targets([examples[i] for i in features.examples])
        return multilabel_scores(self._are_predicted(outputs), true)

    def compare(self, examples: Sequence[TextExample], features: Features, outputs: Mapping[str, np.ndarray]) -> None:
        """Return None: an example with several labels has no place in a table of true and predicted ones."""

    def write(
        self, folder: epath.Path, examples: Sequence[TextExample], features: Features, outputs: Mapping[str, np.ndarray]
    ) -> list[str]:
        """Write predictions.tsv, with id, labels (columns.label_separator between them) and the probability of each."""
        found = self.predictions(examples, features, outputs)
        between = self._config.columns.label_separator
        with (folder / PREDICTIONS).open("w") as file:
            writer = csv.writer(file, delimiter="\t", lineterminator="\n")
            writer.writerow(["id", "labels", *(f"p({label})" for label in self._labels)])
            for i, (labels, probabilities) in zip(features.examples, found, strict=True):
                assert isinstance(labels, tuple)
                row = (f"{p:.6g}" for p in probabilities.values())
                writer.writerow([examples[i].id, between.join(labels), *row])
        return [PREDICTIONS]

    def predictions(
        self, examples: Sequence[TextExample], features: Features, outputs: Mapping[str, np.ndarray]
    ) -> list[Prediction]:
        """Return the labels at multilabel.threshold or above it, with the probability of every label."""
        labels = np.array(self._labels, object)
        return [
            Prediction(tuple(labels[are]), dict(zip(self._labels, row.tolist(), strict=True)))
            for are, row in zip(self._are_predicted(outputs), outputs["probabilities"], strict=True)
        ]

    def _are_predicted(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        return outputs["probabilities"] >= self._config.multilabel.threshold


def _labels_of(example: TextExample) -> tuple[str, ...]:
    return example.label if isinstance(example.label, tuple) else ()
