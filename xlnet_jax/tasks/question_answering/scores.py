"""The official scores of SQuAD 1.1 and 2.0 (`evaluate-v1.1.py`, `evaluate-v2.0.py`) and of CMRC 2018, used for DRCD too
(`cmrc2018_evaluate.py`, version 5), in per cent. CMRC takes each Chinese character as a unit and cuts other text
into words; its F1 counts the longest run of units that prediction and answer share.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from xlnet_jax.tasks.question_answering.files import Question

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Scores(NamedTuple):
    """Scores of each question, 0 to 1, by its id."""

    exact: dict[str, float]
    f1: dict[str, float]


def normalize_answer(text: str) -> str:
    """Return the text in lower case, without ASCII punctuation, articles and surplus white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def squad1_scores(questions: Sequence[Question], predictions: Mapping[str, str]) -> dict[str, float]:
    """Return exact and f1 in per cent, each by the gold answer that fits best. predictions: texts by id."""
    gold = [[a.text for a in q.answers] for q in questions]
    scores = _best_scores(questions, predictions, gold, _overlap)
    return {name: _per_cent(list(by_id.values())) for name, by_id in scores._asdict().items()}


def squad2_scores(
    questions: Sequence[Question], predictions: Mapping[str, str], null_odds: Mapping[str, float]
) -> dict[str, float]:
    """Return, in per cent, the metrics that the official script prints with --na-prob-file: exact and f1 of all
    questions, of those with an answer and of those without, and the best thresholds of the null odds. predictions:
    texts by id, "" = no answer."""
    scores = raw_scores(questions, predictions)
    answerable = [q.id for q in questions if q.answers]
    others = [q.id for q in questions if not q.answers]
    result = _of(scores, [q.id for q in questions], "")
    for ids, prefix in ((answerable, "HasAns_"), (others, "NoAns_")):
        if ids:
            result |= _of(scores, ids, prefix)
    for name in Scores._fields:
        best, threshold = best_threshold(questions, predictions, getattr(scores, name), null_odds)
        result |= {f"best_{name}": best, f"best_{name}_thresh": threshold}
    return result


def raw_scores(questions: Sequence[Question], predictions: Mapping[str, str]) -> Scores:
    """Return the scores of SQuAD 2.0 before any threshold: an empty prediction is right where there is no answer."""
    gold = [[a.text for a in q.answers if normalize_answer(a.text)] or [""] for q in questions]
    return _best_scores(questions, predictions, gold, f1_score)


def best_threshold(
    questions: Sequence[Question],
    predictions: Mapping[str, str],
    scores: Mapping[str, float],
    null_odds: Mapping[str, float],
) -> tuple[float, float]:
    """Return (score in per cent, threshold): the null odds above which no answer is given, chosen for the best score.
    Of equal thresholds the lowest; 0.0 where no answer at all scores best."""
    has_answer = {q.id: bool(q.answers) for q in questions}
    score = best = float(sum(not has for has in has_answer.values()))
    threshold = 0.0
    for id in sorted(has_answer, key=null_odds.__getitem__):
        score += scores[id] if has_answer[id] else -bool(predictions[id])
        if score > best:
            best, threshold = score, null_odds[id]
    return 100.0 * best / len(has_answer), threshold


def exact_score(gold: str, predicted: str) -> float:
    """Return 1.0 where both texts are equal after normalisation, else 0.0."""
    return float(normalize_answer(gold) == normalize_answer(predicted))


def f1_score(gold: str, predicted: str) -> float:
    """Return the F1 of the words, 0 to 1; where one text has no words, 1 if neither has."""
    if not normalize_answer(gold) or not normalize_answer(predicted):
        return exact_score(gold, predicted)
    return _overlap(gold, predicted)


def _overlap(gold: str, predicted: str) -> float:
    theirs, ours = normalize_answer(gold).split(), normalize_answer(predicted).split()
    common = sum((Counter(theirs) & Counter(ours)).values())
    return harmonic_mean(common / len(ours), common / len(theirs)) if common else 0.0


def harmonic_mean(precision: float, recall: float) -> float:
    """Return F1."""
    return 2 * precision * recall / (precision + recall)


def _best_scores(
    questions: Sequence[Question],
    predictions: Mapping[str, str],
    gold: Sequence[Sequence[str]],
    f1: Callable[[str, str], float],
) -> Scores:
    pairs = [(q.id, predictions[q.id], texts) for q, texts in zip(questions, gold, strict=True) if q.id in predictions]

    def best(score: Callable[[str, str], float]) -> dict[str, float]:
        missing = {q.id: 0.0 for q in questions}
        return missing | {id: max(score(text, predicted) for text in texts) for id, predicted, texts in pairs}

    return Scores(best(exact_score), best(f1))


def _of(scores: Scores, ids: Sequence[str], prefix: str) -> dict[str, float]:
    of_ids = {f"{prefix}{name}": _per_cent([by_id[id] for id in ids]) for name, by_id in scores._asdict().items()}
    return of_ids | {f"{prefix}total": float(len(ids))}


def _per_cent(values: Sequence[float]) -> float:
    return 100.0 * sum(values) / len(values)


PUNCTUATION = frozenset("-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")  # the script's "……" matches no character
_CHINESE = re.compile("[\u4e00-\u9fa5]")
_CHINESE_OR_OTHER = re.compile("[\u4e00-\u9fa5]|[^\u4e00-\u9fa5]+")
_TREEBANK = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"([«‘„])", r" \1 "),
        (r'^"', " `` "),
        (r'(?<=[ (\[{<])"', " `` "),
        (r"(?<!\w)'(?!(?:re|ve|ll|[mtsdn])\b)(?=\w)", "' "),
        (r"""\.(?<!\.\.)(?=[\])}>"'» ]*$)""", " . "),
        (r",(?!\d)", " , "),
        (r"(\.{2,}|[;@#$%&?!\[\](){}<>‒–—―»])", r" \1 "),
        (r"''|\"", " '' "),
        (r"(?<=[^' ])('(?:[smd]|ll|re|ve)?|n't)(?= |$)", r" \1 "),
        (r"\bcan(?=not\b)", "can "),
    )
]  # in this order: one sees the spaces that those before it made


def cmrc_scores(questions: Sequence[Question], predictions: Mapping[str, str]) -> dict[str, float]:
    """Return em and f1, each by the gold answer that fits best, and their mean as `average`. predictions: texts by id;
    a question without one scores 0."""
    em = f1 = 0.0
    for question in questions:
        if question.id in predictions:
            predicted, gold = predictions[question.id], [a.text for a in question.answers]
            em += any(_without_punctuation(predicted) == _without_punctuation(text) for text in gold)
            f1 += max(_f1(segments(text), segments(predicted)) for text in gold)
    em, f1 = 100.0 * em / len(questions), 100.0 * f1 / len(questions)
    return {"em": em, "f1": f1, "average": (em + f1) / 2}


def segments(text: str) -> list[str]:
    """Return Chinese characters and words in lower case, without punctuation, except inside or beside words."""
    found: list[str] = []
    for part in _CHINESE_OR_OTHER.findall(_without_punctuation(text)):
        found += [part] if _CHINESE.match(part) else words(part)
    return found


def words(text: str) -> list[str]:
    """Cut a text by the rules of the Penn Treebank, which the script takes from NLTK: punctuation stands alone, except
    a period inside the text and a comma or colon before a digit; don't becomes do n't."""
    for pattern, replacement in _TREEBANK:
        text = pattern.sub(replacement, text)
    return text.split()


def _without_punctuation(text: str) -> str:
    return "".join(c for c in text.lower().strip() if c not in PUNCTUATION)


def _f1(gold: Sequence[str], predicted: Sequence[str]) -> float:
    common = _longest_common_run(gold, predicted)
    return harmonic_mean(common / len(predicted), common / len(gold)) if common else 0.0


def _longest_common_run(a: Sequence[str], b: Sequence[str]) -> int:
    longest, row = 0, [0] * (len(b) + 1)
    for x in a:
        row = [0, *(before + 1 if x == y else 0 for before, y in zip(row, b, strict=False))]
        longest = max(longest, *row)
    return longest
