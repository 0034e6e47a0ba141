"""The family of every task: what reads, scores and measures it."""

from collections.abc import Callable
from typing import Any

from xlnet_jax.tasks import classification, multiple_choice, question_answering, ranking, token_classification
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.task import Task

_OF_HEAD: dict[str, Callable[[FinetuneConfig], Task[Any]]] = {
    "classification": classification.TextTask,
    "regression": classification.TextTask,
    "question_answering": question_answering.QuestionAnswering,
    "multiple_choice": multiple_choice.MultipleChoice,
    "token_classification": token_classification.TokenClassification,
}


def with_files(config: FinetuneConfig) -> FinetuneConfig:
    """With folders and datasets that stand for their files of training, evaluation and test."""
    return classification.with_files_of_roles(config) if _family(config) is classification.TextTask else config


def make_task(config: FinetuneConfig) -> Task[Any]:
    """The task that the settings name. InputError where they contradict it."""
    return _family(config)(config)


def _family(config: FinetuneConfig) -> Callable[[FinetuneConfig], Task[Any]]:
    return ranking.Ranking if config.task == "ranking" else _OF_HEAD[config.head.task]
