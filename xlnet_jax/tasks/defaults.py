"""Start of the settings of each task: the paper's Table 8 (appendix A.3), or the task's own source."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal

from xlnet_jax.settings.config import HeadConfig, OptimizerConfig
from xlnet_jax.tasks.config import FinetuneConfig, QuestionAnsweringConfig, TaskDataConfig

_HEADS: dict[str, Literal["regression", "multilabel"]] = {
    "sts-b": "regression",
    "regression": "regression",
    "multilabel": "multilabel",
}


def _settings(
    task: str, seq_len: int, batch_size: int, learning_rate: float, steps: int, warmup: int
) -> FinetuneConfig:
    return FinetuneConfig(
        task=task,
        steps=steps,
        head=HeadConfig(_HEADS.get(task, "classification")),
        data=TaskDataConfig(batch_size=batch_size, seq_len=seq_len),
        optimizer=OptimizerConfig(learning_rate=learning_rate, warmup_steps=warmup),
    )


def _large(task: str) -> FinetuneConfig:
    """Return the settings of MNLI in Table 8 (appendix A.3), for tasks of its size."""
    return _settings(task, 128, 128, 2e-5, 10_000, 1_000)


def _small(task: str) -> FinetuneConfig:
    """Return the settings of STS-B in the original's README, with the learning rate of MNLI, for tasks of its size."""
    return _settings(task, 128, 32, 2e-5, 1_200, 120)


def _yelp(task: str) -> FinetuneConfig:
    """Return the settings of Yelp in Table 8 (appendix A.3)."""
    return _settings(task, 512, 128, 1e-5, 10_000, 1_000)


def _sts_b(task: str) -> FinetuneConfig:
    """Return the settings of the original's README."""
    return _settings(task, 128, 32, 5e-5, 1_200, 120)


def _imdb(task: str) -> FinetuneConfig:
    """Return the settings of the original's README."""
    return _settings(task, 512, 32, 2e-5, 4_000, 500)


_SETTINGS: dict[str, Callable[[str], FinetuneConfig]] = {
    **dict.fromkeys(("mnli", "ax", "qqp", "qnli", "sst-2"), _large),
    **dict.fromkeys(("cola", "mrpc", "rte", "wnli", "classification", "regression", "multilabel"), _small),
    "sts-b": _sts_b,
    "imdb": _imdb,
    "yelp-2": _yelp,
    "yelp-5": _yelp,
}


def squad() -> FinetuneConfig:
    """Return the settings of the paper's Table 8, with warmup and layer-wise decay of the original's run_squad.py."""
    return FinetuneConfig(
        task="squad",
        steps=8_000,
        head=HeadConfig("question_answering"),
        data=TaskDataConfig(batch_size=48, seq_len=512),
        optimizer=OptimizerConfig(learning_rate=3e-5, warmup_steps=1_000, layer_decay=0.75),
    )


def squad2() -> FinetuneConfig:
    """Return the settings of `squad`."""
    return replace(squad(), task="squad2")


def cmrc2018() -> FinetuneConfig:
    """Return the settings of the Chinese XLNet (github.com/ymcui/Chinese-XLNet, fine-tuning details)."""
    return FinetuneConfig(
        task="cmrc2018",
        steps=2_400,
        head=HeadConfig("question_answering"),
        data=TaskDataConfig(batch_size=16, seq_len=512),
        qa=QuestionAnsweringConfig(max_answer_len=40),
        optimizer=OptimizerConfig(learning_rate=3e-5, warmup_steps=240, layer_decay=0.75),
    )


def drcd() -> FinetuneConfig:
    """Return the settings of the Chinese XLNet (github.com/ymcui/Chinese-XLNet, fine-tuning details)."""
    return replace(
        cmrc2018(),
        task="drcd",
        steps=3_600,
        qa=QuestionAnsweringConfig(max_answer_len=30),
        optimizer=replace(cmrc2018().optimizer, warmup_steps=360),
    )


def race() -> FinetuneConfig:
    """Return the settings of RACE (paper, Table 8)."""
    return FinetuneConfig(
        task="race",
        steps=12_000,
        head=HeadConfig("multiple_choice"),
        data=TaskDataConfig(batch_size=32, seq_len=512),
        optimizer=OptimizerConfig(learning_rate=2e-5, warmup_steps=1_000),
    )


def dream() -> FinetuneConfig:
    """Return the settings of `race` with fewer steps: DREAM, which the paper lacks, has 6,116 training questions."""
    return FinetuneConfig(
        task="dream",
        steps=2_000,
        head=HeadConfig("multiple_choice"),
        data=TaskDataConfig(batch_size=32, seq_len=512),
        optimizer=OptimizerConfig(learning_rate=2e-5, warmup_steps=200),
    )


def multiple_choice() -> FinetuneConfig:
    """Return the settings of `dream`, for the user's own questions with options."""
    return replace(dream(), task="multiple_choice")


def ner() -> FinetuneConfig:
    """Return settings for named entities, which the paper lacks: of the values that BERT's paper searched (appendix
    A.3), the larger learning rate and the smaller batch."""
    return FinetuneConfig(
        task="ner",
        steps=2_000,
        head=HeadConfig("token_classification"),
        data=TaskDataConfig(batch_size=16, seq_len=256),
        optimizer=OptimizerConfig(learning_rate=5e-5, warmup_steps=200),
    )


def token_classification() -> FinetuneConfig:
    """Return the settings of `ner`, for the user's own labels of words."""
    return replace(ner(), task="token_classification")


def ranking() -> FinetuneConfig:
    """Return the paper's settings for RACE (Table 8), where texts also come in groups: it finetunes for no ranking."""
    return FinetuneConfig(
        task="ranking", steps=12_000, head=HeadConfig("regression"), data=TaskDataConfig(batch_size=32, seq_len=512)
    )


DEFAULTS: dict[str, Callable[[], FinetuneConfig]] = {
    **{task: partial(settings, task) for task, settings in _SETTINGS.items()},
    **{
        f.__name__: f
        for f in (
            squad, squad2, cmrc2018, drcd, race, dream, multiple_choice, ner, token_classification, ranking,
        )
    },
}  # fmt: skip
