"""Question answering by spans of a text: SQuAD 1.1 and 2.0, CMRC 2018, DRCD (`run_squad.py`).

A long text is read in overlapping windows: text <sep> question <sep> <cls>. In training, a window without the whole
answer counts as unanswerable. The prediction is the most likely span of all windows.
"""

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, NamedTuple, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from etils import epath

from data_pipelines.tokenizer import CLS, SEP, Tokenizer, normalize
from xlnet_jax.dims import CLS_SEGMENT
from xlnet_jax.errors import InputError
from xlnet_jax.interop.contents import NULL_THRESHOLD
from xlnet_jax.models.heads import XLNetForQuestionAnswering
from xlnet_jax.objectives.language_model import BatchDropout, DeviceBatch, apply
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.features import Features, Outputs
from xlnet_jax.tasks.question_answering.alignment import Alignment, align
from xlnet_jax.tasks.question_answering.files import Question, question_of, read_rows, repair_answers
from xlnet_jax.tasks.question_answering.scores import (
    best_threshold,
    cmrc_scores,
    raw_scores,
    squad1_scores,
    squad2_scores,
)
from xlnet_jax.tasks.readers import Row
from xlnet_jax.tasks.task import Prediction, Task, inputs_of, most_frequent

HEAD = HeadConfig("question_answering")
SPECIALS = 3  # <sep>, <sep> and <cls>
NO_PLACE = -1


NO_WINDOW = 1e6  # null odds of a question whose text has no window
NO_SPAN = -1e6  # log-probability of the empty answer if no span is possible


class DocumentWindow(NamedTuple):
    """Part of a document in one item, with E tokens."""

    starts_E: np.ndarray  # int64: first character of each token
    ends_E: np.ndarray  # int64: its last one
    is_widest_E: np.ndarray  # bool: no other window has more context around this token


class Candidate(NamedTuple):
    """Possible answer to a question."""

    text: str
    probability: float  # the n best sum to 1
    start_log_prob: float
    end_log_prob: float


@dataclass(frozen=True)
class Answers:
    """Answers to each question, by its id."""

    n_best: Mapping[str, Sequence[Candidate]]  # most likely first, at least one
    null_odds: Mapping[str, float]  # lowest logit of "unanswerable" over the windows
    predicted: Mapping[str, str] = field(default_factory=dict)  # final answers; "" = unanswerable

    @property
    def texts(self) -> dict[str, str]:
        """Most likely answer to each question, whether it is answerable or not."""
        return {id: candidates[0].text for id, candidates in self.n_best.items()}

    def above(self, threshold: float) -> dict[str, str]:
        """Return the most likely answers, with "" for questions whose null odds exceed the threshold."""
        return {id: "" if self.null_odds[id] > threshold else text for id, text in self.texts.items()}

    def amid(self, threshold: float) -> float:
        """Return a threshold that gives the same answers but lies halfway to the next larger null odds. With the odds
        of a question as the threshold, that answer would depend on their last digit."""
        odds = [odd for odd in self.null_odds.values() if odd < NO_WINDOW]
        if threshold not in odds:
            return threshold
        return (threshold + min((odd for odd in odds if odd > threshold), default=threshold + 2)) / 2


@dataclass(frozen=True)
class SpanFeatures(Features):
    """Features with the windows that map tokens to the text. The items of a question are adjacent, with its windows in
    reading order."""

    windows: Sequence[DocumentWindow] = ()


class QuestionAnswering(Task[Question, Answers]):
    """Tasks squad, squad2, cmrc2018 and drcd. Their metrics differ; only squad2 has unanswerable questions."""

    top = 100.0
    keeps_blank = ("predict", "eval")  # the official scripts count every question

    def __init__(self, config: FinetuneConfig):
        super().__init__(config)
        self._qa = config.qa
        self._unanswerable = config.task == "squad2"
        self.metric = "best_f1" if self._unanswerable else "f1"
        self._tuned: float | None = None
        self.require_room(config.data.max_query_len + SPECIALS, "data.max_query_len")

    @property
    def tuned_thresholds(self) -> dict[str, float]:
        """The null threshold chosen in the last evaluation, if any."""
        return {} if self._tuned is None else {NULL_THRESHOLD: self._tuned}

    def published_rows(self, path: str) -> Iterator[Row]:
        return read_rows(path)

    def repair(self, path: str, examples: Iterable[Question]) -> list[Question]:
        """Return the questions of a file, with answers moved to where they occur (`files.repair_answers`)."""
        return repair_answers(path, list(examples))

    def example(self, record: Row, number: int, labelled: bool) -> Question:
        return question_of(record, number, labelled, self._unanswerable)

    def texts_of(self, example: Question) -> tuple[str, ...]:
        return example.context, example.question

    def is_blank(self, example: Question) -> bool:
        """Return True if there is no text to answer from."""
        return not example.context.strip()

    def labels_of(self, example: Question) -> Sequence[str]:
        return ("unanswerable" if example.is_impossible else "answerable",)

    def head(self, train: Sequence[Question]) -> HeadConfig:
        return HEAD

    def features(
        self, examples: Sequence[Question], tokenizer: Tokenizer, head: HeadConfig, training: bool, epoch: int = 0
    ) -> SpanFeatures:
        """Return one item per window of a text; windows start qa.doc_stride tokens apart. tokens: excluded, 1 = can be
        neither start nor end. positions: cls_index, start and end, int32 [items]; start and end are <cls> if there is
        no answer. value: is_impossible, float32 [items].

        A question has no window if its text is blank, if its text cannot be aligned with its tokens or, in
        training, if its answer does not occur. Raises InputError for training if no question has a window.
        """
        texts = _align_texts([q for q in examples if not self.is_blank(q)], tokenizer)
        whole = tokenizer.encode_lines([q.question for q in examples])
        max_query_len = self.config.data.max_query_len
        queries = [ids[:max_query_len] for ids in whole]
        tokens: dict[str, list[np.ndarray]] = {"input_ids": [], "segment_ids": [], "excluded": []}
        places: dict[str, list[int]] = {"cls_index": [], "start": [], "end": []}
        windows, of_examples = [], []
        for example, (question, query) in enumerate(zip(examples, queries, strict=True)):
            if self.is_blank(question):
                continue
            ids_E, alignment = texts[question.context]
            answer = question.answer
            if alignment is None or (training and answer is None and not question.is_impossible):
                continue
            first = last = -1
            if answer:
                text, start = answer
                first = alignment.first_tokens[start]
                last = max(first, alignment.last_tokens[start + len(text) - 1])
            spans = windows_over(len(ids_E), self.config.data.seq_len - len(query) - SPECIALS, self._qa.doc_stride)
            for (begin, end), is_widest_E in zip(spans, widest_contexts(spans), strict=True):
                length, cls = end - begin, end - begin + len(query) + 2
                segments, excluded = np.ones(cls + 1, np.int32), np.ones(cls + 1, np.int32)
                segments[: length + 1], segments[cls] = 0, CLS_SEGMENT
                excluded[:length] = excluded[cls] = 0
                tokens["input_ids"].append(np.array([*ids_E[begin:end], SEP, *query, SEP, CLS], np.int32))
                tokens["segment_ids"].append(segments)
                tokens["excluded"].append(excluded)
                span = (first - begin, last - begin) if begin <= first and last < end else (cls, cls)
                for name, place in zip(places, (cls, *span), strict=True):
                    places[name].append(place)
                windows.append(DocumentWindow(alignment.starts[begin:end], alignment.ends[begin:end], is_widest_E))
                of_examples.append(example)
        if training and not windows:
            raise InputError(
                f"none of {len(examples)} questions can be used: no answer occurs in its text, or no text in its tokens"
            )
        positions = {name: np.array(each, np.int32) for name, each in places.items()}
        is_impossible = (positions["start"] == positions["cls_index"]).astype(np.float32)
        return SpanFeatures(
            tokens, {"is_impossible": is_impossible}, np.array(of_examples, np.int64), positions, windows=windows,
            cut=sum(len(ids) > max_query_len for ids in whole),
        )  # fmt: skip

    def losses(self, model: nn.Module, params: Any, batch: DeviceBatch, dropout: BatchDropout | None) -> jax.Array:
        """Return the loss of start, end and answerability, in nats: float32 [B] (`span_loss_B`)."""
        places = batch["cls_index"], batch["excluded"], batch["start"]
        outputs = apply(model, params, dropout, inputs_of(batch), *places)
        return span_loss_B(outputs, batch["start"], batch["end"], batch["is_impossible"])

    def predict(self, model: nn.Module, params: Any, batch: DeviceBatch) -> dict[str, jax.Array]:
        """Return the beam of n = qa.n_best: start_log_probs and start_index [B, n], end_log_probs and end_index
        [B, n, n], unanswerable [B] (a logit).

        Positions count from the first token of an item. NO_PLACE fills a beam that is wider than the text. If fewer
        positions can start or end an answer, the others are outside the text.
        """
        width = min(self._qa.n_best, batch["input_ids"].shape[1])
        beam = partial(model.apply, {"params": params}, method=XLNetForQuestionAnswering.beam)
        found = cast(Any, beam(inputs_of(batch), batch["cls_index"], batch["excluded"], width, width))
        first_B = batch["attention_mask"].argmax(1)
        found["start_index"] -= first_B[:, None]
        found["end_index"] -= first_B[:, None, None]
        missing = [(0, 0), (0, self._qa.n_best - width), (0, self._qa.n_best - width)]

        def full(values: jax.Array) -> jax.Array:
            return jnp.pad(values, missing[: values.ndim], constant_values=NO_PLACE)

        return {name: full(values) for name, values in found.items()}

    def answers(self, examples: Sequence[Question], features: Features, outputs: Outputs) -> Answers:
        """Return the n best answers to each question, and the final one.

        In SQuAD 2.0 the answer is empty if the null odds exceed qa.null_threshold. Without that setting, the threshold
        is the one with the best F1 on these examples if they are labelled, else on the examples evaluated last (0 if
        there were none). It lies halfway between two null odds (`Answers.amid`).
        """
        windows = cast(SpanFeatures, features).windows
        items_of: list[list[int]] = [[] for _ in examples]
        for item, example in enumerate(features.examples.tolist()):
            items_of[example].append(item)
        n_best, null_odds = {}, {}
        for question, items in zip(examples, items_of, strict=True):
            beams = [{name: values[item] for name, values in outputs.items()} for item in items]
            n_best[question.id] = candidates(
                question.context, [windows[i] for i in items], beams, self._qa.n_best, self._qa.max_answer_len
            )
            null_odds[question.id] = min([NO_WINDOW, *(float(beam["unanswerable"]) for beam in beams)])
        found = Answers(n_best, null_odds)
        return replace(found, predicted=found.above(self._threshold(examples, found)))

    def _threshold(self, examples: Sequence[Question], answers: Answers) -> float:
        if not self._unanswerable:
            return math.inf
        if self._qa.null_threshold is not None:
            return self._qa.null_threshold
        if all(question.answers or question.is_impossible for question in examples):
            f1 = raw_scores(examples, answers.texts)["f1"]
            _, threshold = best_threshold(examples, answers.texts, f1, answers.null_odds)
            self._tuned = answers.amid(threshold)
        return self._tuned or 0.0

    def metrics(self, examples: Sequence[Question], answers: Answers) -> dict[str, float]:
        """Return the official metrics in per cent."""
        if self._unanswerable:
            return squad2_scores(examples, answers.predicted, answers.null_odds)
        return (squad1_scores if self.config.task == "squad" else cmrc_scores)(examples, answers.predicted)

    def trivial_answers(self, train: Sequence[Question], examples: Sequence[Question]) -> dict[str, list[Answers]]:
        """Return no answer at all and, where every question has one, the most frequent answer of the training
        examples."""
        ids, constants = [question.id for question in examples], {"never answers": ""}
        if not self._unanswerable:
            text = most_frequent(question.answers[0] for question in train)
            constants[f'always answers "{text}", the most frequent answer'] = text
        return {
            words: [Answers({}, dict.fromkeys(ids, 0.0), dict.fromkeys(ids, text))] for words, text in constants.items()
        }

    def write(self, folder: epath.Path, examples: Sequence[Question], answers: Answers) -> list[str]:
        """Write predictions.json, nbest_predictions.json and, for SQuAD 2.0, null_odds.json."""
        n_best = {id: [candidate._asdict() for candidate in found] for id, found in answers.n_best.items()}
        files: dict[str, Any] = {"predictions.json": answers.predicted, "nbest_predictions.json": n_best}
        if self._unanswerable:
            files["null_odds.json"] = answers.null_odds
        for name, content in files.items():
            (folder / name).write_text(json.dumps(content, indent=4, ensure_ascii=False) + "\n", encoding="utf-8")
        return list(files)

    def predictions(self, examples: Sequence[Question], answers: Answers) -> list[Prediction]:
        """Return the final answers, and the probabilities of the n best, which sum to 1."""
        return [
            Prediction(answers.predicted[q.id], {found.text: found.probability for found in answers.n_best[q.id]})
            for q in examples
        ]


def span_loss_B(
    outputs: tuple[jax.Array, jax.Array, jax.Array], start_B: jax.Array, end_B: jax.Array, is_impossible_B: jax.Array
) -> jax.Array:
    """Return the mean cross-entropy of start and end, plus half the cross-entropy of answerability, in nats
    (`get_qa_outputs` of function_builder.py). outputs: of XLNetForQuestionAnswering; start, end: int [B], positions in
    the L tokens."""
    start_BL, end_BL, unanswerable_B = outputs
    of_start_B = jnp.take_along_axis(start_BL, start_B[:, None], axis=1)[:, 0]
    of_end_B = jnp.take_along_axis(end_BL, end_B[:, None], axis=1)[:, 0]
    of_answer_B = optax.sigmoid_binary_cross_entropy(unanswerable_B, is_impossible_B)
    return -0.5 * (of_start_B + of_end_B) + 0.5 * of_answer_B


def windows_over(tokens: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Return (begin, end) of the windows of at most `room` tokens, `stride` apart, that together cover all tokens."""
    step = min(room, stride)
    return [(begin, min(begin + room, tokens)) for begin in range(0, max(tokens - room, 0) + step, step)]


def widest_contexts(windows: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    """Return a bool array [E] for each window: True if no other window gives the token more context. Context is the
    smaller of the number of tokens on its left and on its right (`_check_is_max_context`). Ties go to the longer
    window, then to the first."""
    if len(windows) == 1:
        return [np.ones(windows[0][1], bool)]
    widest, most = np.zeros(windows[-1][1], np.int64), np.full(windows[-1][1], -1.0)
    for i, (begin, end) in enumerate(windows):
        here = np.arange(end - begin)
        context = np.minimum(here, here[::-1]) + 0.01 * (end - begin)
        widest[begin:end][context > most[begin:end]] = i
        np.maximum(most[begin:end], context, out=most[begin:end])
    return [widest[begin:end] == i for i, (begin, end) in enumerate(windows)]


def _align_texts(examples: Sequence[Question], tokenizer: Tokenizer) -> dict[str, tuple[np.ndarray, Alignment | None]]:
    """Return the tokens [E] of each text, and their alignment; None if text and tokens differ too much."""
    settings = tokenizer.settings
    normalized = cache(
        partial(
            normalize,
            kind=settings.normalization,
            lower=settings.lower,
            keep_accents=settings.keep_accents,
            remove_space=False,
        )
    )
    contexts = list(dict.fromkeys(q.context for q in examples))
    ids, pieces = tokenizer.encode_lines(contexts), tokenizer.encode_pieces(contexts)
    alignments = [align(list(map(normalized, text)), of_text) for text, of_text in zip(contexts, pieces, strict=True)]
    if missing := alignments.count(None):
        print(
            f"{missing} of {len(contexts)} texts are skipped: too few of their characters occur in their tokens",
            file=sys.stderr,
        )
    return dict(zip(contexts, zip(ids, alignments, strict=True), strict=True))


def candidates(
    context: str,
    windows: Sequence[DocumentWindow],
    beams: Sequence[Mapping[str, np.ndarray]],
    n_best: int,
    max_answer_len: int,
) -> list[Candidate]:
    """Return the most likely answers to one question, best first (`write_predictions` of run_squad.py).

    beams: start_log_probs and start_index [I], end_log_probs and end_index [I, J] of each window. Indices count the
    tokens of the window. I and J are the widths of the beam.
    """
    spans = [span for window, beam in zip(windows, beams, strict=True) for span in _spans(window, beam, max_answer_len)]
    spans.sort(key=lambda span: span[2] + span[3], reverse=True)
    best: dict[str, tuple[float, float]] = {}
    for first, last, *log_probs in spans:
        if len(best) == n_best:
            break
        best.setdefault(context[int(first) : int(last) + 1].strip(), (log_probs[0], log_probs[1]))
    best = best or {"": (NO_SPAN, NO_SPAN)}
    scores = np.array(list(best.values())).sum(1)
    weights = np.exp(scores - scores.max())
    shares = (weights / weights.sum()).tolist()
    return [Candidate(text, share, *best[text]) for text, share in zip(best, shares, strict=True)]


def _spans(window: DocumentWindow, beam: Mapping[str, np.ndarray], max_answer_len: int) -> list[list[float]]:
    """Return (first character, last character, log-probability of the start, log-probability of the end) of each
    possible span."""
    start_I1, end_IJ = beam["start_index"][:, None], beam["end_index"]
    last = len(window.starts_E) - 1  # the original never takes the last token of a window
    inside = (start_I1 >= 0) & (start_I1 < last) & (end_IJ >= start_I1) & (end_IJ < last)
    possible = inside & (end_IJ - start_I1 < max_answer_len)
    possible &= window.is_widest_E[np.clip(start_I1, 0, last)]
    s, e = np.nonzero(possible)
    places = window.starts_E[beam["start_index"][s]], window.ends_E[end_IJ[s, e]]
    return np.stack([*places, beam["start_log_probs"][s], beam["end_log_probs"][s, e]], axis=1, dtype=float).tolist()
