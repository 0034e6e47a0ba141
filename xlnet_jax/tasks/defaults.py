"""Default settings of each task (from the paper's Table 8, appendix A.3, or the task's own source), its family, and
contradictions between settings. Imports neither jax nor TensorFlow.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from xlnet_jax.errors import InputError
from xlnet_jax.settings import parser
from xlnet_jax.settings.config import CheckpointConfig, HeadConfig, LogConfig, ModelConfig, OptimizerConfig
from xlnet_jax.settings.parser import CommandLine
from xlnet_jax.settings.resolution import Resolution
from xlnet_jax.settings.rules import absolute_positions, head_contradictions, run_contradictions
from xlnet_jax.tasks.config import FinetuneConfig, QuestionAnsweringConfig, TaskDataConfig

if TYPE_CHECKING:
    from xlnet_jax.tasks.task import Task


def _tasks(
    *names: str,
    head: Any,
    learning_rate: float,
    steps: int,
    seq_len: int = 128,
    batch_size: int = 32,
    warmup_steps: int | None = None,
    layer_decay: float = 1.0,
    max_query_len: int = TaskDataConfig().max_query_len,
    max_answer_len: int = QuestionAnsweringConfig().max_answer_len,
) -> dict[str, Callable[[], FinetuneConfig]]:
    """Return the defaults of tasks that share them, by name. warmup_steps: None = a tenth of the steps."""

    def start(name: str) -> FinetuneConfig:
        warmup = steps // 10 if warmup_steps is None else warmup_steps
        return FinetuneConfig(
            task=name,
            steps=steps,
            model=ModelConfig(mem_len=0),
            head=head if isinstance(head, HeadConfig) else HeadConfig(head),
            data=TaskDataConfig(batch_size=batch_size, seq_len=seq_len, max_query_len=max_query_len),
            qa=QuestionAnsweringConfig(max_answer_len=max_answer_len),
            optimizer=OptimizerConfig(learning_rate=learning_rate, warmup_steps=warmup, layer_decay=layer_decay),
            checkpoint=CheckpointConfig(every_steps=500, keep=1),
            log=LogConfig(every_steps=50),
        )

    return {name: partial(start, name) for name in names}


DEFAULTS: dict[str, Callable[[], FinetuneConfig]] = {
    # Table 8: MNLI, also for tasks of its size; Yelp; SQuAD, with warmup and layer-wise decay of run_squad.py; RACE.
    **_tasks(
        "mnli", "ax", "qqp", "qnli", "sst-2",
        head="classification", batch_size=128, learning_rate=2e-5, steps=10_000,
    ),
    **_tasks(
        "yelp-2", "yelp-5",
        head="classification", seq_len=512, batch_size=128, learning_rate=1e-5, steps=10_000,
    ),
    **_tasks(
        "squad", "squad2",
        head="question_answering", seq_len=512, batch_size=48, learning_rate=3e-5, steps=8_000, warmup_steps=1_000,
        layer_decay=0.75,
    ),
    **_tasks(
        "race",
        head="multiple_choice", seq_len=512, max_query_len=128, learning_rate=2e-5, steps=12_000, warmup_steps=1_000,
    ),
    # The original's README: STS-B and IMDB.
    **_tasks("sts-b", head="regression", learning_rate=5e-5, steps=1_200),
    **_tasks("imdb", head="classification", seq_len=512, learning_rate=2e-5, steps=4_000, warmup_steps=500),
    # The settings of STS-B with the learning rate of MNLI, for tasks of the size of STS-B.
    **_tasks("cola", "mrpc", "rte", "wnli", "classification", head="classification", learning_rate=2e-5, steps=1_200),
    **_tasks("regression", head="regression", learning_rate=2e-5, steps=1_200),
    **_tasks("multilabel", head="multilabel", learning_rate=2e-5, steps=1_200),
    # The Chinese XLNet (github.com/ymcui/Chinese-XLNet, fine-tuning details).
    **_tasks(
        "cmrc2018",
        head="question_answering", seq_len=512, batch_size=16, learning_rate=3e-5, steps=2_400, layer_decay=0.75,
        max_answer_len=40,
    ),
    **_tasks(
        "drcd",
        head="question_answering", seq_len=512, batch_size=16, learning_rate=3e-5, steps=3_600, layer_decay=0.75,
        max_answer_len=30,
    ),
    # CLUE's baselines with XLNet (baselines/models/xlnet/run_classifier_*.sh): three epochs of each.
    **_tasks("afqmc", head="classification", learning_rate=2e-5, steps=3_200),
    **_tasks("tnews", head="classification", learning_rate=2e-5, steps=5_000),
    **_tasks("iflytek", head="classification", learning_rate=2e-5, steps=1_100),
    **_tasks("cmnli", head="classification", learning_rate=2e-5, steps=36_700),
    **_tasks("cluewsc2020", head="classification", learning_rate=2e-5, steps=120),
    **_tasks("csl", head="classification", learning_rate=2e-5, steps=1_900),
    # CLUE's run_mrc_c3.sh, eight epochs; and run_mrc_chid.sh, but one epoch, and with room for more text.
    **_tasks(
        "c3",
        head="multiple_choice", seq_len=512, batch_size=24, max_query_len=128, learning_rate=2e-5, steps=4_000,
        warmup_steps=200,
    ),
    **_tasks(
        "chid",
        head="multiple_choice", seq_len=160, batch_size=24, max_query_len=16, learning_rate=2e-5, steps=24_000,
        warmup_steps=1_400,
    ),
    # The settings of RACE with fewer steps: DREAM, which is not in the paper, has 6,116 training questions.
    **_tasks(
        "dream", "multiple_choice",
        head="multiple_choice", seq_len=512, max_query_len=128, learning_rate=2e-5, steps=2_000,
    ),
    # Named entities are not in the paper. Of the values searched in BERT's paper (appendix A.3): the largest learning
    # rate and the smallest batch.
    **_tasks(
        "ner", "token_classification",
        head="token_classification", seq_len=256, batch_size=16, learning_rate=5e-5, steps=2_000,
    ),
    # The paper does not finetune for ranking. The settings of RACE, where texts also come in groups.
    **_tasks("ranking", head="regression", seq_len=512, learning_rate=2e-5, steps=12_000, warmup_steps=1_000),
    # Sentence-BERT (Reimers & Gurevych 2019, section 3.1): mean, learning rate, warmup over a tenth. The batch is
    # larger than its 16, because the texts of a batch are the negatives of each other.
    **_tasks(
        "embedding",
        head=HeadConfig("embedding", summary="mean", use_projection=False), batch_size=64, learning_rate=2e-5,
        steps=2_000,
    ),
}  # fmt: skip
"""Starting settings of each task: a row is a call of `_tasks`"""


def make_task(config: FinetuneConfig) -> "Task[Any, Any]":
    """Return the task that the settings name. Raises InputError if other settings contradict it."""
    return family_of(config)(config)


def family_of(config: FinetuneConfig) -> "type[Task[Any, Any]]":
    """Return the class of the task that the settings name. The classes import jax, so they are imported here."""
    from xlnet_jax.tasks.classification.task import Classification, Multilabel, Regression
    from xlnet_jax.tasks.embedding import DocumentEmbedding, PairEmbedding
    from xlnet_jax.tasks.multiple_choice import MultipleChoice
    from xlnet_jax.tasks.question_answering.task import QuestionAnswering
    from xlnet_jax.tasks.ranking.task import Ranking
    from xlnet_jax.tasks.token_classification import TokenClassification

    by_task = {"ranking": Ranking}
    by_head = {
        "classification": Classification,
        "regression": Regression,
        "multilabel": Multilabel,
        "question_answering": QuestionAnswering,
        "multiple_choice": MultipleChoice,
        "token_classification": TokenClassification,
        "embedding": DocumentEmbedding if config.ranking.documents else PairEmbedding,
    }
    return by_task.get(config.task) or by_head[config.head.task]


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
        yield InputError("nothing to do: give `train`, or `eval` or `predict` for a finetuned `init`")
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
    if config.balance != "none" and config.head.task not in ("classification", "token_classification"):
        why = f": `task` {config.task} has no classes to balance: leave it out, as only classification and tagging do"
        yield InputError("balance", config.balance, why)
    if config.frozen and config.head.task == "embedding":
        yield InputError(
            "frozen", "", f"with `task` {config.task}: its head has no weights, so nothing would be trained"
        )
    if config.frozen and config.optimizer.method == "muon":
        why = "with `frozen`: it is for the matrices in layers, which are not trained; give adamw"
        yield InputError("optimizer.method", "muon", why)
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
