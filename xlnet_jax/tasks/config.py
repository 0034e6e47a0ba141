"""The settings of a finetuning run, and where those of each task start from. Imports neither jax nor TensorFlow."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from xlnet_jax.settings.config import (
    CheckpointConfig,
    DistributedConfig,
    HeadConfig,
    LogConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    operational,
)


@dataclass(frozen=True)
class ColumnsConfig:
    """What a table calls its columns: names, or numbers from 0 where a file has no header. None = the task's own."""

    text: str | None = None
    """the text, or the first of two"""
    text_pair: str | None = None
    """the second text; None = texts stand alone"""
    label: str | None = None
    """the label, or the number that regression learns"""
    id: str | None = None
    """names an example; None = its number, from 0, or what a test file of GLUE calls its index"""
    header: bool = True
    """the first line of TSV and CSV names the columns"""


@dataclass(frozen=True)
class TaskDataConfig:
    """Batches of examples, padded to a few lengths."""

    batch_size: int = 32
    """examples of the global batch, over all devices and hosts; of question answering, windows over documents"""
    seq_len: int = 128
    """longest text with its special tokens, in tokens"""
    buckets: tuple[int, ...] = operational(())
    """lengths that batches are padded to, in tokens; none = an eighth, a quarter, half and all of seq_len"""
    padding_side: Literal["left", "right"] = operational("left")
    """where padding stands; left as in the original; the results do not depend on it"""
    long_texts: Literal["tail", "head_tail", "memory"] = "tail"
    """of a text that is too long: tail = its end is cut; head_tail = its middle; memory = its windows of seq_len are
    read one after the other, the last with the memory of those before (model.mem-len), gradients stopped"""
    max_windows: int = 4
    """memory: windows of a text at the most; its first tokens are left out"""


@dataclass(frozen=True)
class QuestionAnsweringConfig:
    """Extractive question answering (`run_squad.py`)."""

    doc_stride: int = 128
    """tokens between the beginnings of two windows over a document"""
    max_query_len: int = 64
    """longest question, in tokens; its end is cut"""
    max_answer_len: int = operational(64)
    """longest answer, in tokens"""
    n_best: int = operational(5)
    """answers that are written for each question"""
    start_n_top: int = operational(5)
    """likeliest starts that are followed"""
    end_n_top: int = operational(5)
    """likeliest ends of each start"""
    null_threshold: float | None = operational(None)
    """null odds above which a question counts as unanswerable; None = the one that the evaluation finds best"""


@dataclass(frozen=True)
class ChoiceConfig:
    """Multiple choice (`run_race.py`)."""

    max_qa_len: int = 128
    """longest question with an option, in tokens; its beginning is cut"""


@dataclass(frozen=True)
class RankingConfig:
    """Document ranking (paper, section 3.3): documents by their score beside a query. --train and --eval are qrels,
    --predict runs or queries."""

    documents: tuple[str, ...] = operational(())
    """files of documents: SMART's form (Cranfield), JSON lines (id, title, text) or TSV (id, text)"""
    queries: tuple[str, ...] = operational(())
    """files of queries in the same forms"""
    judgements: Literal["graded", "cranfield"] = "graded"
    """graded = the higher the better; cranfield = its codes, of which 1 is the best and the documents of -1, which the
    questions came from, are left out, and its count of the queries by their order, not by their ids"""
    unknown: Literal["refuse", "skip"] = "refuse"
    """ids of judged documents, candidates and queries that no file has; skip = they are counted and left out, but stay
    judged in scores"""
    loss: Literal["pairwise", "softmax", "pointwise"] = "pairwise"
    """pairwise = log(1 + exp(other - relevant)), a relevant document above each other of its group; softmax = above all
    at once; pointwise = each document's relevance by itself, binary cross-entropy"""
    negatives: int = 4
    """documents that are not relevant beside each that is, drawn anew each epoch: from those judged so and the
    candidates, and from all documents where these are too few"""
    candidates: tuple[str, ...] = operational(())
    """TREC run files whose documents are ranked anew in evaluation; none = all that are judged, and others"""
    depth: int = 100
    """best documents of a run that are ranked anew, for each query"""
    others: int = operational(100)
    """documents drawn at random that are ranked with those judged, where there are no candidates"""
    max_query_len: int = 64
    """longest query, in tokens; its end is cut, and a document has the rest of data.seq-len"""
    max_passages: int = 1
    """1 = the end of a long document is cut; more = it is read in as many pieces at the most, and has the score of its
    best one"""
    cutoff: int = operational(20)
    """k of NDCG@k, ERR@k and P@k, in documents"""
    gain: Literal["exponential", "linear"] = operational("exponential")
    """of NDCG: 2^grade - 1, as gdeval has it for ClueWeb, or the grade itself, as trec_eval"""
    relevant_from: int = 1
    """lowest grade that counts as relevant: in training, and in MAP, MRR and P@k"""
    max_grade: int = operational(4)
    """highest grade that there is, of which ERR makes probabilities; 4 in gdeval"""


@dataclass(frozen=True)
class SelectionConfig:
    """Which checkpoint is the result."""

    every_steps: int = operational(500)
    """updates between evaluations; there is always one at the end"""
    metric: str | None = operational(None)
    """the metric that chooses the best checkpoint; None = the task's own"""
    patience: int = operational(0)
    """evaluations without a better value that end the run; 0 = it runs to its end"""


@dataclass(frozen=True)
class FinetuneConfig:
    """One finetuning run: from a pretrained checkpoint to a task."""

    task: str = "classification"
    """what is read, learned and measured, and where the other settings start from: classification, regression, a task
    of GLUE such as sst-2, imdb, yelp-2, yelp-5, squad, squad2, cmrc2018, drcd, race, dream, multiple_choice, ner,
    token_classification or ranking"""
    init: str = ""
    """the checkpoint to start from: this project's, the 2019 code's or Hugging Face's, with its tokenizer"""
    train: tuple[str, ...] = operational(())
    """examples to learn from: files, globs or tfds:NAME"""
    eval: tuple[str, ...] = operational(())
    """labelled examples that choose the best checkpoint; none = the last checkpoint is the result"""
    predict: tuple[str, ...] = operational(())
    """examples without labels: predictions are written for them at the end"""
    workdir: str | None = operational(None)
    """folder of the run; None = runs/TASK, or runs/TASK-predictions where nothing is learned"""
    tokenizer: str | None = operational(None)
    """a SentencePiece model, where --init came without one"""
    reinitialize: bool = False
    """draw all weights afresh: only sizes, tokenizer and model.init-std come from --init; what pretraining is compared
    with"""
    steps: int = 10_000
    """updates in all"""
    epochs: float | None = operational(None)  # the steps that they come to are what counts
    """passes over the examples, in place of steps"""
    seeds: tuple[int, ...] = operational((0,))  # the seed of each run is what counts
    """seeds of the head, dropout and the order of examples; several = a run each, with mean and deviation at the end"""
    seed: int = 0
    """seed of one run; --seeds sets it"""
    tpu: bool = operational(False)
    """demand a TPU"""
    tfds_data_dir: str | None = operational(None)
    """where TFDS datasets are prepared; None = TFDS's default"""
    profile: str | None = operational(None)
    """updates to trace, as 10:15 (from 10 up to 15), into WORKDIR/tensorboard; None = none"""
    objective: Annotated[str, tyro.conf.Fixed, tyro.conf.Suppress] = operational("")
    """objective that the weights of --init were pretrained by; set from them, and stored with each checkpoint"""
    model: ModelConfig = ModelConfig(mem_len=0)
    head: HeadConfig = HeadConfig("classification")
    columns: ColumnsConfig = ColumnsConfig()
    data: TaskDataConfig = TaskDataConfig()
    qa: QuestionAnsweringConfig = QuestionAnsweringConfig()
    choice: ChoiceConfig = ChoiceConfig()
    ranking: RankingConfig = RankingConfig()
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=2e-5, warmup_steps=1_000)
    mesh: MeshConfig = MeshConfig()
    distributed: DistributedConfig = DistributedConfig()
    checkpoint: CheckpointConfig = CheckpointConfig(every_steps=500, keep=1)
    selection: SelectionConfig = SelectionConfig()
    log: LogConfig = LogConfig(every_steps=50)
