"""Family of every task. A new family is a folder and one line here; a new task of a family is its settings
(defaults.py)."""

from collections.abc import Callable
from typing import Any

from xlnet_jax.tasks.base import PredictingTask, Task
from xlnet_jax.tasks.classification.multilabel import Multilabel
from xlnet_jax.tasks.classification.task import TextTask, with_files_of_roles
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.multiple_choice.task import MultipleChoice
from xlnet_jax.tasks.question_answering.task import QuestionAnswering
from xlnet_jax.tasks.ranking.task import Ranking
from xlnet_jax.tasks.token_classification.task import TokenClassification

_OF_HEAD: dict[str, Callable[[FinetuneConfig], PredictingTask[Any]]] = {
    "classification": TextTask,
    "regression": TextTask,
    "multilabel": Multilabel,
    "question_answering": QuestionAnswering,
    "multiple_choice": MultipleChoice,
    "token_classification": TokenClassification,
}


def with_files(config: FinetuneConfig) -> FinetuneConfig:
    """Replace folders and datasets in `train`, `eval` and `predict` by their files of training, evaluation and test."""
    return with_files_of_roles(config) if _family(config) in (TextTask, Multilabel) else config


def make_task(config: FinetuneConfig) -> Task[Any]:
    """Return the task that the settings name. Raises InputError where they contradict it."""
    return _family(config)(config)


def task_of_head(config: FinetuneConfig) -> PredictingTask[Any]:
    """Return the task of the head, which predicts for values of Python code. Raises InputError as `make_task`."""
    return _OF_HEAD[config.head.task](config)


def is_of_one_family(a: FinetuneConfig, b: FinetuneConfig) -> bool:
    """Return whether the tasks of two settings read and cut their texts by the same code."""
    return _family(a) is _family(b)


def _family(config: FinetuneConfig) -> Callable[[FinetuneConfig], Task[Any]]:
    return Ranking if config.task == "ranking" else _OF_HEAD[config.head.task]
