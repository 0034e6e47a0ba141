"""Suites of minimal pairs: the acceptable one of two sentences should be likelier (BLiMP: Warstadt et al. 2020).

A paradigm is a kind of pair, and a phenomenon is a group of paradigms. The accuracy of a phenomenon, and of the suite,
is the mean over its paradigms, as in BLiMP. Ties count half.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from xlnet_jax.errors import InputError
from xlnet_jax.measurement.likelihood import Estimates, estimate, lines_of, resampled_sums, score_by_order

if TYPE_CHECKING:
    from xlnet_jax.checkpoints.pretrained import Pretrained

FIELDS = {"blimp": ("sentence_good", "sentence_bad", "UID", "linguistics_term")}
"""Fields of a pair in the published files, by suite, in the order of `Pair`"""
ORDERS = ("left-to-right", "random:4", "pseudo")


class Pair(NamedTuple):
    """Two sentences that differ little."""

    good: str
    bad: str
    paradigm: str
    phenomenon: str
    where: str  # for messages


def measure_accuracies(
    pretrained: "Pretrained", pairs: Sequence[Pair], words: Sequence[str], seed: int, **settings: Any
) -> Estimates:
    """Return the percentage of pairs that are right by the mean log-likelihood over the orders of each word, or by
    `pseudo` or `bound:N`: the tables `phenomena`, whose row `all` is the whole suite, and `paradigms`.

    settings: as in `score_by_order`, whose InputErrors this raises, without names.
    """
    encoded = pretrained.require_tokenizer().encode_lines([text for pair in pairs for text in pair[:2]])
    names = [pair.where for pair in pairs for _ in pair[:2]]
    for ids_P, name in zip(encoded, names, strict=True):
        if not len(ids_P):
            raise InputError(f"{name}: a sentence has no pieces")
    scores = score_by_order(pretrained, encoded, words, names=names, seed=seed, **settings)
    log_p_WT2 = np.array([[log_p_O.mean() for log_p_O in scores[word]] for word in words]).reshape(len(words), -1, 2)
    differ_T = [not np.array_equal(*of_pair) for of_pair in zip(encoded[::2], encoded[1::2], strict=True)]
    right_TW = 50 + 50 * (differ_T * np.sign(log_p_WT2[:, :, 0] - log_p_WT2[:, :, 1])).T  # equal pieces tie
    percent: dict[str, np.ndarray] = {}  # [1 + resamples, words]
    groups: dict[str, list[str]] = {}
    for number, (name, phenomenon) in enumerate(sorted({pair.paradigm: pair.phenomenon for pair in pairs}.items())):
        of_paradigm_TW = right_TW[[pair.paradigm == name for pair in pairs]]
        percent[name] = resampled_sums(of_paradigm_TW, seed, number) / len(of_paradigm_TW)
        groups.setdefault(phenomenon, []).append(name)
    groups = {**dict(sorted(groups.items())), "all": [*percent]}
    by_phenomenon = {name: np.mean([percent[paradigm] for paradigm in group], axis=0) for name, group in groups.items()}
    tables = {
        name: {row: dict(zip(words, map(estimate, of_row_RW.T), strict=True)) for row, of_row_RW in table.items()}
        for name, table in (("phenomena", by_phenomenon), ("paradigms", percent))
    }
    report = [
        f"pairs       {len(pairs):,} in {len(percent):,} paradigms, with a chance level of 50 %",
        *lines_of(tables["phenomena"], "phenomenon", 1),
        "percent     right, means over paradigms, with 95 % intervals from resampled pairs",
    ]
    return Estimates({"pairs": len(pairs), "chance": 50}, tables, report)
