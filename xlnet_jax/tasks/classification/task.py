"""A label or a number for a text, or for two (`run_classifier.py`): the GLUE tasks by name, and any table."""

import csv
import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from data_pipelines.readers import whole
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.models.inputs import text_windows
from xlnet_jax.objectives.base import BatchDropout, DeviceBatch, apply
from xlnet_jax.plots.confusion import Confusion, Scatter
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.tasks.base import Loss, Prediction
from xlnet_jax.tasks.classification.glue import PUBLISHED, SPLITS, STEMS, similarity, write_submission
from xlnet_jax.tasks.classification.scores import classification_scores, regression_scores
from xlnet_jax.tasks.classification.tables import Form, Role, Row, field, files_of_role, read_table, text_field
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.encoding import encode_text, head_and_tail, shortened
from xlnet_jax.tasks.features import Features
from xlnet_jax.tasks.losses import classification_loss_B, regression_loss_B

Label = str | float | tuple[str, ...]  # several: of multilabel
SCORES = {
    "classification": ("accuracy", "f1", "mcc"),
    "regression": ("pearson", "spearman"),
    "multilabel": ("micro_f1", "macro_f1", "accuracy"),
}
PARTS = ("accuracy_m", "accuracy_mm")  # of MNLI
SHORTEST = 5  # A <sep> B <sep> <cls>
PREDICTIONS = "predictions.tsv"
SHOWN = 12  # labels, in a message
# What a text that is too long keeps of its tokens.
KEPT = {"tail": lambda ids, n: ids[:n], "head_tail": head_and_tail, "memory": lambda ids, n: ids[len(ids) - n :]}


@dataclass(frozen=True)
class TextExample:
    """One text or two, and their label."""

    id: str
    text: str
    text_pair: str | None
    label: Label | None
    # A run knows what it learns from by its texts and labels, wherever they lie.
    where: str = dataclasses.field(repr=False)
    """file and line, for messages"""
    part: str = ""  # m or mm of MNLI


def with_files_of_roles(config: FinetuneConfig) -> FinetuneConfig:
    """Replace folders and TFDS datasets in `train`, `eval` and `predict` by their files, or splits, of these roles."""
    published = PUBLISHED[config.task]
    stems, splits = STEMS | published.stems, SPLITS | published.splits

    def found(role: Role) -> tuple[str, ...]:
        return files_of_role(getattr(config, role), stems[role], splits[role])

    return dataclasses.replace(config, train=found("train"), eval=found("eval"), predict=found("predict"))


class TextTask:
    """Classification and regression of one text or two."""

    draws_anew = False

    def __init__(self, config: FinetuneConfig):
        published = PUBLISHED[config.task]
        given: dict[str, Any] = {
            k: (v,) for k in ("text", "text_pair", "label") if (v := getattr(config.columns, k)) is not None
        }
        self._config, self._published = config, dataclasses.replace(published, **given)
        self._labels: tuple[str, ...] = ()  # of the head
        self.metric = published.metric
        known = sorted({*SCORES[published.kind], self.metric, *(PARTS if published.parts else ())})
        if config.selection.metric not in (None, *known):
            raise InputError(f"selection.metric {config.selection.metric}: {config.task} has {', '.join(known)}")
        if config.data.seq_len < SHORTEST:
            raise InputError(
                f"data.seq-len {config.data.seq_len} must be at least {SHORTEST}: two texts of a token each"
            )
        if config.data.long_texts == "memory" and config.model.mem_len == 0:
            raise InputError("data.long-texts memory needs a memory: give its length by model.mem-len, such as 384")

    def read(self, paths: Sequence[str], labelled: bool) -> list[TextExample]:
        """Read tables, as `tables.read_table`.

        Raises InputError on a label that the task does not have, on an id that occurs twice, and on an empty file.
        """
        columns, published = self._config.columns, self._published
        names = {name for name in (*published.text, *published.label) if not name.isdecimal()}
        form = Form(
            header=columns.header and (names if published.headless else True),
            skip_incomplete=published.flawed,
            class_names=not published.labels,
            folders=published.labels,
            tfds_data_dir=self._config.tfds_data_dir,
        )
        examples: list[TextExample] = []
        seen: dict[tuple[str, str], str] = {}
        for path in paths:
            begin = len(examples)
            for row in read_table(path, form):
                examples.append(e := self._example(row, labelled, len(examples)))
                if (first := seen.setdefault((e.part, e.id), e.where)) is not e.where:
                    raise InputError(f"{e.where}: its id {e.id} is also that of {first}; ids tell examples apart")
            if begin == len(examples):
                raise InputError(f"{path}: there are no examples in it")
        return examples

    def _example(self, row: Row, labelled: bool, number: int) -> TextExample:
        published, id_column = self._published, self._config.columns.id
        text, pair = self._texts(row)
        part = ("mm" if "mismatched" in row.where else "m") if published.parts else ""
        label = self._label(row) if labelled else None
        if id_column is not None:
            name = field(row, (id_column,), "id")
        else:
            there = (row.fields[column] for column in published.id if column in row.fields and not labelled)
            name = next(there, number)
        return TextExample(whole(str(name), f"{row.where}: its id"), text, pair, label, row.where, part)

    def _texts(self, row: Row) -> tuple[str, str | None]:
        columns, pair_columns = self._published.text, self._published.text_pair
        if self._published.flawed:  # to the original, an empty second text is none
            return str(field(row, columns, "text") or ""), field(row, pair_columns, "text_pair") or None
        text = text_field(row, columns, "text")
        if self._published.escaped:
            text = text.replace(r"\n", "\n").replace(r"\"", '"')
        return text, text_field(row, pair_columns, "text_pair") if pair_columns else None

    def _label(self, row: Row) -> Label:
        value, labels = field(row, self._published.label, "label"), self._published.labels
        if labels and type(value) is int:
            value = {-1: None, **dict(enumerate(self._published.numbered or labels))}.get(value, value)
        if value is None or value == "":
            raise InputError(f"{row.where}: it has no label; training and evaluation need one")
        if isinstance(value, (list, dict)):
            raise InputError(
                f"{row.where}: its label {value!r:.60} is neither text nor a number; an example has one label"
            )
        if self._published.kind == "regression":
            return _number(value, row.where)
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{row.where}: its label {value} is no finite number, and no name; give it one")
        if labels and str(value) not in labels:
            raise InputError(
                f"{row.where}: the label {value} is none of {', '.join(labels)}, which {self._config.task} has"
            )
        return whole(str(value), f"{row.where}: its label")

    def examples_of(self, inputs: Sequence[Any]) -> list[TextExample]:
        """Return an example for each text, or pair of texts. Raises InputError, with the number of the input, on any
        other value and on an empty text."""
        examples = []
        for number, given in enumerate(inputs):
            where = f"input {number}"
            if isinstance(given, Mapping):
                examples.append(TextExample(str(number), *self._texts(Row(where, dict(given))), None, where))
                continue
            texts = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list | tuple) else ()
            if len(texts) not in (1, 2) or not all(isinstance(text, str) for text in texts):
                raise InputError(f"{where} is neither a text nor a pair of texts, but {given!r:.60}")
            if empty := [text for text in texts if not text.strip()]:
                raise InputError(f"{where}: its text {empty[0]!r} is empty")
            text, pair = (*(whole(text, where) for text in texts), None)[:2]
            assert text is not None
            examples.append(TextExample(str(number), text, pair, None, where))
        return examples

    def head(self, train: Sequence[TextExample]) -> HeadConfig:
        """Return a head with the labels of the task, or else those of the training examples, sorted. Raises InputError
        where all examples have one label."""
        kind, labels = self._published.kind, self._published.labels
        if kind == "classification" and not labels:
            labels = tuple(sorted({str(e.label) for e in train}))
            if len(labels) == 1:
                raise InputError(
                    f"{train[0].where}: all examples have its label, {labels[0]}; two are needed to learn from"
                )
        scope = f"{kind}_{self._config.task}" if self._published.labels or self._published.submission else ""
        return dataclasses.replace(
            self._config.head, task=kind, num_labels=len(labels) or 1, labels=labels, scope=scope
        )

    def features(
        self, examples: Sequence[TextExample], tokenizer: Tokenizer, head: HeadConfig, training: bool, epoch: int = 0
    ) -> Features:
        """Return one item an example; value: labels, int32 [items], or float32 [items] for regression.

        Raises InputError where a finetuned head has other labels than the task, or an example has a label that the head
        lacks.
        """
        self._demand_labels(head)
        self._labels = head.labels or tuple(map(str, range(head.num_labels))) * (head.task != "regression")
        targets = self._targets(examples)
        texts = tokenizer.encode_lines([e.text for e in examples])
        pairs = tokenizer.encode_lines([e.text_pair or "" for e in examples])
        rows = [
            self._row([a] if e.text_pair is None else [a, b]) for e, a, b in zip(examples, texts, pairs, strict=True)
        ]
        values = {}
        if training:
            values["labels"] = targets.astype(np.int32 if head.task == "classification" else np.float32)
        return Features(
            tokens={"input_ids": [ids for ids, _ in rows], "segment_ids": [segments for _, segments in rows]},
            values=values,
            examples=np.arange(len(examples)),
        )

    def _targets(self, examples: Sequence[TextExample]) -> np.ndarray:
        """Return the numbers of the labels, or the numbers to predict. Raises InputError on an unknown label."""
        return np.array([_target(e, self._labels) for e in examples])

    def _demand_labels(self, head: HeadConfig) -> None:
        has, wanted = head.labels or (f"{head.num_labels} of them",), self._published.labels
        if wanted and (head.num_labels != len(wanted) or (head.labels and set(has) != set(wanted))):
            raise InputError(
                f"`task` {self._config.task} has the labels {', '.join(wanted)}, and the head of `init` "
                f"{', '.join(has[:SHOWN])}: name the `task` that it was finetuned for"
            )

    def _row(self, texts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        data = self._config.data
        limit = data.seq_len * (data.max_windows if data.long_texts == "memory" else 1)
        lengths = shortened([len(t) for t in texts], limit - len(texts) - 1)
        a, *b = (KEPT[data.long_texts](t, n) for t, n in zip(texts, lengths, strict=True))
        return encode_text(a, b[0] if b else None, None)

    def score(self, model: nn.Module, params: Any, batch: DeviceBatch, dropout: BatchDropout | None) -> Loss:
        """Return the cross-entropy in nats over the labels, or the squared error of regression."""
        loss_B = regression_loss_B if self._published.kind == "regression" else classification_loss_B
        return Loss.of(loss_B(self._outputs(model, params, batch, dropout), batch["labels"]), batch)

    def predict(self, model: nn.Module, params: Any, batch: DeviceBatch) -> dict[str, jax.Array]:
        """Return scores, float32 [B], for regression, and otherwise log_probs, float32 [B, C] over the labels."""
        outputs = self._outputs(model, params, batch, None)
        if self._published.kind == "regression":
            return {"scores": outputs}
        return {"log_probs": jax.nn.log_softmax(outputs)}

    def _outputs(self, model: nn.Module, params: Any, batch: DeviceBatch, dropout: BatchDropout | None) -> jax.Array:
        ids_BL, mask_BL, segments_BL = (batch[k] for k in ("input_ids", "attention_mask", "segment_ids"))
        seq_len, mem_len = self._config.data.seq_len, self._config.model.mem_len
        if ids_BL.shape[1] > seq_len:
            ids_BL, mask_BL, segments_BL = (_padded_left(x, mask_BL) for x in (ids_BL, mask_BL, segments_BL))
        *earlier, last = text_windows(ids_BL, mask_BL, segments_BL, seq_len, mem_len)
        return apply(model, params, dropout, last, mask_BL[:, -seq_len:], earlier=earlier)

    def metrics(
        self, examples: Sequence[TextExample], features: Features, outputs: Mapping[str, np.ndarray]
    ) -> dict[str, float]:
        """Return the metrics of scores.py, their mean as `average` where the task has two official ones, and the
        accuracies of the two parts of MNLI."""
        true = self._targets([examples[i] for i in features.examples])
        if self._published.kind == "regression":
            found = regression_scores(outputs["scores"].astype(np.float64), true)
        else:
            right, labels = outputs["log_probs"].argmax(-1), len(self._labels)
            found = classification_scores(right, true, labels)
            parts = np.array([examples[i].part for i in features.examples])
            of_parts = {part: parts == part for part in sorted({*parts} - {""})}
            found |= {f"accuracy_{part}": float((right == true)[rows].mean()) for part, rows in of_parts.items()}
        if self.metric == "average":
            found["average"] = float(np.mean([found[name] for name in self._published.metrics]))
        return found

    def compare(
        self, examples: Sequence[TextExample], features: Features, outputs: Mapping[str, np.ndarray]
    ) -> Confusion | Scatter | None:
        """Return counts of true and predicted labels, or the true and predicted numbers of regression."""
        true = self._targets([examples[i] for i in features.examples])
        if self._published.kind == "regression":
            return Scatter(true, outputs["scores"])
        return Confusion.count(self._labels, true, outputs["log_probs"].argmax(-1), "examples")

    def write(
        self, folder: epath.Path, examples: Sequence[TextExample], features: Features, outputs: Mapping[str, np.ndarray]
    ) -> list[str]:
        """Write predictions.tsv, with id, label and the probability of each label (regression: id and score), and for
        GLUE the submission files."""
        chosen = [examples[i] for i in features.examples]
        if self._published.kind == "regression":
            columns, answers = ["score"], [similarity(x) for x in outputs["scores"]]
            rows = [[f"{x:.6g}"] for x in outputs["scores"]]
        else:
            columns = ["label", *(f"p({label})" for label in self._labels)]
            answers = [self._labels[i] for i in outputs["log_probs"].argmax(-1)]
            rows = [[a, *(f"{p:.6g}" for p in x)] for a, x in zip(answers, np.exp(outputs["log_probs"]), strict=True)]
        with (folder / PREDICTIONS).open("w") as file:
            writer = csv.writer(file, delimiter="\t", lineterminator="\n")
            writer.writerow(["id", *columns])
            writer.writerows([e.id, *row] for e, row in zip(chosen, rows, strict=True))
        if not self._published.submission:
            return [PREDICTIONS]
        ids, parts = [e.id for e in chosen], [e.part for e in chosen]
        return [PREDICTIONS, *write_submission(folder, self._published, ids, parts, answers)]

    def predictions(
        self, examples: Sequence[TextExample], features: Features, outputs: Mapping[str, np.ndarray]
    ) -> list[Prediction]:
        """Return the likeliest label with the probability of each, or the number of regression."""
        if self._published.kind == "regression":
            return [Prediction(float(score), {}) for score in outputs["scores"]]
        return [
            Prediction(self._labels[row.argmax()], dict(zip(self._labels, np.exp(row).tolist(), strict=True)))
            for row in outputs["log_probs"]
        ]


def _target(example: TextExample, labels: Sequence[str]) -> Label:
    if not labels or example.label is None:
        return example.label or 0
    return label_number(example, str(example.label), labels)


def label_number(example: TextExample, label: str, labels: Sequence[str]) -> int:
    """Return the number of a label. Raises InputError, with the place of its example, where the head lacks it."""
    if label not in labels:
        shown = ", ".join(labels[:SHOWN]) + (f" and {len(labels) - SHOWN} more" if len(labels) > SHOWN else "")
        raise InputError(f"{example.where}: the label {label} is none of the training examples', which are {shown}")
    return labels.index(label)


def _number(value: Any, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(f"{where}: the label {value!r} is no number; `task` classification learns names") from None
    if not math.isfinite(number):
        raise InputError(f"{where}: the label {value} is no finite number; mend it, or leave the line out")
    return number


def _padded_left(rows_BL: jax.Array, mask_BL: jax.Array) -> jax.Array:
    behind_B = mask_BL[:, ::-1].argmax(1)
    return jax.vmap(jnp.roll)(rows_BL, behind_B)
