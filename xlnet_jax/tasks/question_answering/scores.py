"""The official metrics of SQuAD 1.1 and 2.0 (`evaluate-v1.1.py`, `evaluate-v2.0.py`) and of CMRC 2018, also used for
DRCD (`cmrc2018_evaluate.py`, version 5), in per cent. CMRC counts each Chinese character as a unit and splits other
text into words; its F1 counts the longest run of units that prediction and answer share.

predictions: texts by the id of their question, "" = no answer. A question without a prediction scores 0.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher

from xlnet_jax.tasks.question_answering.files import Question

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Return the text in lower case, without ASCII punctuation and articles, with single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def squad1_scores(questions: Sequence[Question], predictions: Mapping[str, str]) -> dict[str, float]:
    """Return exact and f1 in per cent, each against the gold answer that matches best."""
    gold = [q.answers for q in questions]
    return {
        "exact": _per_cent(_best(exact_score, questions, predictions, gold)),
        "f1": _per_cent(_best(_overlap, questions, predictions, gold)),
    }


def squad2_scores(
    questions: Sequence[Question], predictions: Mapping[str, str], null_odds: Mapping[str, float]
) -> dict[str, float]:
    """Return the metrics that the official script prints with --na-prob-file, in per cent: exact and f1 on all
    questions, on those with an answer and on those without, and the best thresholds of the null odds."""
    scores = raw_scores(questions, predictions)
    result: dict[str, float] = {}
    for prefix, counted in (("", (True, False)), ("HasAns_", (True,)), ("NoAns_", (False,))):
        of = [i for i, question in enumerate(questions) if bool(question.answers) in counted]
        if of:
            result |= {f"{prefix}{name}": _per_cent([each[i] for i in of]) for name, each in scores.items()}
            result[f"{prefix}total"] = float(len(of))
    for name, each in scores.items():
        best, threshold = best_threshold(questions, predictions, each, null_odds)
        result |= {f"best_{name}": best, f"best_{name}_thresh": threshold}
    return result


def raw_scores(questions: Sequence[Question], predictions: Mapping[str, str]) -> dict[str, list[float]]:
    """Return exact and f1 of SQuAD 2.0 for each question, 0 to 1, before any threshold. An empty prediction is right if
    the question has no answer."""
    gold = [[a for a in q.answers if normalize_answer(a)] or [""] for q in questions]
    return {
        "exact": _best(exact_score, questions, predictions, gold),
        "f1": _best(f1_score, questions, predictions, gold),
    }


def best_threshold(
    questions: Sequence[Question],
    predictions: Mapping[str, str],
    scores: Sequence[float],
    null_odds: Mapping[str, float],
) -> tuple[float, float]:
    """Return (score in per cent, threshold): the null odds above which no answer is given, for the best score. scores:
    those of each question. The lowest of equally good thresholds; 0.0 if giving no answers at all scores best."""
    score = best = float(sum(not question.answers for question in questions))
    threshold = 0.0
    for question, own in sorted(zip(questions, scores, strict=True), key=lambda pair: null_odds[pair[0].id]):
        score += own if question.answers else -bool(predictions[question.id])
        if score > best:
            best, threshold = score, null_odds[question.id]
    return 100.0 * best / len(questions), threshold


def exact_score(gold: str, predicted: str) -> float:
    """Return 1.0 if both texts are equal after normalization, else 0.0."""
    return float(normalize_answer(gold) == normalize_answer(predicted))


def f1_score(gold: str, predicted: str) -> float:
    """Return the F1 of the words, 0 to 1. If one text has no words: 1 if neither has, else 0."""
    if not normalize_answer(gold) or not normalize_answer(predicted):
        return exact_score(gold, predicted)
    return _overlap(gold, predicted)


def _overlap(gold: str, predicted: str) -> float:
    theirs, ours = normalize_answer(gold).split(), normalize_answer(predicted).split()
    return _f1((Counter(theirs) & Counter(ours)).total(), theirs, ours)


def _f1(common: int, gold: Sequence[str], predicted: Sequence[str]) -> float:
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(gold)
    return 2 * precision * recall / (precision + recall)


def _best(
    score: Callable[[str, str], float],
    questions: Sequence[Question],
    predictions: Mapping[str, str],
    gold: Sequence[Sequence[str]],
) -> list[float]:
    return [
        max(score(text, predictions[question.id]) for text in texts) if question.id in predictions else 0.0
        for question, texts in zip(questions, gold, strict=True)
    ]


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
]  # in this order: each rule applies to the output of those before it


def cmrc_scores(questions: Sequence[Question], predictions: Mapping[str, str]) -> dict[str, float]:
    """Return em and f1 in per cent, each against the gold answer that matches best, and their mean as `average`."""
    gold = [q.answers for q in questions]
    em, f1 = (_per_cent(_best(score, questions, predictions, gold)) for score in (_same, _longest_run))
    return {"em": em, "f1": f1, "average": (em + f1) / 2}


def _same(gold: str, predicted: str) -> float:
    return float(_without_punctuation(gold) == _without_punctuation(predicted))


def _longest_run(gold: str, predicted: str) -> float:
    theirs, ours = segments(gold), segments(predicted)
    longest = SequenceMatcher(None, theirs, ours, autojunk=False).find_longest_match()
    return _f1(longest.size, theirs, ours)


def segments(text: str) -> list[str]:
    """Return the Chinese characters and words in lower case, without punctuation except inside or beside words."""
    found: list[str] = []
    for part in _CHINESE_OR_OTHER.findall(_without_punctuation(text)):
        found += [part] if _CHINESE.match(part) else words(part)
    return found


def words(text: str) -> list[str]:
    """Split a text by the rules of the Penn Treebank, which the script takes from NLTK: punctuation is split off,
    except a period inside the text and a comma or colon before a digit; don't becomes do n't."""
    for pattern, replacement in _TREEBANK:
        text = pattern.sub(replacement, text)
    return text.split()


def _without_punctuation(text: str) -> str:
    return "".join(c for c in text.lower().strip() if c not in PUNCTUATION)
