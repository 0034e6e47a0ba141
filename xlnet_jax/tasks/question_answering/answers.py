"""Turn the beams of the network into answers (`write_predictions` of run_squad.py)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

NO_WINDOW = 1e6  # null odds of a question whose text could not be read
NO_SPAN = -1e6  # log-probability of an answer where no span is possible


class Window(NamedTuple):
    """Part of a document that one item reads: E tokens."""

    starts_E: np.ndarray  # int64: first character of each token
    ends_E: np.ndarray  # int64: its last one
    is_widest_E: np.ndarray  # bool: no other window shows more around this token


class Candidate(NamedTuple):
    """Possible answer to a question."""

    text: str
    probability: float  # among the n best
    start_log_prob: float
    end_log_prob: float


@dataclass(frozen=True)
class Answers:
    """Answers to each question, by its id."""

    n_best: Mapping[str, Sequence[Candidate]]  # the likeliest first, at least one
    null_odds: Mapping[str, float]  # the higher, the less it can be answered: logits of its most confident window
    predicted: Mapping[str, str] = field(default_factory=dict)  # answers given; "" = unanswerable

    @property
    def texts(self) -> dict[str, str]:
        """Likeliest answer to each question, answerable or not."""
        return {id: candidates[0].text for id, candidates in self.n_best.items()}

    def above(self, threshold: float) -> dict[str, str]:
        """Return the likeliest answers, "" where the null odds exceed the threshold."""
        return {id: "" if self.null_odds[id] > threshold else text for id, text in self.texts.items()}

    def amid(self, threshold: float) -> float:
        """Return a threshold that gives the same answers and lies halfway to the next larger null odds: a question
        whose odds are the threshold itself would change with their last digit."""
        odds = [odd for odd in self.null_odds.values() if odd < NO_WINDOW]
        if threshold not in odds:
            return threshold
        return (threshold + min((odd for odd in odds if odd > threshold), default=threshold + 2)) / 2


def candidates(
    context: str,
    windows: Sequence[Window],
    beams: Sequence[Mapping[str, np.ndarray]],
    n_best: int,
    max_answer_len: int,
) -> list[Candidate]:
    """Return the likeliest answers to one question, best first.

    beams: for each window start_log_probs and start_index [I], end_log_probs and end_index [I, J]; the indices are
    tokens of the window. I and J are the widths of the beam.
    """
    spans = [span for window, beam in zip(windows, beams, strict=True) for span in _spans(window, beam, max_answer_len)]
    spans.sort(key=lambda span: span[2] + span[3], reverse=True)
    best: dict[str, tuple[float, float]] = {}
    for first, last, *log_probs in spans:
        if len(best) == n_best:
            break
        best.setdefault(context[int(first) : int(last) + 1].strip(), (log_probs[0], log_probs[1]))
    best = best or {"": (NO_SPAN, NO_SPAN)}
    scores = np.array(list(best.values())).sum(1)
    weights = np.exp(scores - scores.max())
    shares = (weights / weights.sum()).tolist()
    return [Candidate(text, share, *best[text]) for text, share in zip(best, shares, strict=True)]


def _spans(window: Window, beam: Mapping[str, np.ndarray], max_answer_len: int) -> list[list[float]]:
    """Return (first character, last character, log-probability of the start, of the end) of each possible span."""
    start_I1, end_IJ = beam["start_index"][:, None], beam["end_index"]
    last = len(window.starts_E) - 1  # the original never takes the last token of a window
    inside = (start_I1 >= 0) & (start_I1 < last) & (end_IJ >= start_I1) & (end_IJ < last)
    possible = inside & (end_IJ - start_I1 < max_answer_len)
    possible &= window.is_widest_E[np.clip(start_I1, 0, last)]
    s, e = np.nonzero(possible)
    places = window.starts_E[beam["start_index"][s]], window.ends_E[end_IJ[s, e]]
    return np.stack([*places, beam["start_log_probs"][s], beam["end_log_probs"][s, e]], axis=1, dtype=float).tolist()
