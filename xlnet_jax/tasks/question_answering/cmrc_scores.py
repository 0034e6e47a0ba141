"""Official metrics of CMRC 2018, used for DRCD too (`cmrc2018_evaluate.py`, version 5), in per cent.

Each Chinese character is a unit, and other text is cut into words; F1 counts the longest run of units that prediction
and answer share.
"""

import re
from collections.abc import Mapping, Sequence

from xlnet_jax.tasks.question_answering.files import Question
from xlnet_jax.tasks.question_answering.squad_scores import harmonic_mean

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
