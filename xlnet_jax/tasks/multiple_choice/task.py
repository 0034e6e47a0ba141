"""Multiple choice: which option answers a question about a text (`run_race.py`)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.kernels.numerics import MASKED
from xlnet_jax.models.inputs import text_inputs
from xlnet_jax.objectives.base import BatchDropout, DeviceBatch, apply
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.tasks.base import Loss, Prediction
from xlnet_jax.tasks.config import ColumnsConfig, FinetuneConfig
from xlnet_jax.tasks.encoding import encode_text
from xlnet_jax.tasks.features import Features
from xlnet_jax.tasks.losses import classification_loss_B
from xlnet_jax.tasks.multiple_choice.questions import LEVELS, Question, letter, read_questions, unlabelled_question

SPECIALS = 3  # <sep> behind the text, <sep> and <cls> behind the question
PREDICTIONS = "predictions.jsonl"


class MultipleChoice:
    """Questions with options in the form that the task names: race, dream, or else JSON lines."""

    metric = "accuracy"
    draws_anew = False

    def __init__(self, config: FinetuneConfig):
        self._form, self._columns, self._head = config.task, config.columns, config.head
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

    def read(self, paths: Sequence[str], labelled: bool) -> list[Question]:
        """Read questions, as `questions.read_questions`."""
        return read_questions(paths, labelled, self._form, self._columns)

    def examples_of(self, inputs: Sequence[Any]) -> list[Question]:
        """Return the questions, as `questions.unlabelled_question` reads each."""
        return [unlabelled_question(given, number) for number, given in enumerate(inputs)]

    def head(self, train: Sequence[Question]) -> HeadConfig:
        """Return a head for as many options as the longest list in the training examples."""
        return replace(self._head, num_labels=max(len(question.options) for question in train))

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
        contexts = _encoded([question.context for question in examples], tokenizer)
        asked = _encoded([q.asked(i) for q in examples for i in range(len(q.options))], tokenizer)
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

    def metrics(
        self, examples: Sequence[Question], features: Features, outputs: Mapping[str, np.ndarray]
    ) -> dict[str, float]:
        """Return accuracy, and the accuracy of each level of RACE, as fractions of 1."""
        right = outputs["probabilities"].argmax(-1) == np.array([question.answer for question in examples])
        found = {"accuracy": float(right.mean())}
        for level in LEVELS:
            if (of_level := np.array([question.level == level for question in examples])).any():
                found[f"accuracy_{level}"] = float(right[of_level].mean())
        return found

    def write(
        self, folder: epath.Path, examples: Sequence[Question], features: Features, outputs: Mapping[str, np.ndarray]
    ) -> list[str]:
        """Write predictions.jsonl: for each question its id, the letter and text of its answer, and the probability of
        each option."""
        with (folder / PREDICTIONS).open("w") as file:
            for question, probabilities in zip(examples, outputs["probabilities"], strict=True):
                best = int(probabilities.argmax())
                shown = [round(float(p), 6) for p in probabilities[: len(question.options)]]
                row = {
                    "id": question.id,
                    "answer": letter(best),
                    "text": question.options[best],
                    "probabilities": shown,
                }
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        return [PREDICTIONS]

    def predictions(
        self, examples: Sequence[Question], features: Features, outputs: Mapping[str, np.ndarray]
    ) -> list[Prediction]:
        """Return the likeliest option with the probability of each."""
        return [
            Prediction(question.options[row.argmax()], dict(zip(question.options, row.tolist(), strict=False)))
            for question, row in zip(examples, outputs["probabilities"], strict=True)
        ]


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


def _encoded(texts: Sequence[str], tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    distinct = list(dict.fromkeys(texts))
    return dict(zip(distinct, tokenizer.encode_lines(distinct), strict=True))


def _scores_BC(model: nn.Module, params: Any, batch: DeviceBatch, dropout: BatchDropout | None) -> jax.Array:
    rows = {name: array.reshape(-1, array.shape[-1]) for name, array in batch.items() if array.ndim == 3}
    inputs = text_inputs(rows["input_ids"], rows["attention_mask"], rows["segment_ids"])
    scores_BC = apply(model, params, dropout, inputs, rows["attention_mask"])
    absent_BC = jnp.arange(scores_BC.shape[1])[None] >= batch["options"][:, None]
    return jnp.where(absent_BC, MASKED, scores_BC)
