"""Start of the settings of each task (the paper's Table 8, appendix A.3, or the task's own source), its family, and the
contradictions between settings. Imports neither jax nor TensorFlow.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from xlnet_jax.errors import InputError
from xlnet_jax.settings import parser
from xlnet_jax.settings.config import HeadConfig, OptimizerConfig
from xlnet_jax.settings.parser import CommandLine
from xlnet_jax.settings.rules import absolute_positions, run_contradictions
from xlnet_jax.tasks.config import FinetuneConfig, QuestionAnsweringConfig, TaskDataConfig

if TYPE_CHECKING:
    from xlnet_jax.tasks.task import Task


@dataclass(frozen=True)
class _Start:
    """Settings that differ from task to task."""

    head: HeadConfig
    seq_len: int
    batch_size: int
    learning_rate: float
    steps: int
    warmup: int
    layer_decay: float = 1.0
    max_answer_len: int = QuestionAnsweringConfig().max_answer_len

    def config(self, task: str) -> FinetuneConfig:
        """Return all settings of a task."""
        return FinetuneConfig(
            task=task,
            steps=self.steps,
            head=self.head,
            data=TaskDataConfig(batch_size=self.batch_size, seq_len=self.seq_len),
            qa=QuestionAnsweringConfig(max_answer_len=self.max_answer_len),
            optimizer=OptimizerConfig(
                learning_rate=self.learning_rate, warmup_steps=self.warmup, layer_decay=self.layer_decay
            ),
        )


_LABEL, _NUMBER, _LABELS = HeadConfig("classification"), HeadConfig("regression"), HeadConfig("multilabel")
_SPAN, _OPTION, _WORDS = (
    HeadConfig("question_answering"), HeadConfig("multiple_choice"), HeadConfig("token_classification")
)  # fmt: skip

# Table 8: MNLI, also for tasks of its size, and Yelp; SQuAD, with warmup and layer-wise decay of run_squad.py; RACE.
_MNLI = _Start(_LABEL, 128, 128, 2e-5, 10_000, 1_000)
_YELP = _Start(_LABEL, 512, 128, 1e-5, 10_000, 1_000)
_SQUAD = _Start(_SPAN, 512, 48, 3e-5, 8_000, 1_000, 0.75)
_RACE = _Start(_OPTION, 512, 32, 2e-5, 12_000, 1_000)
# The original's README: STS-B and IMDB.
_STS_B = _Start(_NUMBER, 128, 32, 5e-5, 1_200, 120)
_IMDB = _Start(_LABEL, 512, 32, 2e-5, 4_000, 500)
# STS-B with the learning rate of MNLI, for tasks of its size.
_SMALL = replace(_STS_B, head=_LABEL, learning_rate=2e-5)
# The Chinese XLNet (github.com/ymcui/Chinese-XLNet, fine-tuning details).
_CMRC = _Start(_SPAN, 512, 16, 3e-5, 2_400, 240, 0.75, max_answer_len=40)
_DRCD = replace(_CMRC, steps=3_600, warmup=360, max_answer_len=30)
# RACE with fewer steps: DREAM, which the paper lacks, has 6,116 training questions.
_DREAM = replace(_RACE, steps=2_000, warmup=200)
# Named entities, which the paper lacks: of the values that BERT's paper searched (appendix A.3), the larger learning
# rate and the smaller batch.
_NER = _Start(_WORDS, 256, 16, 5e-5, 2_000, 200)
# The paper finetunes for no ranking: RACE, where texts also come in groups.
_RANKING = replace(_RACE, head=_NUMBER)

_STARTS = {
    **dict.fromkeys(("mnli", "ax", "qqp", "qnli", "sst-2"), _MNLI),
    **dict.fromkeys(("cola", "mrpc", "rte", "wnli", "classification"), _SMALL),
    "regression": replace(_SMALL, head=_NUMBER),
    "multilabel": replace(_SMALL, head=_LABELS),
    "sts-b": _STS_B,
    "imdb": _IMDB,
    **dict.fromkeys(("yelp-2", "yelp-5"), _YELP),
    **dict.fromkeys(("squad", "squad2"), _SQUAD),
    "cmrc2018": _CMRC,
    "drcd": _DRCD,
    "race": _RACE,
    **dict.fromkeys(("dream", "multiple_choice"), _DREAM),
    **dict.fromkeys(("ner", "token_classification"), _NER),
    "ranking": _RANKING,
}
DEFAULTS: dict[str, Callable[[], FinetuneConfig]] = {
    task: partial(start.config, task) for task, start in _STARTS.items()
}


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


EXAMPLE = "  python -m xlnet_jax.finetune --task classification --init runs/mine --train mine.csv --eval dev.csv"


def parse_finetuning(argv: Sequence[str], prog: str, description: str) -> FinetuneConfig:
    """Return the settings of finetuning from a command line, starting from those of its --task. Raises InputError on
    words that cannot be read, and on settings that contradict each other; prints and exits on --help."""
    line = CommandLine.of(argv)
    default, origin = (
        parser.named_default(each, "--task", DEFAULTS, "classification") for each in (line, line.of_file_alone)
    )
    config = parser.parse(FinetuneConfig, line, prog, f"{description}\n\n{EXAMPLE}", default, origin)
    validate_finetuning(config)
    return config


def validate_finetuning(config: FinetuneConfig) -> None:
    """Raise InputError with the first contradiction. Each family of tasks checks its own settings besides."""
    for broken in _contradictions(config):
        raise InputError(broken)


def _contradictions(config: FinetuneConfig) -> Iterator[str]:
    if not config.init:
        yield "`init` is missing: name the checkpoint to start from, as runs/mine or tiny, which comes with the package"
    if not (config.train or config.eval or config.predict):
        yield "nothing to do: give `train` to learn from, or `eval` or `predict` for a finetuned `init`"
    yield from run_contradictions(config)
    if config.mesh.context > 1:
        yield f"mesh.context {config.mesh.context}: only the windows of pretraining are divided; leave it at 1"
    yield from absolute_positions(config.model, config.data.seq_len)
    if config.epochs is not None and "steps" in config.given:
        yield f"`epochs` {config.epochs:g} and `steps` {config.steps} both say how long to train: leave one of them out"
    if config.reinitialize and not config.train:
        yield "`reinitialize` draws all weights afresh: give `train` to learn some"
    if config.seed and config.seed not in config.seeds:  # a run writes its own seed into config.json
        yield f"`seed` {config.seed}: set it by `seeds`, which gives each run its seed; give `seeds` {config.seed}"
    if config.head.task != DEFAULTS[config.task]().head.task:
        yield f"head.task {config.head.task} comes with `task` {config.task}: leave it out"
    if (config.selection.patience or config.selection.metric) and not config.eval:
        yield "selection.metric and selection.patience choose by the scores of `eval`: give it examples"
    if len(set(config.seeds)) < len(config.seeds) or not config.seeds:
        yield f"`seeds` {' '.join(map(str, config.seeds))}: give one or more, each once"
