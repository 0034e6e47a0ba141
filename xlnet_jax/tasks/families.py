"""Family of every task, imported when it is used. A new family is a folder and one line here; a new task of a family is
its settings (defaults.py)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from xlnet_jax.tasks.config import FinetuneConfig

if TYPE_CHECKING:
    from xlnet_jax.tasks.base import Task

_OF_HEAD = {
    "classification": "classification.task:Classification",
    "regression": "classification.task:Regression",
    "multilabel": "classification.task:Multilabel",
    "question_answering": "question_answering.task:QuestionAnswering",
    "multiple_choice": "multiple_choice.task:MultipleChoice",
    "token_classification": "token_classification.task:TokenClassification",
}
_OF_TASK = {"ranking": "ranking.task:Ranking"}
"""Families of tasks that share the head of another family"""


def with_files(config: FinetuneConfig) -> FinetuneConfig:
    """Replace folders and datasets in `train`, `eval` and `predict` by their files of training, evaluation and test."""
    if not _name(config).startswith("classification."):
        return config
    from xlnet_jax.tasks.classification.task import with_files_of_roles

    return with_files_of_roles(config)


def make_task(config: FinetuneConfig) -> "Task[Any, Any]":
    """Return the task that the settings name. Raises InputError where they contradict it."""
    return _family(_name(config))(config)


def is_of_one_family(a: FinetuneConfig, b: FinetuneConfig) -> bool:
    """Return whether the tasks of two settings read and cut their texts by the same code."""
    return _name(a) == _name(b)


def _name(config: FinetuneConfig) -> str:
    return _OF_TASK.get(config.task) or _OF_HEAD[config.head.task]


def _family(name: str) -> Any:
    module, _, family = name.partition(":")
    return getattr(import_module(f"xlnet_jax.tasks.{module}"), family)
