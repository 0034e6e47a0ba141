"""Start of the settings of each task: the paper's Table 8 (appendix A.3), or the task's own source."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from xlnet_jax.settings.config import HeadConfig, OptimizerConfig
from xlnet_jax.tasks.config import FinetuneConfig, QuestionAnsweringConfig, TaskDataConfig


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
