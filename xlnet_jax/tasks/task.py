"""Base of all finetuning tasks. One path leads from what users give to what they get:

rows (of a file, or values of Python) → examples → features → outputs of the network → answers → metrics, files and
predictions

A family of tasks is a subclass of `Task` that fills in its own parts of this path; defaults.py lists the families.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import flax.linen as nn
import jax
from etils import epath

from data_pipelines.sources import kind_of
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.models.inputs import Inputs, text_inputs
from xlnet_jax.objectives.language_model import BatchDropout, DeviceBatch
from xlnet_jax.plots.confusion import Confusion, Scatter
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.storage.reading import naming_damage
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.features import Features, Outputs
from xlnet_jax.tasks.readers import Record, Role, demand_form, files, json_lines


def inputs_of(batch: DeviceBatch) -> Inputs:
    """Return all texts of a batch, [B, L] or [B, C, L], as inputs of the network with [B * C, L] tokens."""
    names = ("input_ids", "attention_mask", "segment_ids")
    ids, mask, segments = (batch[name].reshape(-1, batch[name].shape[-1]) for name in names)
    return text_inputs(ids, mask, segments)


V = TypeVar("V", str, int, tuple[str, ...])


def most_frequent(values: Iterable[V]) -> V:
    """Return the most frequent of these values; of equally frequent ones, the first in sorted order."""
    counts = Counter(values)
    return min(counts, key=lambda value: (-counts[value], value))


E = TypeVar("E")  # example
A = TypeVar("A")  # answers to all examples


class Prediction(NamedTuple):
    """Prediction for one input of a Python user."""

    value: str | float | tuple[str, ...]
    """label of a text or a pair; labels of a text (multilabel); number of a regression; label of each word; text of an
    answer, "" where the question is taken as unanswerable; text of an option"""
    probabilities: Mapping[str, float]
    """probability of each label or option, or of the likeliest answers among themselves; none for numbers and words"""


class Task(ABC, Generic[E, A]):
    """Family of tasks, made with the settings of the run (InputError where they contradict each other).

    E is its type of example, A that of its answers to a list of examples. jax traces `losses` and `predict` alone: pure
    functions of (params, batch), where `features.collate` made the batch. An item is one row of a batch; an example
    may have several.
    """

    metric: str
    """metric that chooses the best checkpoint where the settings name none; higher is better"""
    top = 1.0
    """highest value of the metrics"""
    draws_anew = False
    """True where the training features differ from epoch to epoch, though not their number"""

    def __init__(self, config: FinetuneConfig):
        self.config = config

    def demand_room(self, others: int, setting: str = "") -> None:
        """Raise InputError where an item has no room for a token of text beside this number of others, which a setting
        asks for."""
        if (seq_len := self.config.data.seq_len) <= others:
            instead = setting and f", or lower `{setting}`"
            raise InputError(
                f"`data.seq_len` {seq_len} leaves no room for a text beside {others} tokens: raise it{instead}"
            )

    @property
    def selected_by(self) -> str:
        """Metric that chooses the best checkpoint."""
        return self.config.selection.metric or self.metric

    @property
    def tuned_thresholds(self) -> Mapping[str, float]:
        """Thresholds that the last evaluation chose, by the name of their setting."""
        return {}

    # ---- rows to examples -------------------------------------------------------------------------------------------

    def read(self, paths: Sequence[str], role: Role) -> list[E]:
        """Read the examples of files, in their order. Every example to train on and to evaluate needs a label; labels
        of those to predict are not read.

        Raises InputError, with file and line or record, on what cannot be read, on an empty file and on an id that
        occurs twice.
        """
        examples: list[Any] = []
        places: dict[Any, str] = {}
        for path in self.find(paths, role):
            before = len(examples)
            with naming_damage(path):
                examples += self.examples_in(path, before, role != "predict")
            if len(examples) == before:
                raise InputError(f"{path}: there are no examples in it")
            for example in examples[before:]:
                key = self.key(example)
                if key in places:
                    raise InputError(f"{example.where}: its id {example.id} is also that of {places[key]}")
                places[key] = example.where
        return examples

    def examples_of(self, values: Sequence[Any]) -> list[E]:
        """Return an example without a label for each value of Python code: a row as a dictionary, or a form of the
        family. Raises InputError, with the number of the value, on one that has the wrong form."""
        examples = []
        for number, value in enumerate(values):
            with naming_damage(where := f"input {number}"):
                examples.append(self.example_of(value, where, number))
        return examples

    def find(self, paths: Sequence[str], role: Role) -> list[str]:
        """Return the files that the settings name. Raises InputError where there are none."""
        return files(paths, "examples")

    def examples_in(self, path: str, first: int, labelled: bool) -> Iterator[E]:
        """Yield the examples of a file. first: number of its first example in the run."""
        for number, record in enumerate(self.records(path), first):
            yield self.example(record, number, labelled)

    def records(self, path: str) -> Iterator[Record]:
        """Yield the rows of a file: JSON lines, or the published form of the task."""
        return json_lines(path) if kind_of(path) == ".jsonl" else self.published_rows(path)

    def published_rows(self, path: str) -> Iterator[Record]:
        """Yield the rows of a file in the published form of the task."""
        return json_lines(path)

    def example_of(self, value: Any, where: str, number: int) -> E:
        """Return the example of a value of Python code."""
        return self.example(Record(demand_form(value, dict[str, Any], where), where), number, False)

    def example(self, record: Record, number: int, labelled: bool) -> E:
        """Return the example of a row, for a task that reads rows. number: in the run, for a row without an id."""
        raise NotImplementedError

    def key(self, example: Any) -> Any:
        """Return the id of an example, with whatever else it takes to tell it from all others."""
        return example.id

    def text_of(self, example: Any) -> str:
        """Return the text of an example, or the longest of its texts."""
        text: str = example.text
        return text

    # ---- examples to features and outputs ---------------------------------------------------------------------------

    def head(self, train: Sequence[E]) -> HeadConfig:
        """Return the head to put on the network, with the labels of the training examples."""
        return self.config.head

    @abstractmethod
    def features(
        self, examples: Sequence[E], tokenizer: Tokenizer, head: HeadConfig, training: bool, epoch: int = 0
    ) -> Features:
        """Turn examples into items of tokens, int32, and values.

        training: add the values that `losses` reads, such as labels. epoch: of training, for a task that draws anew.
        Raises InputError where a label is not among those of the head.
        """

    @abstractmethod
    def losses(self, model: nn.Module, params: Any, batch: DeviceBatch, dropout: BatchDropout | None) -> jax.Array:
        """Return the loss of each item, or of each of its words, in nats (regression: squared error): float32, of the
        shape of batch["target_weights"]. dropout None = none."""

    @abstractmethod
    def predict(self, model: nn.Module, params: Any, batch: DeviceBatch) -> dict[str, jax.Array]:
        """Return arrays [B, …]. Their shapes do not depend on the length of the batch, nor their numbers on its
        padding."""

    # ---- outputs to answers, and what is made of them ---------------------------------------------------------------

    @abstractmethod
    def answers(self, examples: Sequence[E], features: Features, outputs: Outputs) -> A:
        """Return the answers for the examples. outputs: [items, …] from `predict`, in the order of the features."""

    @abstractmethod
    def metrics(self, examples: Sequence[E], answers: A) -> dict[str, float]:
        """Return the official metrics by name, as fractions of 1 unless the family says per cent."""

    @abstractmethod
    def trivial_answers(self, train: Sequence[E], examples: Sequence[E]) -> Mapping[str, Sequence[A]]:
        """Return answers that read no text, by what they do in words: the best of them is the baseline. Where the
        answers are random there are several, and their metrics are averaged.

        train: labelled examples, from which the most frequent label comes.
        """

    @abstractmethod
    def write(self, folder: epath.Path, examples: Sequence[E], answers: A) -> list[str]:
        """Write prediction files, in the official form of the task, into a folder that exists. Return their names."""

    def predictions(self, examples: Sequence[E], answers: A) -> list[Prediction]:
        """Return the prediction for each example, as `write` writes it."""
        assert isinstance(answers, list)
        return answers

    def compare(self, examples: Sequence[E], answers: A) -> Confusion | Scatter | None:
        """Return the answers beside the labels of the examples, for a picture; None where no picture shows them."""
        return None
