"""Examples that Python code gives as rows (a list of dictionaries or a table of pandas), as files that tasks read."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from xlnet_jax.errors import InputError, shown
from xlnet_jax.tasks.config import FinetuneConfig

Rows = list[dict[str, Any]]


def rows_of(value: Any) -> Rows | None:
    """Return the rows of a list of dictionaries or a table; None of anything else, as paths."""
    if hasattr(value, "columns") and hasattr(value, "to_dict"):
        return list(value.to_dict("records"))
    is_list = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
    found = list(value) if is_list else []
    return [dict(row) for row in found] if found and all(isinstance(row, Mapping) for row in found) else None


def file_of(rows: Rows, role: str, config: FinetuneConfig) -> tuple[str, bytes]:
    """Return the name and the content of a file of rows that the task reads. Equal rows have equal names.

    role: train, eval or predict. Rows are those of JSON lines for texts and for questions with options; have words and
    labels, lists of equal length, for labels of words; and for questions about a text question, context, and answers
    {"text": […], "answer_start": […]}, as SQuAD's have on the Hub. Raises InputError on rows of another form.
    """
    task = config.head.task
    if config.task in ("ranking", "race", "dream"):
        raise InputError(f"`{role}` holds rows, and `task` {config.task} reads files of its own form: name those")
    if task == "token_classification":
        end, text = "conll", "".join(_conll(row, f"`{role}`: row {number}") for number, row in enumerate(rows))
    elif task == "question_answering":
        paragraphs = [_squad(row, number, f"`{role}`: row {number}") for number, row in enumerate(rows)]
        end, text = "json", json.dumps({"data": [{"paragraphs": paragraphs}]}, default=_plain)
    else:
        end, text = "jsonl", "".join(f"{json.dumps(_without_gaps(row), default=_plain)}\n" for row in rows)
    content = text.encode()
    return f"{role}-{hashlib.sha256(content).hexdigest()[:12]}.{end}", content


def _conll(row: Mapping[str, Any], where: str) -> str:
    words, labels = (_words(row, name, where) for name in ("words", "labels"))
    labels = labels or ["O"] * len(words)  # to predict
    if not words or len(words) != len(labels):
        raise InputError(f"{where} has {len(words)} words and {len(labels)} labels: give each word its label")
    return "".join(f"{word}\t{label}\n" for word, label in zip(words, labels, strict=True)) + "\n"


def _words(row: Mapping[str, Any], name: str, where: str) -> Sequence[str]:
    values = row.get(name, [])
    found = [values] if isinstance(values, str) or not isinstance(values, Iterable) else list(values)
    for word in found:
        if not isinstance(word, str) or not word.strip() or len(word.splitlines()) > 1 or "\t" in word:
            raise InputError(f"{where}: {name} is a list of words, and {shown(word)} is none")
    return found


def _squad(row: Mapping[str, Any], number: int, where: str) -> dict[str, Any]:
    for name in ("question", "context"):
        if not isinstance(row.get(name), str):
            raise InputError(f"{where} has no {name!r}, only {', '.join(map(repr, row)) or 'nothing'}")
    answers = row.get("answers")
    asked: dict[str, Any] = {"id": str(row.get("id", number)), "question": row["question"]}
    if answers is not None:
        if not isinstance(answers, Mapping) or not {"text", "answer_start"} <= answers.keys():
            raise InputError(f'{where}: answers are {{"text": [...], "answer_start": [...]}}, and not {shown(answers)}')
        pairs = zip(list(answers["text"]), list(answers["answer_start"]), strict=False)
        asked["answers"] = [{"text": text, "answer_start": start} for text, start in pairs]
        asked["is_impossible"] = not asked["answers"]
    return {"context": row["context"], "qas": [asked]}


def _without_gaps(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with None in place of what a table of pandas has where nothing is (NaN)."""
    return {str(name): None if isinstance(value, float) and value != value else value for name, value in row.items()}


def _plain(value: Any) -> Any:
    """Return a number or an array of NumPy as JSON knows it."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise InputError(f"{value!r:.60} is neither text, a number nor a list: no file of examples can hold it")
