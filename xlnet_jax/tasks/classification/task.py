"""Classification, regression and multilabel classification of a text or a pair (`run_classifier.py`): GLUE tasks by
name, and any table."""

import csv
import dataclasses
import json
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from etils import epath

from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.models.inputs import text_windows
from xlnet_jax.objectives.language_model import BatchDropout, DeviceBatch, apply
from xlnet_jax.plots.confusion import draw_confusion, draw_scatter
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.tasks.classification.glue import (
    PUBLISHED,
    STEMS,
    classification_scores,
    multilabel_scores,
    regression_scores,
)
from xlnet_jax.tasks.classification.tables import ANY, field, files_of_role, read_table, text_field
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.features import Features, Outputs, encode_text, head_and_tail, shorten, tokens_of
from xlnet_jax.tasks.labels import OFF, ON, SHOWN, label_list, label_name, require_label, vector_length
from xlnet_jax.tasks.readers import NO_CONTENT, Row, require_form
from xlnet_jax.tasks.task import A, Prediction, Role, Task, most_frequent

PARTS = ("accuracy_m", "accuracy_mm")  # of MNLI
PREDICTIONS = "predictions.tsv"
NO_LABEL = "it has no label; training and evaluation need one"
LOSSES_B: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "classification": optax.softmax_cross_entropy_with_integer_labels,
    "regression": optax.squared_error,
    "multilabel": lambda logits_BC, labels_BC: optax.sigmoid_binary_cross_entropy(logits_BC, labels_BC).mean(axis=-1),
}
OUTPUTS: dict[str, tuple[str, Callable[[jax.Array], jax.Array]]] = {
    "classification": ("log_probs", jax.nn.log_softmax),
    "regression": ("scores", jnp.asarray),
    "multilabel": ("probabilities", jax.nn.sigmoid),
}
# The tokens that a text keeps if it is too long.
KEPT = {"tail": lambda ids, n: ids[:n], "head_tail": head_and_tail, "memory": lambda ids, n: ids[len(ids) - n :]}


@dataclass(frozen=True)
class TextExample:
    """Texts of a row, and their label."""

    id: str
    texts: tuple[str, ...]
    """one or two; embedding: two, and others that are not similar to the first"""
    label: Any
    """a string, a number or, for multilabel, a tuple of strings; None = unknown, or none (embedding)"""
    # repr, and with it the hash of the training examples, leaves the file out, so that files can be moved.
    where: str = dataclasses.field(repr=False)
    """file and line, for messages"""
    part: str = ""  # MNLI: m (matched) or mm (mismatched)


class TableTask(Task[TextExample, A]):
    """Examples of tables: texts with labels."""

    def __init__(self, config: FinetuneConfig):
        super().__init__(config)
        given: dict[str, Any] = {
            k: (v.strip(),) for k in ("text", "text_pair", "label") if (v := getattr(config.columns, k)) is not None
        }
        self._published = dataclasses.replace(PUBLISHED.get(config.task, ANY), **given)

    def find(self, paths: Sequence[str], role: Role) -> list[str]:
        """Return the names for `tables.read_table`, with folders and datasets replaced by their files for this role."""
        stems = (STEMS | self._published.stems)[role]
        return [file for name in paths for file in files_of_role(name, stems)]

    def records(self, path: str) -> Iterator[Row]:
        """Yield the rows of a table."""
        return read_table(path, self._published, self.config.columns.header)

    def example(self, record: Row, number: int, labelled: bool) -> TextExample:
        """Return the example of a row, without a label if a text is blank. Raises InputError for a label that the task
        cannot use."""
        published, id_column = self._published, self.config.columns.id
        if published.reshape and record.content is not NO_CONTENT:
            record = dataclasses.replace(record, content=published.reshape(record.content))
        if id_column is not None:
            name = field(record, (id_column,), "id")
        else:
            there = (record.content[column] for column in published.id if column in record.content and not labelled)
            name = next(there, None)
        name = number if name is None else name
        part = ("mm" if "mismatched" in record.where else "m") if published.parts else ""
        example = TextExample(str(name), self._texts(record), None, record.where, part)
        return self._with_label(example, record) if labelled and not self.is_blank(example) else example

    @abstractmethod
    def _with_label(self, example: TextExample, row: Row) -> TextExample: ...

    def example_of(self, value: Any, where: str, number: int) -> TextExample:
        """Return the example of a row, a text or a pair of texts."""
        if isinstance(value, Mapping):
            return super().example_of(value, where, number)
        texts = (value,) if isinstance(value, str | float | None) else value
        if not isinstance(texts, list | tuple) or not 1 <= len(texts) <= 2:
            raise InputError(f"{where} is neither a text nor a pair of texts, but {value!r:.60}")
        texts = [None if text != text else text for text in texts]  # NaN, which pandas takes for None
        texts = tuple(text or "" for text in require_form(texts, list[str | None], where))
        return TextExample(str(number), texts, None, where)

    def key(self, example: TextExample) -> tuple[str, str]:
        """Return part and id."""
        return example.part, example.id

    def texts_of(self, example: TextExample) -> tuple[str, ...]:
        return example.texts

    def labels_of(self, example: TextExample) -> Sequence[Any]:
        return (example.label,)

    def is_blank(self, example: TextExample) -> bool:
        return not self._published.flawed and super().is_blank(example)

    def _texts(self, row: Row) -> tuple[str, ...]:
        columns, pair_columns = self._published.text, self._published.text_pair
        if self._published.flawed:  # the original treats an empty second text as none
            pair = field(row, pair_columns, "text_pair")
            return (str(field(row, columns, "text") or ""), *([pair] if pair else []))
        text = text_field(row, columns, "text")
        if self._published.escaped:
            text = text.replace(r"\n", "\n").replace(r"\"", '"')
        return (text, text_field(row, pair_columns, "text_pair")) if pair_columns else (text,)


class TextTask(TableTask[list[Prediction]]):
    """Texts or pairs of texts with labels; one subclass per kind of label."""

    scores: ClassVar[tuple[str, ...]]
    """names of the metrics"""
    column: ClassVar[str]
    """name of the answer column in predictions.tsv"""
    nothing: ClassVar[Any]
    """answer to a blank text"""

    def __init__(self, config: FinetuneConfig):
        super().__init__(config)
        self._labels: tuple[str, ...] = ()  # of the head
        self.metric = self._published.metric
        known = sorted({*self.scores, self.metric, *(PARTS if self._published.parts else ())})
        if config.selection.metric not in (None, *known):
            raise InputError("selection.metric", config.selection.metric, f": {config.task} has {', '.join(known)}")
        self.require_room(4)  # A <sep> B <sep> <cls>
        if config.data.long_texts == "memory" and config.model.mem_len == 0:
            why = "needs a memory: give its length by `model.mem_len`, such as 384"
            raise InputError("data.long_texts", "memory", why)

    def _with_label(self, example: TextExample, row: Row) -> TextExample:
        return dataclasses.replace(example, label=self._label(row))

    @abstractmethod
    def _label(self, row: Row) -> Any:
        """Return the label of a row. Raises InputError if it has none, or the task cannot use it."""

    def features(
        self, examples: Sequence[TextExample], tokenizer: Tokenizer, head: HeadConfig, training: bool, epoch: int = 0
    ) -> Features:
        """Return one item per example. value: labels, int32 [items], or float32 [items] or [items, labels] (`_array`).

        Raises InputError if a finetuned head has other labels than the task, or an example has a label that the head
        does not have.
        """
        has, wanted = head.labels or (f"{head.num_labels} of them",), self._published.labels
        if wanted and (head.num_labels != len(wanted) or (head.labels and set(has) != set(wanted))):
            raise InputError(
                "task",
                self.config.task,
                f"has the labels {', '.join(wanted)}, and the head of `init` {', '.join(has[:SHOWN])}: name the "
                "`task` that it was finetuned for",
            )
        self._labels = head.labels or tuple(map(str, range(head.num_labels))) * (head.task != "regression")
        known = dict.fromkeys(map(label_name, self._labels))
        for example in examples:
            for label in example.label if isinstance(example.label, tuple) else [example.label]:
                if isinstance(label, str):
                    require_label(label, known, example.where)
        labels = self._array([e.label for e in examples])
        encoded = iter(tokenizer.encode_lines([text for e in examples for text in e.texts]))
        texts = [[next(encoded) for _ in e.texts] for e in examples]
        rows = [self._encode(of_example) for of_example in texts]
        return Features(
            tokens=tokens_of(rows),
            values={"labels": labels if labels.dtype == np.int32 else labels.astype(np.float32)} if training else {},
            examples=np.arange(len(examples)),
            cut=sum(len(ids) < sum(map(len, t)) + len(t) + 1 for (ids, _), t in zip(rows, texts, strict=True)),
        )

    def losses(self, model: nn.Module, params: Any, batch: DeviceBatch, dropout: BatchDropout | None) -> jax.Array:
        """Return the cross-entropy over the labels in nats (multilabel: binary, averaged over the labels), or the
        squared error."""
        logits = self.outputs(model, params, batch, dropout)
        return LOSSES_B[self.config.head.task](logits, batch["labels"])

    def predict(self, model: nn.Module, params: Any, batch: DeviceBatch) -> dict[str, jax.Array]:
        """Return log_probs, float32 [B, C]; for multilabel probabilities [B, C]; for regression scores [B]."""
        name, activate = OUTPUTS[self.config.head.task]
        return {name: activate(self.outputs(model, params, batch, None))}

    def _encode(self, texts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        data = self.config.data
        limit = data.seq_len * (data.max_windows if data.long_texts == "memory" else 1)
        lengths = shorten([len(t) for t in texts], limit - len(texts) - 1)
        return encode_text(*(KEPT[data.long_texts](t, n) for t, n in zip(texts, lengths, strict=True)))

    @abstractmethod
    def _array(self, values: Sequence[Any]) -> np.ndarray:
        """Return labels or predicted values as an array: label numbers, int32 [examples]; numbers, float [examples]; or
        which labels each example has, float [examples, labels]. None becomes the first label, 0 or no label."""

    def outputs(self, model: nn.Module, params: Any, batch: DeviceBatch, dropout: BatchDropout | None) -> jax.Array:
        """Return logits, float32 [B, C], or the numbers of a regression [B]."""
        ids_BL, mask_BL, segments_BL = (batch[k] for k in ("input_ids", "attention_mask", "segment_ids"))
        seq_len, mem_len = self.config.data.seq_len, self.config.model.mem_len
        if ids_BL.shape[1] > seq_len:
            padding_B = mask_BL[:, ::-1].argmax(1)  # number of padding tokens on the right
            ids_BL, mask_BL, segments_BL = (jax.vmap(jnp.roll)(x, padding_B) for x in (ids_BL, mask_BL, segments_BL))
        *earlier, last = text_windows(ids_BL, mask_BL, segments_BL, seq_len, mem_len)
        return apply(model, params, dropout, last, mask_BL[:, -seq_len:], earlier=earlier)

    def _both(self, examples: Sequence[TextExample], answers: list[Prediction]) -> tuple[np.ndarray, np.ndarray]:
        """Return the true and the predicted labels."""
        return self._array([e.label for e in examples]), self._array([a.value for a in answers])

    def answers(self, examples: Sequence[TextExample], features: Features, outputs: Outputs) -> list[Prediction]:
        """Return the answer to each text, without one for a blank text (`nothing`)."""
        return [
            Prediction(self.nothing, dict.fromkeys(found.probabilities, math.nan)) if self.is_blank(example) else found
            for example, found in zip(examples, self._answers(outputs), strict=True)
        ]

    @abstractmethod
    def _answers(self, outputs: Outputs) -> list[Prediction]:
        """Return the answer to each text, from the network."""

    def metrics(self, examples: Sequence[TextExample], answers: list[Prediction]) -> dict[str, float]:
        """Return the metrics of glue.py, the mean of two official ones as `average`, and the accuracy on each part of
        MNLI."""
        true, predicted = self._both(examples, answers)
        found, official = self._scores(true, predicted), self._published.metrics
        parts = np.array([e.part for e in examples])
        for part in sorted({*parts.tolist()} - {""}):
            found[f"accuracy_{part}"] = float((predicted == true)[parts == part].mean())
        return found | ({"average": float(np.mean([found[name] for name in official]))} if len(official) > 1 else {})

    @abstractmethod
    def _scores(self, true: np.ndarray, predicted: np.ndarray) -> dict[str, float]: ...

    def write(self, folder: epath.Path, examples: Sequence[TextExample], answers: list[Prediction]) -> list[str]:
        """Write predictions.tsv with id, answer and the probability of each label, and the submission files of GLUE or
        CLUE."""
        pairs = list(zip(examples, answers, strict=True))
        header = ("id", self.column, *(f"p({label})" for label in self._labels))
        rows = [(e.id, self._written(a.value), *(f"{p:.6g}" for p in a.probabilities.values())) for e, a in pairs]
        write_tsv(folder / PREDICTIONS, header, rows)
        names = [PREDICTIONS]
        if self._published.submission.endswith(".json"):
            names.append(self._published.submission)
            lines = [json.dumps({"id": number_or_text(e.id), "label": str(a.value)}) for e, a in pairs]
            (folder / names[-1]).write_text("".join(f"{line}\n" for line in lines))
            return names
        for part in sorted({e.part for e in examples} if self._published.submission else ()):
            names.append(f"{self._published.submission}{part and '-' + part}.tsv")
            rows = [(e.id, _submitted(a.value)) for e, a in pairs if e.part == part]
            write_tsv(folder / names[-1], ("index", "prediction"), rows)
        return names

    def _written(self, value: Any) -> str:
        if isinstance(value, tuple):
            return self.config.columns.label_separator.join(value)
        return f"{value:.6g}" if isinstance(value, float) else str(value)


class Classification(TextTask):
    """One of several labels."""

    scores, column, nothing, without_text = ("accuracy", "f1", "mcc"), "label", "", "an empty label"

    def _label(self, row: Row) -> Any:
        labels = self._published.labels
        value = _single_label(row, self._published.label, -1 if labels else None)
        if labels and type(value) in (int, float):
            value = dict(enumerate(self._published.numbered or labels)).get(value, value)
        label = label_name(value)
        if labels and label not in labels:
            raise InputError(
                f"{row.where}: the label {label!r:.60} is none of {', '.join(labels)}, which {self.config.task} has"
            )
        return label

    def head(self, train: Sequence[TextExample]) -> HeadConfig:
        """Return a head with the labels of the task, or else those of the training examples, sorted. Raises InputError
        if all examples have the same label."""
        published = self._published.labels
        labels = published or tuple(sorted({e.label for e in train}))
        if len(labels) == 1:
            raise InputError(
                f"{train[0].where}: all examples have the same label, {labels[0]}: training needs two or more"
            )
        scope = f"classification_{self.config.task}" if published else ""
        return self.config.head.for_labels(len(labels), labels, scope)

    def _array(self, values: Sequence[Any]) -> np.ndarray:
        numbers = {label_name(label): number for number, label in enumerate(self._labels)}
        return np.array([0 if value is None else numbers[label_name(value)] for value in values], np.int32)

    def _answers(self, outputs: Outputs) -> list[Prediction]:
        """Return the most likely label, and the probability of each."""
        return [
            Prediction(self._labels[row.argmax()], dict(zip(self._labels, np.exp(row).tolist(), strict=True)))
            for row in outputs["log_probs"]
        ]

    def _scores(self, true: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
        return classification_scores(predicted, true, len(self._labels))

    def trivial_answers(
        self, train: Sequence[TextExample], examples: Sequence[TextExample]
    ) -> dict[str, list[list[Prediction]]]:
        """Return the most frequent label of the training examples and, of two labels, the one that F1 counts."""
        constants = {'always answers "{}", the most frequent label': most_frequent(e.label for e in train)}
        if len(self._labels) == 2:
            constants['always answers "{}", the label that F1 counts'] = self._labels[1]
        return {words.format(label): [[Prediction(label, {})] * len(examples)] for words, label in constants.items()}

    def draw(
        self, examples: Sequence[TextExample], answers: list[Prediction], folder: epath.Path, title: str
    ) -> str | None:
        draw_confusion(self._labels, *self._both(examples, answers), "examples", folder / "confusion.png", title)
        return "confusion.png"


class Regression(TextTask):
    """A number."""

    scores, column, nothing, without_text = ("pearson", "spearman"), "score", math.nan, "the score nan"

    def _label(self, row: Row) -> Any:
        return number_field(row, self._published.label, "; give `task` classification for names")

    def head(self, train: Sequence[TextExample]) -> HeadConfig:
        """Return a head with one number."""
        scope = f"regression_{self.config.task}" if self._published.submission else ""
        return self.config.head.for_labels(1, scope=scope)

    def _array(self, values: Sequence[Any]) -> np.ndarray:
        return np.array([value or 0 for value in values], float)

    def _answers(self, outputs: Outputs) -> list[Prediction]:
        return [Prediction(float(score), {}) for score in outputs["scores"]]

    def _scores(self, true: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
        return regression_scores(predicted, true)

    def trivial_answers(
        self, train: Sequence[TextExample], examples: Sequence[TextExample]
    ) -> dict[str, list[list[Prediction]]]:
        """Return the mean of the training examples, whose correlation with any numbers counts as 0."""
        mean = math.fsum(e.label for e in train) / len(train)
        words = f"always answers {mean:.4g}, the mean, which correlates with nothing"
        return {words: [[Prediction(mean, {})] * len(examples)]}

    def draw(
        self, examples: Sequence[TextExample], answers: list[Prediction], folder: epath.Path, title: str
    ) -> str | None:
        draw_scatter(*self._both(examples, answers), folder / "predicted.png", title)
        return "predicted.png"


class Multilabel(TextTask):
    """Any number of labels, each decided independently: a list, or a field with `columns.label_separator` between
    them."""

    scores, column, nothing, without_text = ("micro_f1", "macro_f1", "accuracy"), "labels", (), "no label"

    def __init__(self, config: FinetuneConfig):
        super().__init__(config)
        self._length: int | None = None  # of the indicator vectors

    def read(self, paths: Sequence[str], role: Role) -> list[TextExample]:
        """Read the examples of files. Labels are names, or all are indicator vectors (`vector_length`), as in the
        training examples; label 0 is then the first number. Raises InputError for a vector of another length."""
        examples = super().read(paths, role)
        if role == "predict":
            return examples
        if role == "train" or "train" not in self.faults:
            self._length = vector_length([e.label for e in examples])
        return [dataclasses.replace(e, label=self._names(e)) for e in examples]

    def _names(self, example: TextExample) -> tuple[str, ...]:
        if self._length is None:
            return tuple(dict.fromkeys(example.label))
        if len(example.label) != self._length or not {*example.label} <= {*ON, *OFF}:
            raise InputError(
                f"{example.where}: its label has {len(example.label)} values, and the label of most training examples "
                f"is a vector of {self._length} numbers, 0 or 1"
            )
        return tuple(str(i) for i, one in enumerate(example.label) if one in ON)

    def _label(self, row: Row) -> Any:
        value = field(row, self._published.label, "label")
        if value is None:
            raise InputError(f"{row.where}: {NO_LABEL}")
        names = label_list(value, self.config.columns.label_separator)
        if names is None:
            raise InputError(f"{row.where}: its label {value!r:.60} is neither text nor a list of labels")
        return tuple(filter(None, map(label_name, names)))

    def labels_of(self, example: TextExample) -> Sequence[str]:
        return example.label or ("no label",)

    def head(self, train: Sequence[TextExample]) -> HeadConfig:
        """Return a head with the labels of the training examples, sorted. Raises InputError if no example has a
        label."""
        labels = tuple(map(str, range(self._length or 0)))
        labels = labels or tuple(sorted({label for example in train for label in example.label}))
        if not any(example.label for example in train):
            raise InputError(f"{train[0].where}: no example has a label; there is nothing to learn")
        return self.config.head.for_labels(len(labels), labels)

    def _array(self, values: Sequence[Any]) -> np.ndarray:
        return np.array([[label in (value or ()) for label in self._labels] for value in values], float)

    def _answers(self, outputs: Outputs) -> list[Prediction]:
        """Return the labels with a probability of at least label_threshold, and the probability of every label."""
        labels, threshold = np.array(self._labels, object), self.config.label_threshold
        return [
            Prediction(tuple(labels[row >= threshold]), dict(zip(self._labels, row.tolist(), strict=True)))
            for row in outputs["probabilities"]
        ]

    def _scores(self, true: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
        return multilabel_scores(predicted > 0, true > 0)

    def trivial_answers(
        self, train: Sequence[TextExample], examples: Sequence[TextExample]
    ) -> dict[str, list[list[Prediction]]]:
        """Return the most frequent set of labels in the training examples, and the most frequent label."""
        in_order = [tuple(label for label in self._labels if label in e.label) for e in train]
        found, label = most_frequent(in_order), most_frequent(label for e in train for label in e.label)
        always = f"always answers {self._written(found)}" if found else "never gives a label"
        return {
            f"{always}, the most frequent set of labels": [[Prediction(found, {})] * len(examples)],
            f"always answers {label}, the most frequent label": [[Prediction((label,), {})] * len(examples)],
        }


def write_tsv(path: epath.Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    with path.open("w") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerows((header, *rows))


def number_or_text(name: str) -> int | str:
    """Return the id of an example as CLUE's submissions have it."""
    return int(name) if name.isascii() and name.isdecimal() else name


def _submitted(value: Any) -> str:
    """Format an answer for GLUE; numbers, of STS-B, are clipped to 0 … 5."""
    return f"{min(max(value, 0.0), 5.0):.3f}" if isinstance(value, float) else str(value)


def number_field(row: Row, columns: Sequence[str], advice: str = "") -> float:
    """Return the number in the column of labels. Raises InputError, which ends with this advice, if it is none."""
    value = _single_label(row, columns, None)
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{row.where}: the label {value!r} is not a number{advice}")
    return number


def _single_label(row: Row, columns: Sequence[str], unknown: int | None) -> Any:
    value = field(row, columns, "label")
    if value is None or not str(value).strip() or value != value or (type(value) is int and value == unknown):
        raise InputError(f"{row.where}: {NO_LABEL}")
    if isinstance(value, (list, dict)):
        raise InputError(f"{row.where}: its label {value!r:.60} is neither text nor a number; an example has one label")
    return value
