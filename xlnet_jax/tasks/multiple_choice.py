"""Multiple choice: choose the option that answers a question about a text (`run_race.py`). Reads RACE, DREAM,
C3 and ChID in their published formats, and JSON lines."""

import dataclasses
import json
import math
import re
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from etils import epath

from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.kernels.arguments import MASKED
from xlnet_jax.objectives.language_model import BatchDropout, DeviceBatch
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.tasks.config import ColumnsConfig, FinetuneConfig
from xlnet_jax.tasks.features import Features, Outputs, encode_text, tokens_of
from xlnet_jax.tasks.readers import Row, json_file, json_lines
from xlnet_jax.tasks.task import Prediction, Task, apply_to_texts, most_frequent

SPECIALS = 3  # <sep> after the text, <sep> and <cls> after the question
PREDICTIONS = "predictions.jsonl"
LEVELS = ("middle", "high")
GAP = "_"
LETTERS = string.ascii_uppercase
CLUE = ("c3", "chid")
BLANK = re.compile(r"#idiom\d+#")
AROUND = 70
"""characters on each side of a blank of ChID that are read; the baseline of CLUE reads about 30 tokens"""
MOST_GUESSES = 60  # enough for any mixture of 2 to 6 options


@dataclass(frozen=True)
class ChoiceQuestion:
    """Question about a text, with options."""

    id: str
    context: str
    question: str
    options: tuple[str, ...]
    answer: int | None  # index of the right option, from 0
    where: str = dataclasses.field(repr=False)  # file and record, for messages
    level: str | None = None  # RACE: middle or high (school)

    def asked(self, option: int) -> str:
        """Return the question with an option, which fills its gaps or follows the question (`get_examples` of
        run_race.py)."""
        text = self.options[option]
        return self.question.replace(GAP, text) if GAP in self.question else f"{self.question} {text}"


class MultipleChoice(Task[ChoiceQuestion, list[Prediction]]):
    """Questions with options, in the format of the task: race, dream, c3, chid, or else JSON lines."""

    metric = "accuracy"
    without_text = "the answer to the question alone"

    def __init__(self, config: FinetuneConfig):
        super().__init__(config)
        if config.task in FORMS and config.columns != ColumnsConfig():
            raise InputError(
                f"task {config.task} has fields of its own: leave `columns` out, or `task` multiple_choice"
            )
        self.require_room(config.data.max_query_len + SPECIALS, "data.max_query_len")

    def published_rows(self, path: str) -> Iterator[Row]:
        return FORMS.get(self.config.task, json_lines)(path)

    def example(self, record: Row, number: int, labelled: bool) -> ChoiceQuestion:
        """Return the question of a row. The answer is the text, the letter or the number of an option. A question to
        predict may have no options."""
        columns, where = self.config.columns, record.where
        name = str(record.content.get(columns.id or "id", number))
        context, question = record.text(columns.text or "context"), record.text(columns.text_pair or "question")
        options = record.get("options", tuple[str, ...] | None) or ()
        is_right = 2 <= len(options) <= len(LETTERS) and sum(not option.strip() for option in options) <= 1
        if not is_right and (options or labelled):
            raise InputError(f"{where}: give 2 to {len(LETTERS)} options, of which at most one is empty")
        labelled = labelled and bool(context.strip())
        right = _number_of(record.get(columns.label or "answer", object), options, where) if labelled else None
        return ChoiceQuestion(name, context, question, options, right, where, record.content.get("level"))

    def texts_of(self, example: ChoiceQuestion) -> tuple[str, ...]:
        return example.context, " ".join((example.question, *example.options))

    def is_blank(self, example: ChoiceQuestion) -> bool:
        """Return True if there is no text or no option."""
        return not example.context.strip() or not example.options

    def labels_of(self, example: ChoiceQuestion) -> Sequence[str]:
        return (LETTERS[example.answer or 0],)

    def head(self, train: Sequence[ChoiceQuestion]) -> HeadConfig:
        """Return a head with the largest number of options in the training examples."""
        return self.config.head.for_labels(max(len(question.options) for question in train))

    def features(
        self, examples: Sequence[ChoiceQuestion], tokenizer: Tokenizer, head: HeadConfig, training: bool, epoch: int = 0
    ) -> Features:
        """Return one item per question, with one text for each option of the head. values: options (their number) and
        labels, int32 [items]. Raises InputError for a question with more options than the head."""
        most, seq_len, max_qa_len = head.num_labels, self.config.data.seq_len, self.config.data.max_query_len
        for question in examples:
            if len(question.options) > most:
                raise InputError(
                    f"{question.where} has {len(question.options)} options, and the training examples have "
                    f"{most} at most"
                )
        distinct = list(dict.fromkeys(question.context for question in examples))
        contexts = dict(zip(distinct, tokenizer.encode_lines(distinct), strict=True))
        asked = iter(tokenizer.encode_lines([q.asked(i) for q in examples for i in range(len(q.options))]))
        texts: list[tuple[np.ndarray, np.ndarray]] = []
        cut = 0
        for question in examples:
            context = contexts[question.context]
            questions = [next(asked) for _ in question.options]
            options = [encode_option(context, ids, seq_len, max_qa_len) for ids in questions]
            longest = max(map(len, questions), default=0)
            cut += longest > max_qa_len or len(context) + longest + SPECIALS > seq_len
            texts += options + [encode_text(context[:0], context[:0])] * (most - len(options))
        values = {"options": np.array([len(question.options) for question in examples], np.int32)}
        if training:
            values["labels"] = np.array([question.answer for question in examples], np.int32)
        return Features(tokens_of(texts), values, np.arange(len(examples)), texts_per_item=most, cut=cut)

    def losses(self, model: nn.Module, params: Any, batch: DeviceBatch, dropout: BatchDropout | None) -> jax.Array:
        """Return the cross-entropy over the options, in nats: float32 [B]."""
        scores_BC = _scores_BC(model, params, batch, dropout)
        return optax.softmax_cross_entropy_with_integer_labels(scores_BC, batch["labels"])

    def predict(self, model: nn.Module, params: Any, batch: DeviceBatch) -> dict[str, jax.Array]:
        """Return probabilities of the options, float32 [B, C]; 0 for options that a question does not have."""
        return {"probabilities": jax.nn.softmax(_scores_BC(model, params, batch, None), axis=-1)}

    def answers(self, examples: Sequence[ChoiceQuestion], features: Features, outputs: Outputs) -> list[Prediction]:
        """Return the most likely option, and the probability of each; "" for a question without options."""
        return [
            Prediction(
                question.options[row.argmax()] if question.options else "",
                dict(zip(question.options, row.tolist(), strict=False)),
            )
            for question, row in zip(examples, outputs["probabilities"], strict=True)
        ]

    def metrics(self, examples: Sequence[ChoiceQuestion], answers: list[Prediction]) -> dict[str, float]:
        """Return the accuracy, and for RACE the accuracy of each level, as fractions of 1."""
        rows = zip(examples, answers, strict=True)
        right = np.array([question.options.index(str(answer.value)) == question.answer for question, answer in rows])
        found = {"accuracy": float(right.mean())}
        for level in LEVELS:
            if (of_level := np.array([question.level == level for question in examples])).any():
                found[f"accuracy_{level}"] = float(right[of_level].mean())
        return found

    def trivial_answers(
        self, train: Sequence[ChoiceQuestion], examples: Sequence[ChoiceQuestion]
    ) -> dict[str, list[list[Prediction]]]:
        """Return the option that is right most often in the training examples, and guesses: always answering A, always
        B and so on, cyclically, whose mean is that of random options."""

        def always(place: int) -> list[Prediction]:
            return [Prediction(question.options[place % len(question.options)], {}) for question in examples]

        place = most_frequent(question.answer or 0 for question in train)
        guesses = min(math.lcm(*(len(question.options) for question in examples)), MOST_GUESSES)
        return {
            f"always answers {LETTERS[place]}, the option that is right most often": [always(place)],
            "guesses one of the options": [always(guess) for guess in range(guesses)],
        }

    def write(self, folder: epath.Path, examples: Sequence[ChoiceQuestion], answers: list[Prediction]) -> list[str]:
        """Write predictions.jsonl: for each question its id, the letter and text of its answer, and the probability of
        each option. For CLUE's c3 and chid also write the submission: the numbers of the answers, in order or by id."""
        with (folder / PREDICTIONS).open("w") as file:
            for question, (text, probabilities) in zip(examples, answers, strict=True):
                row = {
                    "id": question.id,
                    "answer": LETTERS[question.options.index(str(text))] if question.options else "",
                    "text": text,
                    "probabilities": [round(probabilities[option], 6) for option in question.options],
                }
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        if self.config.task not in CLUE:
            return [PREDICTIONS]
        numbers = {
            q.id: q.options.index(str(a.value)) if q.options else 0 for q, a in zip(examples, answers, strict=True)
        }
        submission = f"{self.config.task}_predict.json"
        submitted = numbers if self.config.task == "chid" else list(numbers.values())
        (folder / submission).write_text(json.dumps(submitted, indent=2) + "\n")
        return [PREDICTIONS, submission]


def encode_option(
    context: np.ndarray, question: np.ndarray, seq_len: int, max_qa_len: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return (input_ids, segment_ids), int32 [tokens], of a text and a question with one option
    (`convert_single_example` of run_race.py): the last max_qa_len tokens of the question, after the first tokens of the
    text that fit.

    The original appends each option to the text itself instead of a copy, so that each option is read with those before
    it. Here it is not.
    """
    question = question[-max_qa_len:]
    return encode_text(context[: seq_len - SPECIALS - len(question)], question)


def _race(path: str) -> Iterator[Row]:
    content = json_file(path)
    school, file = epath.Path(path).parent.name, epath.Path(path).name
    name = str(content.get("id", f"{school}/{file}"))
    level = next((level for level in LEVELS if school == level or name.startswith(level)), None)
    questions, all_options = content["questions"], content["options"]
    answers = content.get("answers", [None] * len(questions))
    for i, (question, options, answer) in enumerate(zip(questions, all_options, answers, strict=True)):
        row = {"id": f"{name}-{i}", "context": content["article"], "question": question, "options": options}
        yield Row(row | {"level": level, "answer": answer}, f"{path}: question {i + 1}")


def _dream(path: str) -> Iterator[Row]:
    for turns, questions, name in json_file(path):
        for i, asked in enumerate(questions):
            row = {"id": f"{name}-{i}", "context": " ".join(turns), "options": asked["choice"]}
            yield Row({**asked, **row}, f"{path}, dialogue {name}, question {i + 1}")


def _c3(path: str) -> Iterator[Row]:
    """Yield the questions of C3, whose form is DREAM's. Dialogues and other texts may have the same ids."""
    for row in _dream(path):
        yield dataclasses.replace(row, content={**row.content, "id": f"{epath.Path(path).stem}/{row.content['id']}"})


def _chid(path: str) -> Iterator[Row]:
    """Yield a question for each blank of ChID: a passage around it, in which an idiom is missing, and the candidates.
    Answers are in a file of their own, except those of a test."""
    file = epath.Path(path)
    of_answers = file.with_name(f"{file.stem}_answer.json")
    if not of_answers.exists() and not file.name.startswith("test"):
        raise InputError(f"{path}: its answers are missing: put {of_answers.name} beside it")
    answers = json_file(str(of_answers), dict[str, int]) if of_answers.exists() else {}
    for row in json_lines(path):
        if row.fault:
            yield row
            continue
        options, passages = row.get("candidates", list[str]), row.get("content", list[str])
        for passage in passages:
            for blank in BLANK.finditer(passage):
                before, after = (BLANK.sub("…", text) for text in (passage[: blank.start()], passage[blank.end() :]))
                around = f"{before[-AROUND:]}{GAP}{after[:AROUND]}"
                asked = {"id": blank[0], "context": around, "question": GAP, "options": options}
                answer = {"answer": answers[blank[0]]} if blank[0] in answers else {}
                yield Row(asked | answer, f"{row.where}, {blank[0]}")


FORMS = {"race": _race, "dream": _dream, "c3": _c3, "chid": _chid}
"""Readers of tasks with a format of their own"""


def _number_of(answer: Any, options: tuple[str, ...], where: str) -> int:
    letters = LETTERS[: len(options)]
    known: dict[Any, int] = {i: i for i in range(len(options))} | {letter: i for i, letter in enumerate(letters)}
    known |= {option: options.index(option) for option in options}
    if type(answer) not in (str, int) or answer not in known:
        raise InputError(
            f"{where}: the answer {answer!r:.60} is none of its {len(options)} options, nor a letter from A to "
            f"{letters[-1]}, nor a number from 0 to {len(options) - 1}"
        )
    return known[answer]


def _scores_BC(model: nn.Module, params: Any, batch: DeviceBatch, dropout: BatchDropout | None) -> jax.Array:
    scores_BC = apply_to_texts(model, params, batch, dropout)
    absent_BC = jnp.arange(scores_BC.shape[1])[None] >= batch["options"][:, None]
    return jnp.where(absent_BC, MASKED, scores_BC)
