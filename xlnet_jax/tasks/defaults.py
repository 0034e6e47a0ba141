"""Default settings of each task (from the paper's Table 8, appendix A.3, or the task's own source), its family, and
contradictions between settings. Imports neither jax nor TensorFlow.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from xlnet_jax.errors import InputError
from xlnet_jax.settings import parser
from xlnet_jax.settings.config import HeadConfig, OptimizerConfig
from xlnet_jax.settings.parser import CommandLine
from xlnet_jax.settings.resolution import Resolution
from xlnet_jax.settings.rules import absolute_positions, head_contradictions, run_contradictions
from xlnet_jax.tasks.config import FinetuneConfig, QuestionAnsweringConfig, TaskDataConfig

if TYPE_CHECKING:
    from xlnet_jax.tasks.task import Task


def _start(
    task: str,
    head: Any,
    seq_len: int,
    batch_size: int,
    learning_rate: float,
    steps: int,
    warmup: int,
    layer_decay: float = 1.0,
    max_answer_len: int = QuestionAnsweringConfig().max_answer_len,
) -> FinetuneConfig:
    return FinetuneConfig(
        task=task,
        steps=steps,
        head=head if isinstance(head, HeadConfig) else HeadConfig(head),
        data=TaskDataConfig(batch_size=batch_size, seq_len=seq_len),
        qa=QuestionAnsweringConfig(max_answer_len=max_answer_len),
        optimizer=OptimizerConfig(learning_rate=learning_rate, warmup_steps=warmup, layer_decay=layer_decay),
    )


_VECTOR = HeadConfig("embedding", summary="mean", use_projection=False)
_START_OF: dict[str, tuple[Any, ...]] = {
    # Table 8: MNLI, also for tasks of its size; Yelp; SQuAD, with warmup and layer-wise decay of run_squad.py; RACE.
    **dict.fromkeys(("mnli", "ax", "qqp", "qnli", "sst-2"), ("classification", 128, 128, 2e-5, 10_000, 1_000)),
    **dict.fromkeys(("yelp-2", "yelp-5"), ("classification", 512, 128, 1e-5, 10_000, 1_000)),
    **dict.fromkeys(("squad", "squad2"), ("question_answering", 512, 48, 3e-5, 8_000, 1_000, 0.75)),
    "race": ("multiple_choice", 512, 32, 2e-5, 12_000, 1_000),
    # The original's README: STS-B and IMDB.
    "sts-b": ("regression", 128, 32, 5e-5, 1_200, 120),
    "imdb": ("classification", 512, 32, 2e-5, 4_000, 500),
    # The settings of STS-B with the learning rate of MNLI, for tasks of the size of STS-B.
    **dict.fromkeys(("cola", "mrpc", "rte", "wnli", "classification"), ("classification", 128, 32, 2e-5, 1_200, 120)),
    "regression": ("regression", 128, 32, 2e-5, 1_200, 120),
    "multilabel": ("multilabel", 128, 32, 2e-5, 1_200, 120),
    # The Chinese XLNet (github.com/ymcui/Chinese-XLNet, fine-tuning details).
    "cmrc2018": ("question_answering", 512, 16, 3e-5, 2_400, 240, 0.75, 40),
    "drcd": ("question_answering", 512, 16, 3e-5, 3_600, 360, 0.75, 30),
    # The settings of RACE with fewer steps: DREAM, which is not in the paper, has 6,116 training questions.
    **dict.fromkeys(("dream", "multiple_choice"), ("multiple_choice", 512, 32, 2e-5, 2_000, 200)),
    # Named entities are not in the paper. Of the values searched in BERT's paper (appendix A.3): the largest learning
    # rate and the smallest batch.
    **dict.fromkeys(("ner", "token_classification"), ("token_classification", 256, 16, 5e-5, 2_000, 200)),
    # The paper does not finetune for ranking. The settings of RACE, where texts also come in groups.
    "ranking": ("regression", 512, 32, 2e-5, 12_000, 1_000),
    # Sentence-BERT (Reimers & Gurevych 2019, section 3.1): mean, learning rate, warmup over a tenth. The batch is
    # larger than its 16, because the texts of a batch are the negatives of each other.
    "embedding": (_VECTOR, 128, 64, 2e-5, 2_000, 200),
}
"""head, data.seq-len, data.batch-size, optimizer.learning-rate, steps, optimizer.warmup-steps, optimizer.layer-decay,
qa.max-answer-len"""
DEFAULTS: dict[str, Callable[[], FinetuneConfig]] = {
    task: partial(_start, task, *values) for task, values in _START_OF.items()
}

_FAMILIES = {
    "classification": "classification.task:Classification",
    "regression": "classification.task:Regression",
    "multilabel": "classification.task:Multilabel",
    "question_answering": "question_answering.task:QuestionAnswering",
    "multiple_choice": "multiple_choice:MultipleChoice",
    "token_classification": "token_classification:TokenClassification",
    "embedding": "embedding:PairEmbedding",
}


def make_task(config: FinetuneConfig) -> "Task[Any, Any]":
    """Return the task that the settings name. Raises InputError if other settings contradict it."""
    module, _, family = family_of(config).partition(":")
    task: Task[Any, Any] = getattr(import_module(f"xlnet_jax.tasks.{module}"), family)(config)
    return task


def family_of(config: FinetuneConfig) -> str:
    """Return the module and class of a task, as module:class."""
    if config.task == "embedding" and config.ranking.documents:
        return "embedding:DocumentEmbedding"
    return "ranking.task:Ranking" if config.task == "ranking" else _FAMILIES[config.head.task]


EXAMPLE = "  python -m xlnet_jax.finetune --task classification --init runs/mine --train mine.csv --eval dev.csv"


def parse_finetuning(argv: Sequence[str], prog: str, description: str) -> FinetuneConfig:
    """Return the settings of finetuning from a command line, with the defaults of its --task. Raises InputError for
    unknown words, and for settings that contradict each other; prints and exits on --help."""
    line = CommandLine.of(argv)
    default, origin = (
        parser.named_default(each, "--task", DEFAULTS, "classification") for each in (line, line.of_file_alone)
    )
    config = parser.parse(FinetuneConfig, line, prog, f"{description}\n\n{EXAMPLE}", default, origin)
    validate_finetuning(config)
    return config


def validate_finetuning(config: FinetuneConfig) -> None:
    """Raise InputError for the first contradiction. Each family of tasks also checks its own settings."""
    for broken in _contradictions(config):
        raise broken


def _contradictions(config: FinetuneConfig) -> Iterator[InputError]:
    if not config.init:
        why = "is missing: name the checkpoint to start from, as runs/mine or tiny, which comes with the package"
        yield InputError("init", "", why)
    if not (config.train or config.eval or config.predict):
        yield InputError("nothing to do: give `train` to learn from, or `eval` or `predict` for a finetuned `init`")
    yield from run_contradictions(config)
    yield from head_contradictions(config.head)
    yield from split_contradictions(config)
    if config.mesh.context > 1:
        why = ": only the windows of pretraining are divided; leave it at 1"
        yield InputError("mesh.context", config.mesh.context, why)
    yield from absolute_positions(config.model, config.data.seq_len)
    if config.epochs is not None:
        why = f"and `steps` {config.steps} both say how long to train: leave one of them out"
        Resolution.of(config).refuse("steps", InputError("epochs", f"{config.epochs:g}", why))
    if config.reinitialize and not config.train:
        yield InputError("reinitialize", "", "initializes all weights randomly: give `train` to learn some")
    if config.seed and config.seed not in config.seeds:  # a run writes its own seed into config.json
        why = f": set it by `seeds`, which gives each run its seed; give `seeds` {config.seed}"
        yield InputError("seed", config.seed, why)
    if config.head.task != DEFAULTS[config.task]().head.task:
        yield InputError("head.task", config.head.task, f"comes with `task` {config.task}: leave it out")
    if (config.selection.patience or config.selection.metric) and not config.eval:
        yield InputError("`selection.metric` and `selection.patience` need the scores of `eval`: give it examples")
    if len(set(config.seeds)) < len(config.seeds) or not config.seeds:
        yield InputError("seeds", config.seeds, ": give one or more, each once")


def split_contradictions(config: FinetuneConfig) -> Iterator[InputError]:
    """Yield what is wrong with micro-batches, which `auto_fit` may choose too."""
    if config.head.task == "embedding" and (parts := config.optimizer.accumulate) > 1:
        why = (
            ": `task` embedding compares all texts of a batch with each other: leave it at 1, and lower "
            "`data.batch_size`"
        )
        yield InputError("optimizer.accumulate", parts, why)
