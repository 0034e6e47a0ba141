"""Base class of all finetuning tasks. Every task takes the same steps:

rows (of a file, or Python values) → examples → features → outputs of the network → answers → metrics, files and
predictions

A family of tasks is a subclass of `Task` that implements its own steps; defaults.py lists the families.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import flax.linen as nn
import jax
from etils import epath

from data_pipelines.faults import Faults, TextRow
from data_pipelines.sources import kind_of
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.models.inputs import Inputs, text_inputs
from xlnet_jax.objectives.language_model import BatchDropout, DeviceBatch, apply
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.storage.reading import naming_damage
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.features import Features, Outputs
from xlnet_jax.tasks.readers import NO_CONTENT, Role, Row, files, json_lines, require_form


def inputs_of(batch: DeviceBatch) -> Inputs:
    """Return all texts of a batch, [B, L] or [B, C, L], as network inputs with [B * C, L] tokens."""
    names = ("input_ids", "attention_mask", "segment_ids")
    ids, mask, segments = (batch[name].reshape(-1, batch[name].shape[-1]) for name in names)
    return text_inputs(ids, mask, segments)


def apply_to_texts(model: nn.Module, params: Any, batch: DeviceBatch, dropout: BatchDropout | None) -> Any:
    """Return the outputs of a network that summarizes each text, for all texts of a batch, [B, L] or [B, C, L]."""
    mask = batch["attention_mask"]
    return apply(model, params, dropout, inputs_of(batch), mask.reshape(-1, mask.shape[-1]))


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
    """label of a text or a pair; labels of a text (multilabel); number (regression); label of each word; text of an
    answer, "" if the question is predicted to be unanswerable; text of an option"""
    probabilities: Mapping[str, float]
    """probability of each label or option, or of the n best answers, which sum to 1; empty for numbers and words"""


class Task(ABC, Generic[E, A]):
    """Family of tasks. The constructor takes the settings of the run, and raises InputError if they contradict each
    other.

    E is the type of an example, A the type of the answers to a list of examples. jax traces only `losses` and
    `predict`: pure functions of (params, batch), where `features.collate` made the batch. An item is one row of a
    batch; an example may have several items.
    """

    metric: str
    """metric that chooses the best checkpoint unless the settings name another; higher is better"""
    top = 1.0
    """highest value of the metrics"""
    draws_anew = False
    """True if the training features differ from epoch to epoch; their number stays the same"""

    keeps_blank: tuple[Role, ...] = ("predict",)
    """uses in which a row with a blank text stays"""
    without_text = "an empty answer"
    """the answer to such a row, in messages"""

    def __init__(self, config: FinetuneConfig):
        self.config = config
        self.faults: dict[Role, Faults] = {}
        """what is wrong with the rows that were read"""

    def require_room(self, others: int, setting: str = "") -> None:
        """Raise InputError if data.seq_len leaves no room for text beside `others` tokens. setting: the setting that
        asks for these tokens, if one does."""
        if (seq_len := self.config.data.seq_len) <= others:
            instead = setting and f", or lower `{setting}`"
            raise InputError(
                "data.seq_len", seq_len, f"leaves no room for a text beside {others} tokens: raise it{instead}"
            )

    @property
    def selected_by(self) -> str:
        """Metric that chooses the best checkpoint."""
        return self.config.selection.metric or self.metric

    @property
    def tuned_thresholds(self) -> Mapping[str, float]:
        """Thresholds chosen in the last evaluation, by the name of their setting."""
        return {}

    # ---- rows to examples -------------------------------------------------------------------------------------------

    def read(self, paths: Sequence[str], role: Role) -> list[E]:
        """Read the examples of files, in order. Examples for training and evaluation need labels; for prediction,
        labels are not read.

        For training and evaluation, a row with a blank text or without a label is left out and counted (`Faults.skip`).
        For prediction (`keeps_blank`), a row with a blank text stays and is counted (`Faults.keep`). Raises InputError,
        with file and line or record, if too many rows are faulty, and for a file that cannot be read, an empty file, or
        an id that occurs twice.
        """
        examples: list[Any] = []
        places: dict[Any, str] = {}
        faults = self.faults[role] = Faults()
        for path in self.find(paths, role):
            before, first = len(examples), faults.read
            with naming_damage(path):
                examples += self.repair(path, self._usable(path, role, faults))
            if faults.read == first:
                raise InputError(f"{path}: there are no examples in it")
            for example in examples[before:]:
                key = self.key(example)
                if key in places:
                    raise InputError(f"{example.where}: its id {example.id} is also that of {places[key]}")
                places[key] = example.where
        if not examples and not faults.faulty:
            raise InputError(f"there is no text: {faults}")
        if role in self.keeps_blank and not (faults.faulty and role != "predict"):
            faults.keep(self.without_text)
        else:
            faults.skip()
        return examples

    def _usable(self, path: str, role: Role, faults: Faults) -> Iterator[Any]:
        """Yield the examples of a file, and count those without a text. An example that is faulty to predict has no
        text."""
        keeps = role in self.keeps_blank
        for number, record in enumerate(self.records(path), faults.read):
            faults.read += 1
            try:
                if record.fault:
                    raise InputError(f"{record.where} {record.fault}")
                with naming_damage(record.where):
                    example: Any = self.example(record, number, role != "predict")
            except InputError as error:
                fault = str(error).removeprefix(record.where).strip()
                is_blank = role != "predict" and self._lacks_text(record, number)
                faults.add(TextRow(record.where, "", None, "" if is_blank else fault))
                if role != "predict":
                    continue
                yield self.example(Row(NO_CONTENT, record.where), number, False)
            else:
                if is_blank := self.is_blank(example):
                    faults.add(TextRow(record.where, ""))
                if keeps or not is_blank:
                    yield example

    def _lacks_text(self, record: Row, number: int) -> bool:
        """Return True if a row that cannot be learned from has a blank text, whatever is wrong with its label."""
        try:
            return not record.fault and self.is_blank(self.example(record, number, False))
        except Exception:  # of a row without such a field
            return False

    def examples_of(self, values: Sequence[Any]) -> list[E]:
        """Return an unlabelled example for each Python value: a row as a dictionary, or another type that the family
        accepts. Raises InputError, with the number of the value, if its type is wrong."""
        examples = []
        for number, value in enumerate(values):
            with naming_damage(where := f"input {number}"):
                examples.append(self.example_of(value, where, number))
        return examples

    def find(self, paths: Sequence[str], role: Role) -> list[str]:
        """Return the files that the settings name. Raises InputError if there are none."""
        return files(paths, "examples")

    def repair(self, path: str, examples: Iterable[E]) -> Iterable[E]:
        """Return the labelled examples of a file with corrections."""
        return examples

    def records(self, path: str) -> Iterator[Row]:
        """Yield the rows of a file: JSON lines, or the published format of the task."""
        return json_lines(path) if kind_of(path) == ".jsonl" else self.published_rows(path)

    def published_rows(self, path: str) -> Iterator[Row]:
        """Yield the rows of a file in the published format of the task."""
        return json_lines(path)

    def example_of(self, value: Any, where: str, number: int) -> E:
        """Return the example of a Python value."""
        return self.example(Row(require_form(value, dict[str, Any], where), where), number, False)

    def example(self, record: Row, number: int, labelled: bool) -> E:
        """Return the example of a row. number: its id if the row has none."""
        raise NotImplementedError

    def key(self, example: Any) -> Any:
        """Return a key that is unique to an example: its id, with other fields if the id is not enough."""
        return example.id

    def texts_of(self, example: Any) -> tuple[str, ...]:
        """Return all texts of an example."""
        return (example.text,)

    def is_blank(self, example: E) -> bool:
        """Return True if a text of the example is blank."""
        return not all(text.strip() for text in self.texts_of(example))

    def labels_of(self, example: E) -> Sequence[Any]:
        """Return the labels or the number of a labelled example, for the output."""
        return ()

    # ---- examples to features and outputs ---------------------------------------------------------------------------

    def head(self, train: Sequence[E]) -> HeadConfig:
        """Return the settings of the head, with the labels of the training examples."""
        return self.config.head

    @abstractmethod
    def features(
        self, examples: Sequence[E], tokenizer: Tokenizer, head: HeadConfig, training: bool, epoch: int = 0
    ) -> Features:
        """Turn examples into items of tokens, int32, and values.

        training: add the values that `losses` reads, such as labels. epoch: for a task whose features differ from epoch
        to epoch. Raises InputError if the head does not have a label.
        """

    @abstractmethod
    def losses(self, model: nn.Module, params: Any, batch: DeviceBatch, dropout: BatchDropout | None) -> jax.Array:
        """Return the loss of each item or word in nats (regression: squared error): float32, in the shape of
        batch["target_weights"]. dropout: None = no dropout."""

    @abstractmethod
    def predict(self, model: nn.Module, params: Any, batch: DeviceBatch) -> dict[str, jax.Array]:
        """Return arrays [B, …]. Their shapes do not depend on the length of the batch, and their values not on its
        padding."""

    # ---- outputs to answers, metrics and files -----------------------------------------------------------------------

    @abstractmethod
    def answers(self, examples: Sequence[E], features: Features, outputs: Outputs) -> A:
        """Return the answers to the examples. outputs: [items, …] from `predict`, in the order of the features."""

    @abstractmethod
    def metrics(self, examples: Sequence[E], answers: A) -> dict[str, float]:
        """Return the official metrics by name, from 0 to `top`; correlations may be negative."""

    @abstractmethod
    def trivial_answers(self, train: Sequence[E], examples: Sequence[E]) -> Mapping[str, Sequence[A]]:
        """Return answers that ignore the text, each with a description; the best of them is the baseline. Random
        answers are drawn several times, and their metrics are averaged.

        train: labelled examples, which give the most frequent label.
        """

    @abstractmethod
    def write(self, folder: epath.Path, examples: Sequence[E], answers: A) -> list[str]:
        """Write prediction files in the official format of the task into an existing folder. Return their names."""

    def predictions(self, examples: Sequence[E], answers: A) -> list[Prediction]:
        """Return the prediction for each example, with the values that `write` writes."""
        assert isinstance(answers, list)
        return answers

    def draw(self, examples: Sequence[E], answers: A, folder: epath.Path, title: str) -> str | None:
        """Draw predictions against labels; return the name of the picture, None if the task has none."""
        return None
