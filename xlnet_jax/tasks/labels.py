"""Names of labels: how a value in a file becomes one, and which of them are easily mistaken for each other."""

import ast
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from xlnet_jax.errors import InputError

SHOWN = 12  # labels, in a line
ON, OFF = ("1", "True"), ("0", "False")  # in an indicator vector
_WHOLE = re.compile(r"[+-]?\d+\.0+")
_ARRAY = re.compile(r"\[[\d.\s]+\]")  # as NumPy prints one


def label_name(value: Any) -> str:
    """Return the name of a label: its text without white space around it. The number 1.0 has the name of 1."""
    text = str(value).strip()
    return text.partition(".")[0] if _WHOLE.fullmatch(text) else text


def label_list(value: Any, separator: str) -> list[Any] | None:
    """Return the labels of one text, from a list, or from text with a separator or in the form of a Python list; None
    for anything else."""
    if isinstance(value, str):
        text = value.strip()
        if _ARRAY.fullmatch(text):
            value = text[1:-1].replace(separator, " ").split()
        elif text.startswith("[") and text.endswith("]"):
            try:
                value = ast.literal_eval(text)
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                value = text.split(separator)
        else:
            value = text.split(separator)
    value = value.tolist() if hasattr(value, "tolist") else value
    is_list = isinstance(value, list | tuple) and not any(isinstance(one, list | dict | None) for one in value)
    return list(value) if is_list else None


def vector_length(labels: Sequence[Sequence[str]]) -> int | None:
    """Return the length of indicator vectors, such as 3 for ["0", "1", "0"]; None if the labels are names.

    They are vectors if all values are 0 or 1 and all have one length of at least 2, or if a value occurs twice. Of
    vectors with different lengths, return the most frequent length.
    """
    lengths = Counter(map(len, labels))
    if any(one not in (*ON, *OFF) for of_text in labels for one in of_text):
        return None
    repeats = any(len(set(of_text)) < len(of_text) for of_text in labels)
    length = max(lengths, key=lambda each: (lengths[each], each), default=0)
    return length if repeats or (len(lengths) == 1 and length > 1) else None


def require_label(label: str, known: Collection[str], where: str) -> None:
    """Raise InputError for a label that is not one of the training examples'."""
    if label not in known:
        shown = ", ".join([*known][:SHOWN]) + (", …" if len(known) > SHOWN else "")
        raise InputError(
            f"{where}: the label {label!r:.60} does not occur in the training examples, which have {shown}"
        )


def describe_labels(labels: Iterable[str | float]) -> str:
    """Return the labels with their counts, the most frequent first, and those that differ only in case, white space or
    Unicode form; of numbers the range and the mean."""
    values = list(labels)
    if values and all(isinstance(value, float) for value in values):
        numbers = [float(value) for value in values]
        return f"{min(numbers):.4g} to {max(numbers):.4g}, mean {math.fsum(numbers) / len(numbers):.4g}"
    counts = Counter(map(str, values))
    shown = [f"{label} ({count:,})" for label, count in sorted(counts.items(), key=lambda each: (-each[1], each[0]))]
    more = f" and {len(counts) - SHOWN} more" if len(counts) > SHOWN else ""
    return "; ".join([", ".join(shown[:SHOWN]) + more, *_look_alikes(counts)])


def _look_alikes(counts: Counter[str]) -> list[str]:
    groups: dict[str, list[str]] = {}
    for label in sorted(counts, key=lambda label: (-counts[label], label)):
        groups.setdefault(_simplified(label), []).append(label)
    found = []
    for group in groups.values():
        if len(group) > 1:
            write = repr if group[0].isascii() else ascii  # repr would show Unicode forms alike
            names = " and ".join(f"{write(label)} ({counts[label]:,})" for label in group)
            found.append(f"{names} differ only in case, white space or Unicode form: are they one label?")
    return found[:SHOWN]


def _simplified(label: str) -> str:
    """Return a label without its case, white space and Unicode form."""
    seen = (c for c in label.casefold() if not c.isspace() and unicodedata.category(c) != "Cf")  # Cf: zero width
    return unicodedata.normalize("NFKC", "".join(seen))
