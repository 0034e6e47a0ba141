"""Metrics of GLUE, as scikit-learn and scipy define them."""

import numpy as np
import scipy.stats


def classification_scores(predicted: np.ndarray, true: np.ndarray, num_labels: int) -> dict[str, float]:
    """Return accuracy, f1 and mcc (Matthews correlation), as fractions of 1. predicted, true: int [examples], numbers
    of labels.

    f1 is that of the second label where there are two, else the mean over the labels that occur or are predicted.
    """
    confusion = np.zeros((num_labels, num_labels))
    np.add.at(confusion, (true, predicted), 1)
    hits, both = np.diag(confusion), confusion.sum(0) + confusion.sum(1)
    f1 = 2 * hits / np.maximum(both, 1)
    return {
        "accuracy": float(np.trace(confusion) / len(true)),
        "f1": float(f1[1] if num_labels == 2 else f1[both > 0].mean()),
        "mcc": _matthews(confusion),
    }


def regression_scores(predicted: np.ndarray, true: np.ndarray) -> dict[str, float]:
    """Return pearson and spearman correlation. predicted, true: float [examples]. Both are 0 where either side is
    constant, or has a number that is not finite."""
    varied = all(np.isfinite(x).all() and len(x) > 1 and np.ptp(x) > 0 for x in (predicted, true))
    return {
        "pearson": float(scipy.stats.pearsonr(predicted, true).statistic) if varied else 0.0,
        "spearman": float(scipy.stats.spearmanr(predicted, true).statistic) if varied else 0.0,
    }


def multilabel_scores(predicted: np.ndarray, true: np.ndarray) -> dict[str, float]:
    """Return micro_f1 over all decisions, macro_f1, its mean over the labels (0 for one that is neither given nor
    predicted), and accuracy, the share of texts whose labels are all right; fractions of 1. predicted, true: bool
    [examples, labels]."""
    hits_C, both_C = (predicted & true).sum(0), predicted.sum(0) + true.sum(0)
    return {
        "micro_f1": float(2 * hits_C.sum() / max(both_C.sum(), 1)),
        "macro_f1": float((2 * hits_C / np.maximum(both_C, 1)).mean()),
        "accuracy": float((predicted == true).all(1).mean()),
    }


def _matthews(confusion: np.ndarray) -> float:
    # For any number of labels (Gorodkin 2004); 0 where only one label occurs, or is predicted.
    true, predicted, total = confusion.sum(1), confusion.sum(0), confusion.sum()
    spread = (total**2 - true @ true) * (total**2 - predicted @ predicted)
    return float((np.trace(confusion) * total - true @ predicted) / np.sqrt(spread)) if spread > 0 else 0.0
