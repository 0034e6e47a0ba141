"""Token classification: a label for each word, such as named entities. Files are in CoNLL format: one word per line
with its columns, and a blank line after each sentence.

Each word is encoded separately, so that no piece spans two words, but as it would be in running text: with ▁ after a
space and at the beginning, without ▁ in scripts without spaces. So 北 京 do not become ▁北 ▁京, pieces that do not
occur in Chinese text.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from etils import epath

from data_pipelines.readers import numbered_lines
from data_pipelines.tokenizer import EOP, SPACE, SPECIAL_PIECES, UNK, UNSPACED, Tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.objectives.language_model import BatchDropout, DeviceBatch, apply
from xlnet_jax.plots.confusion import draw_confusion
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.features import Features, Outputs, encode_text, tokens_of
from xlnet_jax.tasks.labels import label_name, require_label
from xlnet_jax.tasks.readers import Row
from xlnet_jax.tasks.task import Prediction, Task, inputs_of, most_frequent

DOCUMENT_START = "-DOCSTART-"
SPECIALS = 2  # <sep> and <cls>, after a window
PREDICTIONS, REPORT = "predictions.txt", "entities.tsv"
BLANK = "_"  # in predictions.txt, for a word that a line cannot hold
NO_LABEL = ("", "-100")  # Hugging Face numbers tags from 0, and a word without one -100
_BREAKS_LINES = re.compile(r"[\t\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")  # as str.splitlines


@dataclass(frozen=True)
class Sentence:
    """Words of a sentence, and their labels."""

    words: tuple[str, ...]
    labels: tuple[str, ...] | None
    # repr, and with it the hash of the training examples, has only words and labels, so that files can be moved.
    lines: tuple[str, ...] = field(repr=False)
    """lines of the words in the file"""
    where: str = field(repr=False)
    """file and first line, or row, for messages"""


def read_conll(path: str, word: int, label: int) -> Iterator[Row]:
    """Yield the sentences of a file: words, labels if there are any, and the lines as they are in the file.

    word, label: columns from 0, or from the end with -1 as the last. Columns are separated by tabs if the first line
    has a tab, else by spaces or tabs. Raises InputError, with file and line, for a line with another number of columns.
    """
    rows: list[tuple[int, str, list[str]]] = []
    width, by_tab = 0, False
    for number, line in [*numbered_lines(path), (0, "")]:
        by_tab = by_tab or (not width and "\t" in line)
        fields = line.split("\t") if by_tab and line.strip(" \t") else re.split("[ \t]+", line.strip(" \t"))
        if fields == [""] or fields[0] == DOCUMENT_START:
            if rows:
                numbers, lines, of_lines = zip(*rows, strict=True)
                content = {"words": [f[word] for f in of_lines], "lines": lines}
                if -width <= label < width:
                    content["labels"] = [f[label] for f in of_lines]
                yield Row(content, f"{path}: line {numbers[0]}")
                rows = []
            continue
        width = width or len(fields)
        if len(fields) != width or not -width <= word < width:
            raise InputError(
                f"{path}: line {number} has {len(fields)} fields between {'tabs' if by_tab else 'spaces'}, the first "
                f"line {width}; every word needs the same, with that of `columns.text`"
            )
        rows.append((number, line, fields))


class TokenClassification(Task[Sentence, list[Prediction]]):
    """Labels of words. The task ner takes tags of entities; the task token_classification takes any labels."""

    without_text = "no label"

    def __init__(self, config: FinetuneConfig):
        super().__init__(config)
        self._of_entities = config.task != "token_classification"
        columns = config.columns
        try:
            self._word, self._label = int(columns.text or 0), int(columns.label or -1)
        except ValueError:
            raise InputError("`columns.text` and `columns.label` of a CoNLL file are numbers from 0, or -1") from None
        self._names: tuple[str, ...] = ()
        self.metric = "f1" if self._of_entities else "accuracy"
        if columns.text_pair or columns.id:
            raise InputError(
                "leave `columns.text_pair` and `columns.id` out: a file in CoNLL format has only words and labels"
            )
        self.require_room(SPECIALS)

    def published_rows(self, path: str) -> Iterator[Row]:
        return read_conll(path, self._word, self._label)

    def example(self, record: Row, number: int, labelled: bool) -> Sentence:
        """Return the sentence of a row. Words and labels may be numbers. Raises InputError if words and labels are not
        lists of equal length."""
        words = tuple(map(str, record.get("words", list[str | int | float] | None) or ()))
        labels = tuple(map(label_name, record.get("labels", list[str | int | float]))) if labelled else None
        if labels is not None and len(words) != len(labels):
            raise InputError(f"{record.where} has {len(words)} words and {len(labels)} labels: label each word")
        if labels is not None and (not {*labels}.isdisjoint(NO_LABEL) or labels == words != ()):
            raise InputError(f"{record.where}: a word has no label; `columns.label` names their column")
        lines = record.content.get("lines")
        if lines is None:
            broken = [word for word in (*words, *(labels or ())) if _BREAKS_LINES.search(word) or not word.strip()]
            if broken and labelled:
                raise InputError(f"{record.where}: {broken[0]!r:.60} is neither a word nor its label")
            lines = tuple(BLANK if word in broken else word for word in words)
            lines = lines if labels is None else tuple(map("\t".join, zip(words, labels, strict=True)))
        for word, label in zip(words, labels or (), strict=False):
            if self._of_entities and not is_tag(label):
                raise InputError(
                    f"{record.where}: {label!r}, the label of {word!r}, is not a tag of an entity, as B-PER; name "
                    "the column by `columns.label`, write tags instead of their numbers, or learn other labels by "
                    "`task` token_classification"
                )
        return Sentence(words, labels, lines, record.where)

    def example_of(self, value: Any, where: str, number: int) -> Sentence:
        """Return the sentence of a row, or of a list of words."""
        row = {"words": list(value)} if isinstance(value, list | tuple) else value
        return super().example_of(row, where, number)

    def key(self, example: Sentence) -> object:
        """Return a new object, because sentences have no ids."""
        return object()

    def texts_of(self, example: Sentence) -> tuple[str, ...]:
        return (" ".join(example.words),)

    def labels_of(self, example: Sentence) -> Sequence[str]:
        return example.labels or ()

    def head(self, train: Sequence[Sentence]) -> HeadConfig:
        """Return a head with the labels of the training examples, sorted."""
        names = sorted({label for sentence in train for label in sentence.labels or ()})
        return self.config.head.for_labels(len(names), tuple(names))

    def features(
        self, examples: Sequence[Sentence], tokenizer: Tokenizer, head: HeadConfig, training: bool, epoch: int = 0
    ) -> Features:
        """Return one item per window of a sentence, with W words. positions: words, int32 [items, W]. values:
        target_weights, float32 [items, W], 1.0 for words that are labelled in this window; and labels, int32 [items,
        W].

        Raises InputError for a label that the head does not have.
        """
        self._names = head.labels or tuple(f"LABEL_{i}" for i in range(head.num_labels))
        numbers = {label: i for i, label in enumerate(self._names)}
        encoded = encode_words([sentence.words for sentence in examples], tokenizer)
        room = self.config.data.seq_len - SPECIALS
        items = [(i, window) for i, (ids, first) in enumerate(encoded) for window in windows(len(ids), first, room)]
        most = max((words.stop - words.start for _, (_, words) in items), default=1)
        places, labels = np.zeros((len(items), most), np.int32), np.zeros((len(items), most), np.int32)
        weights = np.zeros((len(items), most), np.float32)
        for row, (i, (tokens, words)) in enumerate(items):
            count = words.stop - words.start
            places[row, :count] = encoded[i][1][words] - tokens.start
            weights[row, :count] = 1.0
            for place, label in enumerate((examples[i].labels or ())[words]):
                require_label(label, numbers, examples[i].where)
                labels[row, place] = numbers[label]
        texts = [encode_text(encoded[i][0][tokens]) for i, (tokens, _) in items]
        values = {"target_weights": weights} | ({"labels": labels} if training else {})
        return Features(tokens_of(texts), values, np.array([i for i, _ in items], np.int64), {"words": places})

    def losses(self, model: nn.Module, params: Any, batch: DeviceBatch, dropout: BatchDropout | None) -> jax.Array:
        """Return the cross-entropy of each word, in nats: float32 [B, W]."""
        logits_BWC = _logits_BWC(model, params, batch, dropout)
        return optax.softmax_cross_entropy_with_integer_labels(logits_BWC, batch["labels"])

    def predict(self, model: nn.Module, params: Any, batch: DeviceBatch) -> dict[str, jax.Array]:
        """Return label, int32 [B, W]: the most likely label of each word."""
        return {"label": _logits_BWC(model, params, batch, None).argmax(-1).astype(jnp.int32)}

    def answers(self, examples: Sequence[Sentence], features: Features, outputs: Outputs) -> list[Prediction]:
        """Return the label of each word."""
        # Windows are in the order of the sentence, and so are the words labelled in each.
        is_labelled = features.values["target_weights"] > 0
        labels = iter(outputs["label"][is_labelled].tolist() if len(features) else [])
        return [Prediction(tuple(self._names[next(labels)] for _ in sentence.words), {}) for sentence in examples]

    def metrics(self, examples: Sequence[Sentence], answers: list[Prediction]) -> dict[str, float]:
        """Return the accuracy of words and, for tags of entities, precision, recall and F1 as in seqeval, the F1 of
        each type, and, if the true tags are IOB2 or BIOES, the F1 of seqeval's strict mode; all as fractions of 1."""
        true, predicted = _labels(examples), _predicted(answers)
        right = sum(a == b for one, other in zip(true, predicted, strict=True) for a, b in zip(one, other, strict=True))
        found = {"accuracy": right / sum(map(len, true))}
        if not all(map(is_tag, self._names)):
            return found
        by_type = entity_scores(map(entities, true), map(entities, predicted))
        of_all = by_type.pop(None)
        found |= {"f1": of_all.f1, "precision": of_all.precision, "recall": of_all.recall}
        if (scheme := scheme_of(true)) != "IOB1":
            both = ([strict_entities(tags, scheme) for tags in side] for side in (true, predicted))
            found["strict_f1"] = entity_scores(*both)[None].f1
        return found | {f"f1_{kind}": of_type.f1 for kind, of_type in by_type.items()}

    def trivial_answers(
        self, train: Sequence[Sentence], examples: Sequence[Sentence]
    ) -> dict[str, list[list[Prediction]]]:
        """Return the most frequent label of the training examples for every word and, as that is O where few words are
        entities, the most frequent label of an entity."""
        labels = [label for sentence in train for label in sentence.labels or ()]
        constants = {"labels every word {}, the most frequent label": most_frequent(labels)}
        if entities := [label for label in labels if label != OUTSIDE]:
            constants["labels every word {}, the most frequent label of an entity"] = most_frequent(entities)
        return {
            words.format(label): [[Prediction((label,) * len(sentence.words), {}) for sentence in examples]]
            for words, label in constants.items()
        }

    def draw(
        self, examples: Sequence[Sentence], answers: list[Prediction], folder: epath.Path, title: str
    ) -> str | None:
        """Count words by their true and predicted label; for tags of entities, by the type of the entity, or O."""
        name = kind_of if all(map(is_tag, self._names)) else str
        sides = (_labels(examples), _predicted(answers))
        true, predicted = ([name(label) for sentence in side for label in sentence] for side in sides)
        labels = sorted({*map(name, self._names)}, key=lambda label: (label == OUTSIDE, label))
        numbers = {label: i for i, label in enumerate(labels)}
        pairs = [numbers[x] for x in true], [numbers[x] for x in predicted]
        draw_confusion(labels, *pairs, "words", folder / "confusion.png", title)
        return "confusion.png"

    def write(self, folder: epath.Path, examples: Sequence[Sentence], answers: list[Prediction]) -> list[str]:
        """Write predictions.txt: the lines of the file, each followed by the predicted label, as conlleval reads them.
        If the sentences have tags, also write entities.tsv with the scores of all entities and of each type."""
        predicted = _predicted(answers)
        with (folder / PREDICTIONS).open("w") as file:
            for sentence, labels in zip(examples, predicted, strict=True):
                for line, label in zip(sentence.lines, labels, strict=True):
                    divider = "\t" if "\t" in line else " "
                    file.write(f"{line}{divider}{label}\n")
                file.write("\n")
        if not (examples and examples[0].labels and all(map(is_tag, self._names))):
            return [PREDICTIONS]
        with (folder / REPORT).open("w") as file:
            file.write("\t".join(["type", *Scores._fields]) + "\n")
            of_types = entity_scores(map(entities, _labels(examples)), map(entities, predicted))
            for kind, s in of_types.items():
                file.write(f"{kind or 'all'}\t{s.precision:.4f}\t{s.recall:.4f}\t{s.f1:.4f}\t{s.true}\t{s.predicted}\n")
        return [PREDICTIONS, REPORT]


def _predicted(answers: Sequence[Prediction]) -> list[Any]:
    return [answer.value for answer in answers]


def _labels(examples: Sequence[Sentence]) -> list[tuple[str, ...]]:
    return [sentence.labels or () for sentence in examples]


def _logits_BWC(model: nn.Module, params: Any, batch: DeviceBatch, dropout: BatchDropout | None) -> jax.Array:
    logits_BLC = apply(model, params, dropout, inputs_of(batch))
    return jnp.take_along_axis(logits_BLC, batch["words"][:, :, None], axis=1)


def spaces_before(words: Sequence[str]) -> list[bool]:
    """Return for each word whether running text would have a space before it. The beginning of a text counts as a
    space.

    There is no space beside a character of a script without spaces. In a sentence with such characters, there is also
    none between two single characters, such as 1 9 9 8 in a text that was split into characters.
    """
    unspaced = any(map(UNSPACED.search, words))

    def between(left: str, right: str) -> bool:
        apart = len(left) == len(right) == 1 or UNSPACED.match(left[-1:]) or UNSPACED.match(right)
        return not (unspaced and apart)

    return [i == 0 or between(words[i - 1], word) for i, word in enumerate(words)]


def encode_words(sentences: Sequence[Sequence[str]], tokenizer: Tokenizer) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the token ids of each sentence, int32 [tokens], and the place of the first token of each word, int64
    [words]. A word that normalization removes becomes <unk>. If the tokenizer encodes a word as ▁ and other pieces, the
    piece after ▁ counts as the first."""
    spaced = [list(zip(words, spaces_before(words), strict=True)) for words in sentences]
    distinct = sorted({word for words in spaced for word in words})
    # <eop> is always a separate piece. In front of a word, it takes the ▁ that starts a text.
    joint = SPECIAL_PIECES[EOP]
    in_front = tokenizer.encode_lines([joint])[0]
    if in_front[-1:].tolist() != [EOP]:
        joint, in_front = "", in_front[:0]
    encoded = tokenizer.encode_lines([word if space else joint + word for word, space in distinct])
    lone = tokenizer.pieces.index(SPACE) if SPACE in tokenizer.pieces else None
    of_word = {}
    for (word, space), ids in zip(distinct, encoded, strict=True):
        ids = ids if space else ids[len(in_front) :]
        ids = ids if len(ids) else np.array([UNK], np.int32)
        of_word[word, space] = ids, int(len(ids) > 1 and ids[0] == lone)
    return [_joined([of_word[word] for word in words]) for words in spaced]


def windows(tokens: int, places: np.ndarray, room: int) -> list[tuple[slice, slice]]:
    """Return windows of at most `room` tokens over a sentence, as slices (tokens, words labelled there); each overlaps
    half of the next. Every word is labelled in one window, where its first token is nearest to the middle. places: of
    the first token of each word."""
    stride = max(room // 2, 1)
    count = 1 + max(-(-(tokens - room) // stride), 0)
    begins = np.minimum(np.arange(count) * stride, max(tokens - room, 0))
    halfway = (begins[:-1] + begins[1:] + room - 1) / 2  # between the middles of neighboring windows
    bounds = [0, *np.searchsorted(places, halfway, side="right"), len(places)]
    return [
        (slice(int(begin), min(int(begin) + room, tokens)), slice(int(first), int(last)))
        for begin, first, last in zip(begins, bounds[:-1], bounds[1:], strict=True)
        if first < last
    ]


def _joined(words: Sequence[tuple[np.ndarray, int]]) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.array([len(ids) for ids, _ in words], np.int64)
    firsts = np.array([first for _, first in words], np.int64)
    ids = np.concatenate([np.zeros(0, np.int32), *(ids for ids, _ in words)])
    return ids, np.cumsum(lengths) - lengths + firsts


# ---- entities -------------------------------------------------------------------------------------------------------
# A tag is O, or the position of a word in an entity and the entity's type, such as B-PER. Entities are found and scored
# as in conlleval and the default mode of seqeval.

Scheme = Literal["IOB1", "IOB2", "BIOES"]
# BILOU, BMEWO and BMES are BIOES with other letters; seqeval's default mode would join their adjacent entities.
SAME_PLACE = {"L": "E", "U": "S", "W": "S", "M": "I"}
OUTSIDE = "O"
_TAG = re.compile(r"O|[BIESLUWM]([-_].+)?")


class Entity(NamedTuple):
    """Words of one entity."""

    kind: str
    begin: int  # first word
    end: int  # last word, exclusive


class Scores(NamedTuple):
    """Scores of all entities or of one type, 0 to 1; 0.0 if the denominator is 0."""

    precision: float
    recall: float
    f1: float
    true: int
    predicted: int


def is_tag(label: str) -> bool:
    """Return True if a label is O or the position of a word in an entity."""
    return _TAG.fullmatch(label) is not None


def kind_of(tag: str) -> str:
    """Return the type of the entity of a word with this tag; "_" if the tag has no type; O outside of entities."""
    return OUTSIDE if _place(tag) == OUTSIDE else tag[2:] or "_"


def entities(tags: Sequence[str]) -> list[Entity]:
    """Return the entities of a sentence (`get_entities` of seqeval). An entity begins at B and S, after O, E and S, and
    where the type changes. This works for all schemes and for any sequence of tags."""
    found: list[Entity] = []
    last_place, last_kind = OUTSIDE, ""
    for i, tag in enumerate(tags):
        place, kind = _place(tag), tag[2:] or "_"
        if place != "O" and (place in "BS" or last_place in "OES" or kind != last_kind):
            found.append(Entity(kind, i, i + 1))
        elif place != "O":
            found[-1] = found[-1]._replace(end=i + 1)
        last_place, last_kind = place, kind
    return found


def strict_entities(tags: Sequence[str], scheme: Scheme) -> list[Entity]:
    """Return the entities with valid tags in their scheme (seqeval's strict mode): in IOB2 they begin with B; in BIOES
    they begin with B and end with E, or are one S; in IOB1 any tags are valid."""
    wanted = {"IOB1": ("B", "I"), "IOB2": ("B",), "BIOES": ("BE", "S")}[scheme]
    kept = []
    for entity in entities(tags):
        first, last = _place(tags[entity.begin]), _place(tags[entity.end - 1])
        if (first if scheme != "BIOES" or first == "S" else first + last) in wanted:
            kept.append(entity)
    return kept


def scheme_of(sentences: Iterable[Sequence[str]]) -> Scheme:
    """Return the scheme of these tags: BIOES if there is E or S; IOB1 if most entities begin with I; else IOB2."""
    begins: Counter[str] = Counter()
    for tags in sentences:
        if any(_place(tag) in "ES" for tag in tags):
            return "BIOES"
        begins.update(tags[entity.begin][0] for entity in entities(tags))
    return "IOB1" if begins["I"] > begins["B"] else "IOB2"


def entity_scores(true: Iterable[Sequence[Entity]], predicted: Iterable[Sequence[Entity]]) -> dict[str | None, Scores]:
    """Return the scores of all entities (key None, the micro average) and of each type. A predicted entity is right if
    its words and its type are."""
    of_true, of_predicted, of_found = Counter[str](), Counter[str](), Counter[str]()
    for wanted, given in zip(true, predicted, strict=True):
        of_true.update(entity.kind for entity in wanted)
        of_predicted.update(entity.kind for entity in given)
        of_found.update(entity.kind for entity in set(wanted) & set(given))
    total = _scores(of_found.total(), of_true.total(), of_predicted.total())
    return {None: total} | {
        k: _scores(of_found[k], of_true[k], of_predicted[k]) for k in sorted(of_true | of_predicted)
    }


def _place(tag: str) -> str:
    return SAME_PLACE.get(tag[0], tag[0])


def _scores(found: int, true: int, predicted: int) -> Scores:
    f1 = 2 * found / max(true + predicted, 1)
    return Scores(found / max(predicted, 1), found / max(true, 1), f1, true, predicted)
