"""How right labels and numbers are: the metrics of GLUE, as scikit-learn and scipy define them."""

import numpy as np
import scipy.stats


def classification_scores(predicted: np.ndarray, true: np.ndarray, num_labels: int) -> dict[str, float]:
    """accuracy, f1 (of two labels: that of the second; of more: the mean of those that are there or predicted) and mcc.
    predicted, true: numbers of labels, int [N]."""
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
    """pearson and spearman correlation, float [N]; 0 where all numbers are alike, or one is not finite."""
    varied = all(np.isfinite(x).all() and len(x) > 1 and np.ptp(x) > 0 for x in (predicted, true))
    return {
        "pearson": float(scipy.stats.pearsonr(predicted, true).statistic) if varied else 0.0,
        "spearman": float(scipy.stats.spearmanr(predicted, true).statistic) if varied else 0.0,
    }


def _matthews(confusion: np.ndarray) -> float:
    """Of any number of labels (Gorodkin 2004); 0 where only one is there, or predicted."""
    true, predicted, total = confusion.sum(1), confusion.sum(0), confusion.sum()
    spread = (total**2 - true @ true) * (total**2 - predicted @ predicted)
    return float((np.trace(confusion) * total - true @ predicted) / np.sqrt(spread)) if spread > 0 else 0.0
