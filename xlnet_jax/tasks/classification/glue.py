"""GLUE, IMDB and Yelp by name: their files, columns, labels in the original's order (`run_classifier.py`,
`classifier_utils.py`), and the official metrics, as in scikit-learn and scipy.
"""

from dataclasses import replace

import numpy as np
import scipy.stats

from xlnet_jax.tasks.classification.clue import CLUE
from xlnet_jax.tasks.classification.tables import Groups, Published
from xlnet_jax.tasks.readers import Role

# Names of files, unless a task has other names.
STEMS: dict[Role, Groups] = {
    "train": (("train",),),
    "eval": (("dev",), ("validation",), ("valid",), ("val",)),
    "predict": (("test",),),
}


_ID = ("index", "id", "idx")
_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_TESTED: dict[Role, Groups] = {"eval": (("test",),), "predict": (("test",),)}
_MNLI = Published(
    ("sentence1", "premise", "Premise"),
    ("sentence2", "hypothesis", "Hypothesis"),
    ("gold_label", "label", "Label"),
    _ID,
    labels=("contradiction", "entailment", "neutral"),
    numbered=("entailment", "neutral", "contradiction"),
    submission="MNLI",
    parts=True,
    stems={
        "eval": (("dev_matched", "dev_mismatched"), ("validation_matched", "validation_mismatched")),
        "predict": (("test_matched", "test_mismatched"),),
    },
)
_YELP = Published(
    ("text", "1"),
    (),
    ("label", "0"),
    labels=("1", "2"),
    stems=_TESTED,
    headless=True,
    escaped=True,
)
PUBLISHED: dict[str, Published] = {
    "regression": Published(metrics=("pearson",)),
    "multilabel": Published(metrics=("micro_f1",)),
    "cola": Published(
        ("sentence", "3"), (), ("label", "1"), _ID, labels=_BINARY, metrics=("mcc",), submission="CoLA", headless=True
    ),
    "sst-2": Published(("sentence",), id=_ID, labels=_BINARY, submission="SST-2"),
    "mrpc": Published(
        ("#1 String", "sentence1"), ("#2 String", "sentence2"), ("Quality", "label"), _ID, labels=_BINARY,
        metrics=("accuracy", "f1"), submission="MRPC",
    ),
    "qqp": Published(
        ("question1",), ("question2",), ("is_duplicate", "label"), _ID, labels=_BINARY,
        metrics=("accuracy", "f1"), submission="QQP", flawed=True,
    ),
    "sts-b": Published(
        ("sentence1",), ("sentence2",), ("score", "label"), _ID,
        metrics=("pearson", "spearman"), submission="STS-B",
    ),
    "mnli": _MNLI,
    "qnli": Published(("question",), ("sentence",), id=_ID, labels=_ENTAILMENT, submission="QNLI"),
    "rte": Published(("sentence1",), ("sentence2",), id=_ID, labels=_ENTAILMENT, submission="RTE"),
    "wnli": Published(("sentence1",), ("sentence2",), id=_ID, labels=_BINARY, submission="WNLI"),
    "ax": replace(
        _MNLI, metrics=("mcc",), submission="AX", parts=False,
        stems={"eval": (("diagnostic-full",), ("dev_matched",)), "predict": (("diagnostic",), ("test",))},
    ),
    "imdb": Published(labels=("neg", "pos"), stems=_TESTED),
    # The names of sentence-transformers, of STS-B, and our own.
    "embedding": Published(
        ("anchor", "query", "sentence1", "text"), ("positive", "answer", "sentence2", "text_pair"), ("score", "label")
    ),
    **CLUE,
    "yelp-2": _YELP,
    "yelp-5": replace(_YELP, labels=("1", "2", "3", "4", "5")),
}  # fmt: skip


def classification_scores(predicted: np.ndarray, true: np.ndarray, num_labels: int) -> dict[str, float]:
    """Return accuracy, f1 and mcc (Matthews correlation), as fractions of 1. predicted, true: label numbers, int
    [examples].

    With two labels, f1 is that of the second; otherwise it is the mean over the labels that occur or are predicted.
    """
    confusion = np.zeros((num_labels, num_labels))
    np.add.at(confusion, (true, predicted), 1)
    hits, both = np.diag(confusion), confusion.sum(0) + confusion.sum(1)
    f1 = 2 * hits / np.maximum(both, 1)
    # For any number of labels (Gorodkin 2004); 0 if only one label occurs or is predicted.
    of_true, of_predicted, total = confusion.sum(1), confusion.sum(0), confusion.sum()
    spread = (total**2 - of_true @ of_true) * (total**2 - of_predicted @ of_predicted)
    mcc = (np.trace(confusion) * total - of_true @ of_predicted) / np.sqrt(spread) if spread > 0 else 0.0
    return {
        "accuracy": float(np.trace(confusion) / len(true)),
        "f1": float(f1[1] if num_labels == 2 else f1[both > 0].mean()),
        "mcc": float(mcc),
    }


def regression_scores(predicted: np.ndarray, true: np.ndarray) -> dict[str, float]:
    """Return the pearson and spearman correlations. predicted, true: float [examples]. Both are 0 if one side is
    constant or not finite."""
    varied = all(np.isfinite(x).all() and len(x) > 1 and np.ptp(x) > 0 for x in (predicted, true))
    return {
        "pearson": float(scipy.stats.pearsonr(predicted, true).statistic) if varied else 0.0,
        "spearman": float(scipy.stats.spearmanr(predicted, true).statistic) if varied else 0.0,
    }


def multilabel_scores(predicted: np.ndarray, true: np.ndarray) -> dict[str, float]:
    """Return micro_f1, over all decisions; macro_f1, the mean over the labels (0 for a label that is neither given nor
    predicted); and accuracy, the share of texts with all labels right, as fractions of 1. predicted, true: bool
    [examples, labels]."""
    hits_C, both_C = (predicted & true).sum(0), predicted.sum(0) + true.sum(0)
    return {
        "micro_f1": float(2 * hits_C.sum() / max(both_C.sum(), 1)),
        "macro_f1": float((2 * hits_C / np.maximum(both_C, 1)).mean()),
        "accuracy": float((predicted == true).all(1).mean()),
    }
