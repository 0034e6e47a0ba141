"""Tables of CLUE (Xu et al. 2020) by name: their columns, labels and submissions, as in its baselines
(github.com/CLUEbenchmark/CLUE, `classifier_utils.py`)."""

from collections.abc import Mapping
from typing import Any

from xlnet_jax.tasks.classification.tables import Published

_ID = ("id", "idx")
_PAIR = ("sentence1",), ("sentence2",)
_BINARY = ("0", "1")


def join_keywords(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of CSL with its list of keywords as one text."""
    return {**row, "keyword": " ".join(row["keyword"])}


def mark_spans(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of CLUEWSC2020 whose text has the noun between underscores and the pronoun between brackets."""
    text, target = row["text"], row["target"]
    noun = (target["span1_index"], target["span1_text"], "_", "_")
    pronoun = (target["span2_index"], target["span2_text"], "[", "]")
    for begin, span, before, after in sorted((noun, pronoun), reverse=True):
        end = begin + len(span)
        if text[begin:end] != span:
            raise ValueError(f"{span!r} is not at {begin} in its text")
        text = f"{text[:begin]}{before}{span}{after}{text[end:]}"
    return {**row, "text": text}


CLUE: dict[str, Published] = {
    "afqmc": Published(*_PAIR, id=_ID, labels=_BINARY, submission="afqmc_predict.json"),
    "tnews": Published(
        ("sentence",), id=_ID, labels=tuple(str(n) for n in range(100, 117) if n not in (105, 111)),
        submission="tnews_predict.json",
    ),
    "iflytek": Published(("sentence",), id=_ID, labels=tuple(map(str, range(119))), submission="iflytek_predict.json"),
    "cmnli": Published(
        *_PAIR, id=_ID, labels=("contradiction", "entailment", "neutral"),
        numbered=("neutral", "entailment", "contradiction"), submission="cmnli_predict.json",
    ),
    "cluewsc2020": Published(id=_ID, labels=("true", "false"), submission="wsc_predict.json", reshape=mark_spans),
    "csl": Published(
        ("keyword",), ("abst",), id=_ID, labels=_BINARY, submission="csl_predict.json", reshape=join_keywords
    ),
}  # fmt: skip
