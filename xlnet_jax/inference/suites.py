"""Suites of minimal pairs: the acceptable one of two sentences should be likelier (BLiMP: Warstadt et al. 2020).

A paradigm is a kind of pair, and a phenomenon is a group of paradigms. The accuracy of a phenomenon, and of the suite,
is the mean over its paradigms, as in BLiMP. Ties count half.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from xlnet_jax.errors import InputError
from xlnet_jax.inference.likelihood import Estimate, estimate, resampled_sums, score_by_order

if TYPE_CHECKING:
    from xlnet_jax.checkpoints.pretrained import Pretrained

FIELDS = {"blimp": ("sentence_good", "sentence_bad", "UID", "linguistics_term")}
"""Fields of a pair in the published files, by suite"""
ORDERS = ("left-to-right", "random:4", "pseudo")
ALL = "all"


class Pair(NamedTuple):
    """Two sentences that differ little."""

    good: str
    bad: str
    paradigm: str
    phenomenon: str
    where: str  # for messages


@dataclass(frozen=True)
class Accuracies:
    """Shares of pairs whose acceptable sentence is likelier, by order."""

    pairs: int
    phenomena: dict[str, dict[str, Estimate]]  # `all` is the whole suite
    paradigms: dict[str, dict[str, Estimate]]

    def numbers(self) -> dict[str, Any]:
        """Return every number by its name."""
        groups = {"phenomena": self.phenomena, "paradigms": self.paradigms}
        return {"pairs": self.pairs, "chance": 0.5} | {
            name: {k: {word: e._asdict() for word, e in by_order.items()} for k, by_order in group.items()}
            for name, group in groups.items()
        }

    def describe(self) -> str:
        """Return the accuracies of the phenomena in percent, as lines."""
        words = list(self.phenomena[ALL])
        lines = [
            f"pairs       {self.pairs:,} in {len(self.paradigms):,} paradigms",
            "".join(f"{name:28}" for name in ("phenomenon", *words)).rstrip(),
        ]
        for name, by_order in self.phenomena.items():
            shown = (f"{100 * e.value:.1f} [{100 * e.low:.1f}, {100 * e.high:.1f}]" for e in by_order.values())
            lines.append("".join(f"{text:28}" for text in (name, *shown)).rstrip())
        return "\n".join([*lines, "percent     right, means over paradigms; chance is 50; 95 % intervals over pairs"])


def measure_accuracies(
    pretrained: "Pretrained", pairs: Sequence[Pair], words: Sequence[str], seed: int, **settings: Any
) -> Accuracies:
    """Return the accuracies on these pairs by the mean log-likelihood over the orders of each word, or by `pseudo` or
    `bound:N`.

    settings: as in `score_by_order`, whose InputErrors this raises, without names.
    """
    encoded = pretrained.demand_tokenizer().encode_lines([text for pair in pairs for text in pair[:2]])
    if empty := [pair.where for i, pair in enumerate(pairs) if not (len(encoded[2 * i]) and len(encoded[2 * i + 1]))]:
        raise InputError(f"{empty[0]}: a sentence has no pieces")
    # Sentences with equal pieces are scored once, so they tie.
    rows = {ids_P.tobytes(): i for i, ids_P in reversed([*enumerate(encoded)])}
    texts, row_of = [encoded[i] for i in rows.values()], {key: row for row, key in enumerate(rows)}
    names = [pairs[i // 2].where for i in rows.values()]
    scores = score_by_order(pretrained, texts, words, names=names, seed=seed, **settings)
    means_TW = np.array([[log_p_O.mean() for log_p_O in scores[word]] for word in words]).T
    log_p_T2W = means_TW[[row_of[ids_P.tobytes()] for ids_P in encoded]].reshape(len(pairs), 2, len(words))
    right_TW = (1 + np.sign(log_p_T2W[:, 0] - log_p_T2W[:, 1])) / 2
    members: dict[str, list[int]] = {}
    for i, pair in enumerate(pairs):
        members.setdefault(pair.paradigm, []).append(i)
    shares = {
        name: resampled_sums(right_TW[of_paradigm], seed, number) / len(of_paradigm)
        for number, (name, of_paradigm) in enumerate(members.items())
    }
    groups: dict[str, list[np.ndarray]] = {}
    for name, of_paradigm in members.items():
        groups.setdefault(pairs[of_paradigm[0]].phenomenon, []).append(shares[name])
    groups = {**dict(sorted(groups.items())), ALL: [*shares.values()]}

    def by_order(shares_RW: np.ndarray) -> dict[str, Estimate]:
        return {word: estimate(of_word_R) for word, of_word_R in zip(words, shares_RW.T, strict=True)}

    return Accuracies(
        len(pairs),
        {name: by_order(np.mean(group, axis=0)) for name, group in groups.items()},
        {name: by_order(shares_RW) for name, shares_RW in shares.items()},
    )
