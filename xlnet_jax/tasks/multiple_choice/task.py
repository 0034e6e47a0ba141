"""Multiple choice: which option answers a question about a text (`run_race.py`). RACE and DREAM in their published
forms, and JSON lines."""

import dataclasses
import json
import string
from collections.abc import Iterator, Sequence
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
from xlnet_jax.kernels.arguments import MASKED
from xlnet_jax.models.inputs import text_inputs
from xlnet_jax.objectives.traced import BatchDropout, DeviceBatch, apply
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.tasks.config import ColumnsConfig, FinetuneConfig
from xlnet_jax.tasks.features import Features, Outputs, encode_text
from xlnet_jax.tasks.losses import classification_loss_B
from xlnet_jax.tasks.readers import Record, demand_kind, json_file, json_lines
from xlnet_jax.tasks.task import Loss, Prediction, Task

SPECIALS = 3  # <sep> after the text, <sep> and <cls> after the question
PREDICTIONS = "predictions.jsonl"
LEVELS = ("middle", "high")
GAP = "_"
LETTERS = string.ascii_uppercase


@dataclass(frozen=True)
class Question:
    """Question about a text, with its options."""

    id: str
    context: str
    question: str
    options: tuple[str, ...]
    answer: int | None  # which option is right, from 0
    where: str = dataclasses.field(repr=False)  # file and record, for messages
    level: str | None = None  # RACE: middle or high (school)

    def asked(self, option: int) -> str:
        """Return the question with an option, in place of its gaps or after the question (`get_examples` of
        run_race.py)."""
        text = self.options[option]
        return self.question.replace(GAP, text) if GAP in self.question else f"{self.question} {text}"


class MultipleChoice(Task[Question, list[Prediction]]):
    """Questions with options in the form that the task names: race, dream, or else JSON lines."""

    metric = "accuracy"
    noun = "questions"

    def __init__(self, config: FinetuneConfig):
        super().__init__(config)
        self._seq_len, self._max_qa_len = config.data.seq_len, config.choice.max_qa_len
        if config.task in ("race", "dream") and config.columns != ColumnsConfig():
            raise InputError(
                f"task {config.task} has fields of its own: leave `columns` out, or `task` multiple_choice"
            )
        if self._seq_len - SPECIALS < self._max_qa_len:
            raise InputError(
                f"data.seq-len {self._seq_len} leaves no room beside a question of choice.max-qa-len "
                f"{self._max_qa_len} tokens and {SPECIALS} special ones; raise the first or lower the second"
            )

    # ---- rows to examples -------------------------------------------------------------------------------------------

    def records(self, path: str) -> Iterator[Record]:
        """Yield a row for each question: context, question, options, and answer where the file has one."""
        if path.endswith(".jsonl") or self.config.task not in ("race", "dream"):
            for line, record in json_lines(path):
                yield dataclasses.replace(record, id=f"{epath.Path(path).name}-{line}")
        else:
            yield from (_race if self.config.task == "race" else _dream)(path)

    def example(self, record: Record, number: int, labelled: bool) -> Question:
        """Return the question of a row, whose answer is the text, the letter or the number of an option."""
        columns, where = self.config.columns, record.where
        name = str(record.content.get(columns.id or "id", record.id or number))
        context, question = record.get(columns.text or "context", str), record.get(columns.text_pair or "question", str)
        options = tuple(demand_kind(option, str, f"{where}, an option") for option in record.get("options", list))
        if not context.strip():
            raise InputError(f"{where}: the text that it asks about is empty")
        if not 2 <= len(options) <= len(LETTERS):
            raise InputError(f"{where} has {len(options)} options; from 2 to {len(LETTERS)} can be chosen from")
        if sum(not option.strip() for option in options) > 1:
            raise InputError(f"{where}: more than one option is empty, so that they cannot be told apart")
        right = _number_of(record.get(columns.label or "answer", object), options, where) if labelled else None
        level = record.content.get("level")
        return Question(whole(name, f"{where}: its id"), context, question, options, right, where, level)

    # ---- examples to features and outputs ---------------------------------------------------------------------------

    def head(self, train: Sequence[Question]) -> HeadConfig:
        """Return a head for as many options as the longest list in the training examples."""
        return dataclasses.replace(self.config.head, num_labels=max(len(question.options) for question in train))

    def features(
        self, examples: Sequence[Question], tokenizer: Tokenizer, head: HeadConfig, training: bool, epoch: int = 0
    ) -> Features:
        """Return one item a question, with a text for each option; values: options (their number) and labels, int32
        [items].

        Raises InputError on a question with more options than the head has.
        """
        most = head.num_labels
        for question in examples:
            if len(question.options) > most:
                raise InputError(
                    f"{question.where} has {len(question.options)} options, and those that were learned from have "
                    f"{most} at most"
                )
        contexts = _encode([question.context for question in examples], tokenizer)
        asked = _encode([q.asked(i) for q in examples for i in range(len(q.options))], tokenizer)
        texts: list[tuple[np.ndarray, np.ndarray]] = []
        for question in examples:
            context = contexts[question.context]
            options = [asked[question.asked(i)] for i in range(len(question.options))]
            absent = [options[0][:0]] * (most - len(options))
            texts += [encode_option(context, option, self._seq_len, self._max_qa_len) for option in options]
            texts += [encode_option(context[:0], option, self._seq_len, self._max_qa_len) for option in absent]
        values = {"options": np.array([len(question.options) for question in examples], np.int32)}
        if training:
            values["labels"] = np.array([question.answer for question in examples], np.int32)
        return Features(
            {"input_ids": [ids for ids, _ in texts], "segment_ids": [segments for _, segments in texts]},
            values,
            np.arange(len(examples), dtype=np.int64),
            texts_per_item=most,
        )

    def score(self, model: nn.Module, params: Any, batch: DeviceBatch, dropout: BatchDropout | None) -> Loss:
        """Return the cross-entropy in nats over the options."""
        return Loss.of(classification_loss_B(_scores_BC(model, params, batch, dropout), batch["labels"]), batch)

    def predict(self, model: nn.Module, params: Any, batch: DeviceBatch) -> dict[str, jax.Array]:
        """Return probabilities, float32 [B, C] over the options; 0 where a question has fewer."""
        return {"probabilities": jax.nn.softmax(_scores_BC(model, params, batch, None), axis=-1)}

    # ---- answers ----------------------------------------------------------------------------------------------------

    def answers(self, examples: Sequence[Question], features: Features, outputs: Outputs) -> list[Prediction]:
        """Return the likeliest option with the probability of each."""
        return [
            Prediction(question.options[row.argmax()], dict(zip(question.options, row.tolist(), strict=False)))
            for question, row in zip(examples, outputs["probabilities"], strict=True)
        ]

    def metrics(self, examples: Sequence[Question], answers: list[Prediction]) -> dict[str, float]:
        """Return accuracy, and the accuracy of each level of RACE, as fractions of 1."""
        rows = zip(examples, answers, strict=True)
        right = np.array([question.options.index(str(answer.value)) == question.answer for question, answer in rows])
        found = {"accuracy": float(right.mean())}
        for level in LEVELS:
            if (of_level := np.array([question.level == level for question in examples])).any():
                found[f"accuracy_{level}"] = float(right[of_level].mean())
        return found

    def write(self, folder: epath.Path, examples: Sequence[Question], answers: list[Prediction]) -> list[str]:
        """Write predictions.jsonl: for each question its id, the letter and text of its answer, and the probability of
        each option."""
        with (folder / PREDICTIONS).open("w") as file:
            for question, (text, probabilities) in zip(examples, answers, strict=True):
                row = {
                    "id": question.id,
                    "answer": LETTERS[question.options.index(str(text))],
                    "text": text,
                    "probabilities": [round(probabilities[option], 6) for option in question.options],
                }
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        return [PREDICTIONS]


def encode_option(
    context: np.ndarray, question: np.ndarray, seq_len: int, max_qa_len: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return (input_ids, segment_ids), int32 [tokens], of a text and a question with one option
    (`convert_single_example` of run_race.py): the last max_qa_len tokens of the question, and as many first tokens of
    the text as fit.

    The original appends each option to the text itself instead of a copy, so that an option also reads the options
    before it; here it does not.
    """
    question = question[-max_qa_len:]
    return encode_text(context[: seq_len - SPECIALS - len(question)], question, None)


def _race(path: str) -> Iterator[Record]:
    record = Record(demand_kind(json_file(path), dict, path), path)
    school, file = epath.Path(path).parent.name, epath.Path(path).name
    name = str(record.content.get("id", f"{school}/{file}"))
    article, questions, options = record.get("article", str), record.get("questions", list), record.get("options", list)
    answers = record.get("answers", list) if "answers" in record.content else [None] * len(questions)
    if not len(questions) == len(options) == len(answers):
        raise InputError(
            f"{path}: {len(questions)} questions, {len(options)} lists of options and {len(answers)} answers; each "
            "question needs one of both"
        )
    level = next((level for level in LEVELS if school == level or name.startswith(level)), None)
    for i, (question, of_question, answer) in enumerate(zip(questions, options, answers, strict=True)):
        row = {"id": f"{name}-{i}", "context": article, "question": question, "options": of_question, "level": level}
        yield Record(row | ({} if answer is None else {"answer": answer}), f"{path}: question {i + 1}")


def _dream(path: str) -> Iterator[Record]:
    for number, dialogue in enumerate(demand_kind(json_file(path), list, path), 1):
        where = f"{path}: dialogue {number}"
        if not (isinstance(dialogue, list) and len(dialogue) == 3 and isinstance(dialogue[2], str)):
            raise InputError(f"{where} is not of DREAM's form: [[turn, …], [{{question, choice, answer}}, …], id]")
        turns, questions, name = dialogue
        spoken = " ".join(
            demand_kind(turn, str, f"{where}, turn") for turn in demand_kind(turns, list, f"{where}, turns")
        )
        for i, asked in enumerate(demand_kind(questions, list, f"{where}, questions")):
            at = f"{where} ({name}), question {i + 1}"
            record = Record(demand_kind(asked, dict, at), at)
            options = record.get("choice", list)
            yield Record({**record.content, "id": f"{name}-{i}", "context": spoken, "options": options}, at)


def _number_of(answer: Any, options: tuple[str, ...], where: str) -> int:
    if answer in options:
        return options.index(answer)
    letters = LETTERS[: len(options)]
    if isinstance(answer, str) and len(answer) == 1 and answer in letters:
        return letters.index(answer)
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(options):
        return answer
    raise InputError(
        f"{where}: the answer {answer!r:.60} is none of its {len(options)} options, nor a letter from A to "
        f"{letters[-1]}, nor a number from 0 to {len(options) - 1}"
    )


def _encode(texts: Sequence[str], tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    distinct = list(dict.fromkeys(texts))
    return dict(zip(distinct, tokenizer.encode_lines(distinct), strict=True))


def _scores_BC(model: nn.Module, params: Any, batch: DeviceBatch, dropout: BatchDropout | None) -> jax.Array:
    rows = {name: array.reshape(-1, array.shape[-1]) for name, array in batch.items() if array.ndim == 3}
    inputs = text_inputs(rows["input_ids"], rows["attention_mask"], rows["segment_ids"])
    scores_BC = apply(model, params, dropout, inputs, rows["attention_mask"])
    absent_BC = jnp.arange(scores_BC.shape[1])[None] >= batch["options"][:, None]
    return jnp.where(absent_BC, MASKED, scores_BC)
