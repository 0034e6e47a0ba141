"""Token classification: a label for each word, such as named entities, in CoNLL form."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from etils import epath

from data_pipelines.readers import whole
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.models.inputs import text_inputs
from xlnet_jax.objectives.base import BatchDropout, DeviceBatch, apply
from xlnet_jax.plots.confusion import Confusion
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.tasks.base import Loss, Prediction
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.encoding import encode_text
from xlnet_jax.tasks.features import Features
from xlnet_jax.tasks.token_classification.conll import LABEL, WORD, Sentence, divider, read_conll
from xlnet_jax.tasks.token_classification.entities import (
    OUTSIDE,
    Scores,
    entities,
    entity_scores,
    is_tag,
    kind_of,
    scheme_of,
    strict_entities,
)
from xlnet_jax.tasks.token_classification.words import Pieces, Window, encode_words, windows

SPECIALS = 2  # <sep> and <cls> behind a window
PREDICTIONS, REPORT = "predictions.txt", "entities.tsv"


class TokenClassification:
    """Labels of words. Task ner takes tags of entities; task token_classification takes any labels."""

    draws_anew = False

    def __init__(self, config: FinetuneConfig):
        self._seq_len, self._head = config.data.seq_len, config.head
        self._of_entities = config.task != "token_classification"
        self._word = _column("text", config.columns.text, WORD)
        self._label = _column("label", config.columns.label, LABEL)
        self._names: tuple[str, ...] = ()
        self.metric = "f1" if self._of_entities else "accuracy"
        if config.columns.text_pair or config.columns.id:
            raise InputError("columns.text-pair and columns.id: a file in CoNLL form has words and labels alone")
        if config.data.seq_len <= SPECIALS:
            raise InputError(f"data.seq-len {config.data.seq_len} leaves no room for words beside <sep> and <cls>")

    def read(self, paths: Sequence[str], labelled: bool) -> list[Sentence]:
        """Read sentences, as `conll.read_conll`. Task ner raises InputError on a label that is no tag."""
        sentences = read_conll(paths, labelled, self._word, self._label)
        for sentence in sentences if self._of_entities else ():
            for i, label in enumerate(sentence.labels or ()):
                if not is_tag(label):
                    raise InputError(
                        f"{sentence.where(i)}: {label!r} is no tag of an entity, as O, B-PER and I-PER are; name the "
                        "column by `columns.label`, or learn other labels by `task` token_classification"
                    )
        return sentences

    def examples_of(self, inputs: Sequence[Any]) -> list[Sentence]:
        """Return a sentence for each list of words. Raises InputError, with the number of the input, on any other
        value, and where there are no words or an empty one."""
        sentences = []
        for number, words in enumerate(inputs):
            where = f"input {number}"
            words = words.get("words") if isinstance(words, Mapping) else words
            if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
                raise InputError(f"{where} is no list of words, but {words!r:.60}")
            if not words or not all(word.strip() for word in words):
                raise InputError(f"{where} has no words, or an empty one: {words!r:.60}")
            rows = tuple(whole(word, where) for word in words)
            sentences.append(Sentence(rows, None, rows, where, tuple(range(1, len(rows) + 1))))
        return sentences

    def head(self, train: Sequence[Sentence]) -> HeadConfig:
        """Return a head with the labels of the training examples, sorted."""
        names = sorted({label for sentence in train for label in sentence.labels or ()})
        return replace(self._head, num_labels=len(names), labels=tuple(names))

    def features(
        self, examples: Sequence[Sentence], tokenizer: Tokenizer, head: HeadConfig, training: bool, epoch: int = 0
    ) -> Features:
        """Return one item a window of a sentence, with W words; positions: words, int32 [items, W]; values:
        target_weights, float32 [items, W], 1.0 on the words labelled in this window, and labels, int32 [items, W].

        Raises InputError on a label that the head lacks.
        """
        self._names = head.labels or tuple(f"LABEL_{i}" for i in range(head.num_labels))
        labels = _label_ids(examples, self._names)
        pieces = encode_words([sentence.words for sentence in examples], tokenizer)
        items = [(i, window) for i, p in enumerate(pieces) for window in windows(p, self._seq_len - SPECIALS)]
        most = max(window.last_word - window.first_word for _, window in items)
        places, ids = np.zeros((len(items), most), np.int32), np.zeros((len(items), most), np.int32)
        weights = np.zeros((len(items), most), np.float32)
        for row, (i, window) in enumerate(items):
            count, words = window.last_word - window.first_word, slice(window.first_word, window.last_word)
            places[row, :count] = pieces[i].places[words] - window.begin
            weights[row, :count] = 1.0
            if training:
                ids[row, :count] = labels[i][words]
        texts = [_text(pieces[i], window) for i, window in items]
        values = {"target_weights": weights} | ({"labels": ids} if training else {})
        return Features(
            {"input_ids": [t[0] for t in texts], "segment_ids": [t[1] for t in texts]},
            values,
            np.array([i for i, _ in items], np.int64),
            {"words": places},
        )

    def score(self, model: nn.Module, params: Any, batch: DeviceBatch, dropout: BatchDropout | None) -> Loss:
        """Return the cross-entropy in nats over words."""
        logits_BWC = _logits_BWC(model, params, batch, dropout)
        return Loss.of(optax.softmax_cross_entropy_with_integer_labels(logits_BWC, batch["labels"]), batch)

    def predict(self, model: nn.Module, params: Any, batch: DeviceBatch) -> dict[str, jax.Array]:
        """Return label, int32 [B, W]: the likeliest label of each word."""
        return {"label": _logits_BWC(model, params, batch, None).argmax(-1).astype(jnp.int32)}

    def metrics(
        self, examples: Sequence[Sentence], features: Features, outputs: Mapping[str, np.ndarray]
    ) -> dict[str, float]:
        """Return the accuracy of words and, for tags of entities, precision, recall and F1 as in seqeval, the F1 of
        each type, and the F1 of seqeval's strict mode where the true tags are IOB2 or BIOES; all as fractions of 1."""
        true, predicted = _labels(examples), self._predicted(examples, features, outputs)
        right = sum(a == b for one, other in zip(true, predicted, strict=True) for a, b in zip(one, other, strict=True))
        found = {"accuracy": right / sum(map(len, true))}
        if not all(map(is_tag, self._names)):
            return found
        by_type = _default_scores(true, predicted)
        of_all = by_type.pop(None)
        found |= {"f1": of_all.f1, "precision": of_all.precision, "recall": of_all.recall}
        if (scheme := scheme_of(true)) != "IOB1":
            both = ([strict_entities(tags, scheme) for tags in side] for side in (true, predicted))
            found["strict_f1"] = entity_scores(*both)[None].f1
        return found | {f"f1_{kind}": of_type.f1 for kind, of_type in by_type.items()}

    def compare(self, examples: Sequence[Sentence], features: Features, outputs: Mapping[str, np.ndarray]) -> Confusion:
        """Return counts of words by their true and predicted label; for tags of entities, by the type of the entity,
        and O outside of entities."""
        both = (_labels(examples), self._predicted(examples, features, outputs))
        name = kind_of if all(map(is_tag, self._names)) else str
        true, predicted = ([name(label) for sentence in side for label in sentence] for side in both)
        labels = sorted({*map(name, self._names)}, key=lambda label: (label == OUTSIDE, label))
        numbers = {label: i for i, label in enumerate(labels)}
        return Confusion.count(labels, [numbers[x] for x in true], [numbers[x] for x in predicted], "words")

    def write(
        self, folder: epath.Path, examples: Sequence[Sentence], features: Features, outputs: Mapping[str, np.ndarray]
    ) -> list[str]:
        """Write predictions.txt: the lines as they were read with the predicted label behind them, which conlleval
        reads; and, where the sentences have tags, entities.tsv with the scores of all entities and of each type."""
        predicted = self._predicted(examples, features, outputs)
        with (folder / PREDICTIONS).open("w") as file:
            for sentence, labels in zip(examples, predicted, strict=True):
                rows = zip(sentence.rows, labels, strict=True)
                file.write("".join(f"{row}{divider(row)}{label}\n" for row, label in rows) + "\n")
        if not (examples and examples[0].labels and all(map(is_tag, self._names))):
            return [PREDICTIONS]
        with (folder / REPORT).open("w") as file:
            file.write("\t".join(["type", *Scores._fields]) + "\n")
            for kind, s in _default_scores(_labels(examples), predicted).items():
                file.write(f"{kind or 'all'}\t{s.precision:.4f}\t{s.recall:.4f}\t{s.f1:.4f}\t{s.true}\t{s.predicted}\n")
        return [PREDICTIONS, REPORT]

    def predictions(
        self, examples: Sequence[Sentence], features: Features, outputs: Mapping[str, np.ndarray]
    ) -> list[Prediction]:
        """Return the label of each word."""
        return [Prediction(tuple(labels), {}) for labels in self._predicted(examples, features, outputs)]

    def _predicted(
        self, examples: Sequence[Sentence], features: Features, outputs: Mapping[str, np.ndarray]
    ) -> list[list[str]]:
        # The windows of a sentence are in its order, and so are the words labelled in each.
        labels = iter(outputs["label"][features.values["target_weights"] > 0].tolist())
        return [[self._names[next(labels)] for _ in sentence.words] for sentence in examples]


def _column(name: str, given: str | None, default: int) -> int:
    try:
        return default if given is None else int(given)
    except ValueError:
        raise InputError(
            f"columns.{name} {given}: a file in CoNLL form has no names of columns; give a number from 0, or -1 for "
            "the last"
        ) from None


def _labels(examples: Sequence[Sentence]) -> list[tuple[str, ...]]:
    return [sentence.labels or () for sentence in examples]


def _label_ids(examples: Sequence[Sentence], names: Sequence[str]) -> list[np.ndarray]:
    numbers = {label: i for i, label in enumerate(names)}
    for sentence in examples:
        for i, label in enumerate(sentence.labels or ()):
            if label not in numbers:
                raise InputError(
                    f"{sentence.where(i)}: the label {label!r} is not in the training data, which has "
                    f"{', '.join(names)}"
                )
    return [np.array([numbers[label] for label in labels], np.int32) for labels in _labels(examples)]


def _text(pieces: Pieces, window: Window) -> tuple[np.ndarray, np.ndarray]:
    return encode_text(pieces.ids[window.begin : window.end], None, None)


def _default_scores(true: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str | None, Scores]:
    return entity_scores(map(entities, true), map(entities, predicted))


def _logits_BWC(model: nn.Module, params: Any, batch: DeviceBatch, dropout: BatchDropout | None) -> jax.Array:
    inputs = text_inputs(batch["input_ids"], batch["attention_mask"], batch["segment_ids"])
    logits_BLC = apply(model, params, dropout, inputs)
    return jnp.take_along_axis(logits_BLC, batch["words"][:, :, None], axis=1)
