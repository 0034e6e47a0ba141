"""Settings of a finetuning run. Imports neither jax nor TensorFlow; tasks/defaults.py has the start for each task."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from xlnet_jax.settings.config import (
    BatchConfig,
    CheckpointConfig,
    HeadConfig,
    LogConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
)
from xlnet_jax.settings.fields import above, at_least, between, operational, setting


@dataclass(frozen=True)
class ColumnsConfig:
    """Columns of a table: names, or numbers from 0 where a file has no header. None = the task's own."""

    text: str | None = setting(None, "common")
    """the text, or the first of two"""
    text_pair: str | None = setting(None, "common")
    """the second text; None = examples have one text"""
    label: str | None = setting(None, "common")
    """the label, or the number to predict (regression)"""
    id: str | None = None
    """name of an example; None = its number, from 0, or the index column of GLUE's test files"""
    label_separator: str = ","
    """multilabel: separator between the labels of a text in one field; a list needs none"""
    header: bool = True
    """the first line of TSV and CSV names the columns"""


@dataclass(frozen=True)
class TaskDataConfig(BatchConfig):
    """Batches of examples, padded to a few lengths."""

    batch_size: int = setting(32, at_least(1), "common")
    """examples of the global batch, over all devices and hosts; for question answering, windows of documents"""
    seq_len: int = setting(128, at_least(1), "common")
    """longest text with its special tokens, in tokens"""
    buckets: tuple[int, ...] = operational((), at_least(1))
    """lengths that batches are padded to, in tokens; none = an eighth, a quarter, half and all of seq_len"""
    padding_side: Literal["left", "right"] = operational("left")
    """side of the padding; left as in the original; the results do not depend on it"""
    long_texts: Literal["tail", "head_tail", "memory"] = setting("tail", "common")
    """treatment of a text that is too long: tail = cut its end; head_tail = cut its middle; memory = read its windows
    of seq_len one after the other, the last with the memory of those before (model.mem-len), gradients stopped"""
    max_windows: int = setting(4, at_least(1))
    """long_texts memory only: maximum number of windows of a text; earlier tokens are left out"""


@dataclass(frozen=True)
class MultilabelConfig:
    """Texts with any number of labels each."""

    threshold: float = operational(0.5, between(0, 1, "()"))
    """probability from which a text has a label"""


@dataclass(frozen=True)
class QuestionAnsweringConfig:
    """Extractive question answering (`run_squad.py`)."""

    doc_stride: int = setting(128, at_least(1))
    """tokens between the beginnings of two windows of a document"""
    max_query_len: int = setting(64, at_least(1))
    """longest question, in tokens; longer ones lose their end"""
    max_answer_len: int = operational(64, at_least(1))
    """longest answer, in tokens"""
    n_best: int = operational(5, at_least(1))
    """answers written for each question"""
    start_n_top: int = operational(5, at_least(1))
    """number of likeliest starts that are tried"""
    end_n_top: int = operational(5, at_least(1))
    """number of likeliest ends that are tried for each start"""
    null_threshold: float | None = operational(None)
    """null odds above which a question counts as unanswerable; None = the value that scores best in evaluation"""


@dataclass(frozen=True)
class ChoiceConfig:
    """Multiple choice (`run_race.py`)."""

    max_qa_len: int = setting(128, at_least(1))
    """longest question with an option, in tokens; longer ones lose their beginning"""


@dataclass(frozen=True)
class RankingConfig:
    """Document ranking (paper, section 3.3): documents by their score for a query. --train and --eval are qrels,
    --predict runs or queries."""

    documents: tuple[str, ...] = operational(())
    """files of documents: SMART's form (Cranfield), JSON lines (id, title, text) or TSV (id, text)"""
    queries: tuple[str, ...] = operational(())
    """files of queries in the same forms"""
    judgements: Literal["graded", "cranfield"] = "graded"
    """graded = higher is better; cranfield = its codes: 1 is the best, documents of code -1 (sources of the questions)
    are left out, and queries are counted by their order instead of their ids"""
    loss: Literal["pairwise", "softmax", "pointwise"] = "pairwise"
    """pairwise = log(1 + exp(other - relevant)) for a relevant document and each other one of its group; softmax = the
    relevant one against all others at once; pointwise = binary cross-entropy of each document's relevance"""
    negatives: int = setting(4, at_least(1))
    """documents that are not relevant for each relevant one, drawn anew each epoch: from those judged not relevant and
    the candidates, and from all documents where these are too few"""
    candidates: tuple[str, ...] = operational(())
    """TREC run files whose documents are ranked anew in evaluation; none = all judged documents, and others"""
    depth: int = setting(100, at_least(1))
    """best documents of a run that are ranked anew, for each query"""
    others: int = operational(100, at_least(0))
    """random documents that are ranked together with the judged ones, where there are no candidates"""
    max_query_len: int = setting(64, at_least(1))
    """longest query, in tokens; longer ones lose their end; the rest of data.seq-len is for the document"""
    max_passages: int = setting(1, at_least(1))
    """maximum number of passages that a long document is cut into, each scored by itself; the best score counts; 1 =
    cut its end instead"""
    cutoff: int = operational(20, at_least(1))
    """k of NDCG@k, ERR@k and P@k, in documents"""
    gain: Literal["exponential", "linear"] = operational("exponential")
    """gain of NDCG: 2^grade - 1, as gdeval has it for ClueWeb, or the grade itself, as in trec_eval"""
    relevant_from: int = setting(1, at_least(1))
    """lowest grade that counts as relevant: in training, and in MAP, MRR and P@k"""
    max_grade: int = operational(4, at_least(1))
    """highest grade, from which ERR computes probabilities; 4 in gdeval"""


@dataclass(frozen=True)
class SelectionConfig:
    """Choice of the checkpoint that is the result."""

    every_steps: int = operational(500, at_least(1), "common")
    """steps between evaluations; the run always ends with one"""
    metric: str | None = operational(None, "common")
    """metric that chooses the best checkpoint; None = the task's own"""
    patience: int = operational(0, at_least(0))
    """consecutive evaluations without a better value that end the run; 0 = run to the last step"""


@dataclass(frozen=True)
class FinetuneConfig(RunConfig):
    """One finetuning run: from a pretrained checkpoint to a task."""

    task: str = setting("classification", "common")
    """task to finetune for; also the starting point of all other settings: classification, regression, multilabel, a
    task of GLUE such as sst-2, imdb, yelp-2, yelp-5, squad, squad2, cmrc2018, drcd, race, dream, multiple_choice, ner,
    token_classification or ranking"""
    init: str = setting("", "common")
    """checkpoint to start from, with its tokenizer: this project's, the 2019 code's or Hugging Face's, tiny, which
    comes with the package, or the name of a model on the Hugging Face Hub, as xlnet/xlnet-base-cased"""
    train: tuple[str, ...] = operational((), "common")
    """training examples: files, globs or tfds:NAME"""
    eval: tuple[str, ...] = operational((), "common")
    """labelled examples that choose the best checkpoint; none = the last checkpoint is the result"""
    predict: tuple[str, ...] = operational((), "common")
    """examples without labels: predictions are written for them at the end"""
    workdir: str | None = operational(None, "common")
    """folder of the run; None = runs/TASK, or runs/TASK-predictions without --train"""
    tokenizer: str | None = operational(None, "common")
    """SentencePiece model, where --init came without one"""
    reinitialize: bool = False
    """draw all weights afresh and take only sizes, tokenizer and model.init-std from --init: the baseline that shows
    the gain from pretraining"""
    narrow_start: bool = operational(True)  # identity compares the settings that it comes to
    """for a network narrower than 768, in place of what is not given: a learning rate for its width, the dropout of its
    pretraining (but for labels of words) and, for XLNet, the mean of all hidden states as summary"""
    steps: int = setting(10_000, at_least(1), "common")
    """number of training steps"""
    epochs: float | None = operational(None, above(0), "common")  # identity compares the steps that they come to
    """passes over the examples; replaces steps"""
    seeds: tuple[int, ...] = operational((0,), at_least(0), "common")  # identity compares the seed of each run
    """seeds of the head, dropout and the order of examples; several = one run each, then mean and deviation"""
    seed: int = setting(0, at_least(0))
    """seed of one run, set from --seeds"""
    objective: Annotated[str, tyro.conf.Fixed, tyro.conf.Suppress] = operational("")
    """objective that the weights of --init were pretrained by; set from them, and stored with each checkpoint"""
    model: ModelConfig = ModelConfig(mem_len=0)
    head: HeadConfig = HeadConfig("classification")
    columns: ColumnsConfig = ColumnsConfig()
    data: TaskDataConfig = TaskDataConfig()
    multilabel: MultilabelConfig = MultilabelConfig()
    qa: QuestionAnsweringConfig = QuestionAnsweringConfig()
    choice: ChoiceConfig = ChoiceConfig()
    ranking: RankingConfig = RankingConfig()
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=2e-5, warmup_steps=1_000)
    checkpoint: CheckpointConfig = CheckpointConfig(every_steps=500, keep=1)
    selection: SelectionConfig = SelectionConfig()
    log: LogConfig = LogConfig(every_steps=50)


def folder_of(config: FinetuneConfig) -> str:
    """Return `workdir`, or a name made of the task."""
    return config.workdir or f"runs/{config.task}{'' if config.train else '-predictions'}"
