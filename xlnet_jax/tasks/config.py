"""Settings of a finetuning run; tasks/defaults.py has the defaults of each task. Imports neither jax nor TensorFlow."""

from dataclasses import dataclass
from typing import Literal

from xlnet_jax.settings.config import (
    BatchConfig,
    HeadConfig,
    RunConfig,
    SelectionConfig,
)
from xlnet_jax.settings.fields import Unflagged, above, at_least, between, operational, setting


@dataclass(frozen=True)
class ColumnsConfig:
    """Columns of a table: names, or numbers from 0 if the file has no header. None = those of the task."""

    text: str | None = setting(None, "common")
    """the text, or the first of two"""
    text_pair: str | None = setting(None, "common")
    """the second text; None = examples have one text"""
    label: str | None = setting(None, "common")
    """the label, the number to predict (regression), or the score of a pair (embedding)"""
    negatives: tuple[str, ...] = ()
    """embedding: texts that are not similar to the first; none = negative, negative_1, negative_2, …"""
    id: str | None = None
    """the name of each example; None = its number, from 0, or the index column of GLUE's test files"""
    label_separator: str = ","
    """multilabel: separator between the labels in one field; not used where the field is a list"""
    header: bool = True
    """TSV and CSV: the first line names the columns"""


@dataclass(frozen=True)
class TaskDataConfig(BatchConfig):
    """Batches of examples, padded to a few lengths."""

    buckets: tuple[int, ...] = operational((), at_least(1))
    """lengths that batches are padded to, in tokens; none = 1/8, 1/4, 1/2 and all of --data.seq-len"""
    padding_side: Literal["left", "right"] = operational("left")
    """side to pad on; left as in the original; results do not depend on it"""
    long_texts: Literal["tail", "head_tail", "memory"] = setting("tail", "common")
    """what to do with a text that is too long: tail = cut the end; head_tail = cut the middle; memory = read it in
    windows of --data.seq-len, each with the memory of the windows before it (--model.mem-len), without gradients
    through the memory"""
    max_windows: int = setting(4, at_least(1))
    """with --data.long-texts memory: maximum number of windows per text; earlier tokens are dropped"""
    max_query_len: int = setting(64, at_least(1))
    """maximum length of a question or query, in tokens; longer ones lose their end. Multiple choice: of a question with
    an option, which loses its beginning"""


@dataclass(frozen=True)
class QuestionAnsweringConfig:
    """Extractive question answering (`run_squad.py`)."""

    doc_stride: int = setting(128, at_least(1))
    """tokens between the starts of two windows of a document"""
    max_answer_len: int = operational(64, at_least(1))
    """maximum length of an answer, in tokens"""
    n_best: int = operational(5, at_least(1))
    """number of answers written for each question, of most likely starts to try, and of ends to try for each start"""
    null_threshold: float | None = operational(None)
    """null odds above which a question counts as unanswerable; None = the value with the best score on --eval"""


@dataclass(frozen=True)
class RankingConfig:
    """Document ranking (paper, section 3.3): score each document for a query. --train and --eval take qrels, --predict
    takes runs or queries."""

    documents: tuple[str, ...] = operational(())
    """files of documents: SMART format (Cranfield), JSON lines (id, title, text) or TSV (id, text)"""
    queries: tuple[str, ...] = operational(())
    """files of queries, in the same formats"""
    judgements: Literal["graded", "cranfield"] = "graded"
    """graded = higher is better; cranfield = Cranfield's codes: 1 is best, documents with code -1 (sources of the
    questions) are left out, and queries are numbered by their order in the file"""
    loss: Literal["pairwise", "softmax", "pointwise"] = "pairwise"
    """pairwise = log(1 + exp(other - relevant)) of a relevant document and each other one in its group; softmax = the
    relevant document against all others at once; pointwise = binary cross-entropy of each document's relevance"""
    negatives: int = setting(4, at_least(1))
    """number of non-relevant documents per relevant one, drawn again each epoch: from the documents judged not relevant
    and the candidates, then from all documents if these are too few"""
    candidates: tuple[str, ...] = operational(())
    """TREC run files whose documents are reranked in evaluation; none = all judged documents and --ranking.others"""
    depth: int = setting(100, at_least(1))
    """number of top documents of a run to rerank, for each query"""
    others: int = operational(100, at_least(0))
    """number of random documents to rank with the judged ones, if there are no --ranking.candidates"""
    max_passages: int = setting(1, at_least(1))
    """maximum number of passages per document; each is scored alone, and the best score counts; 1 = cut the end of a
    long document instead"""
    cutoff: int = operational(20, at_least(1))
    """k of NDCG@k, ERR@k and P@k, in documents"""
    gain: Literal["exponential", "linear"] = operational("exponential")
    """gain in NDCG: exponential = 2^grade - 1, as gdeval does for ClueWeb; linear = the grade, as in trec_eval"""
    relevant_from: int = setting(1, at_least(1))
    """lowest grade that counts as relevant: in training, and in MAP, MRR and P@k"""


@dataclass(frozen=True)
class TaskSelectionConfig(SelectionConfig):
    """How the best checkpoint is chosen."""

    every_steps: int = operational(500, at_least(1), "common")
    """steps between evaluations; the last step is always evaluated"""
    metric: str | None = operational(None, "common")
    """metric that chooses the best checkpoint; None = the task's main metric"""


@dataclass(frozen=True)
class FinetuneConfig(RunConfig):
    """One finetuning run: from a pretrained checkpoint to a task."""

    task: str = setting("classification", "common")
    """task to finetune for, which sets the defaults of all other settings: classification, regression, multilabel, a
    GLUE task such as sst-2, imdb, yelp-2, yelp-5, a CLUE task such as tnews, squad, squad2, cmrc2018, drcd, race,
    dream, c3, chid, multiple_choice, ner, token_classification, ranking or embedding"""
    train: tuple[str, ...] = operational((), "common")
    """training examples: files, globs or tfds:NAME"""
    eval: tuple[str, ...] = operational((), "common")
    """labelled examples to choose the best checkpoint by; none = keep the last checkpoint"""
    predict: tuple[str, ...] = operational((), "common")
    """examples to write predictions for at the end; they need no labels"""
    check: bool = operational(False)
    """print the numbers of examples, labels and cut texts, and the baseline, and stop before training"""
    reinitialize: bool = False
    """start from random weights, and take only the sizes, the tokenizer and --model.init-std from --init: the control
    that shows the gain from pretraining"""
    frozen: bool = setting(False, "common")
    """train only the head, on hidden states of the pretrained network (BERT's feature-based approach, section 5.3): the
    network has no gradients, no optimizer state and no dropout"""
    narrow_start: bool = operational(True)  # identity compares the settings that it comes to
    """for a network narrower than 768, unless given: use a learning rate for its width, the dropout of its pretraining
    (except for labels of words) and, for XLNet, the mean of all hidden states as the summary"""
    epochs: float | None = operational(None, above(0), "common")  # identity compares the steps that they come to
    """passes over the training examples, in place of --steps"""
    seeds: tuple[int, ...] = operational((0,), at_least(0), "common")  # identity compares the seed of each run
    """seeds of the head, dropout and the order of examples; several = one run per seed, then mean and deviation"""
    balance: Literal["none", "weights", "sampling"] = setting("none", "common")
    """what to do about rare labels, in classification and tagging: weights = weight each text or word in the loss by
    the number of labels / (classes * labels of its class); sampling = draw texts with replacement in proportion to
    these weights, sentences to the mean of their words; evaluation is never weighted"""
    label_threshold: float = operational(0.5, between(0, 1, "()"))
    """multilabel: a text gets a label if its probability is at least this"""
    temperature: float = setting(0.05, above(0))
    """embedding: divides the cosines in the loss. Pairs: the cross-entropy of choosing the second text of a pair among
    those of the whole batch; with scores: CoSENT's"""
    objective: Unflagged[str] = operational("")
    """objective that --init was pretrained with; read from the checkpoint, and stored with each new one"""
    head: HeadConfig = HeadConfig("classification")
    columns: ColumnsConfig = ColumnsConfig()
    data: TaskDataConfig = TaskDataConfig()
    qa: QuestionAnsweringConfig = QuestionAnsweringConfig()
    ranking: RankingConfig = RankingConfig()
    selection: TaskSelectionConfig = TaskSelectionConfig()


def folder_of(config: FinetuneConfig) -> str:
    """Return `workdir`, or a folder named after the task."""
    return config.workdir or f"runs/{config.task}{'' if config.train else '-predictions'}"
