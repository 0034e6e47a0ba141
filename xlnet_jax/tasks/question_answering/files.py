"""Read questions about texts, from the JSON format of SQuAD 1.1 and 2.0 (also used by DRCD and CMRC 2018) and from CMRC
2018's own format."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat

from xlnet_jax.errors import InputError
from xlnet_jax.tasks.readers import Row, json_file, require_form

NOWHERE = -1


@dataclass(frozen=True)
class Question:
    id: str
    question: str
    context: str
    answers: tuple[str, ...] = ()  # none if it is unanswerable, or its answers are unknown
    starts: tuple[int, ...] = ()  # index of the first character of each in the text; NOWHERE = it does not occur
    is_impossible: bool = False
    where: str = field(default="", repr=False)  # file and record, for messages

    @property
    def answer(self) -> tuple[str, int] | None:
        """Answer to train on, with its start: the first one that occurs in the text; None if no answer does."""
        found = zip(self.answers, self.starts, strict=True)
        return next(((text, start) for text, start in found if start != NOWHERE), None)


def read_rows(path: str) -> Iterator[Row]:
    """Yield a row for each question of a file of SQuAD (an object with "data") or of CMRC 2018 (a list of texts). A row
    has id, question, context, and maybe answers and is_impossible."""
    content = json_file(path)
    if isinstance(content, list):
        for text in content:
            for asked in text["qas"]:
                name = asked["query_id"]
                row = {**asked, "id": name, "question": asked["query_text"], "context": text["context_text"]}
                yield Row(row, f"{path}, question {name}")
        return
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            for asked in paragraph["qas"]:
                yield Row({**asked, "context": paragraph["context"]}, f"{path}, question {asked['id']}")


def question_of(row: Row, number: int, labelled: bool, unanswerable: bool) -> Question:
    """Return the question of a row.

    Answers are a list of objects, as in SQuAD; an object of lists {"text": […], "answer_start": […]}, as on the Hub,
    where empty lists mean that the question is unanswerable; or a list of texts, as in CMRC, each of which is taken at
    its first occurrence.

    labelled: read the answers; the question must have one, or be unanswerable. unanswerable: the task has unanswerable
    questions. Raises InputError for a row in another format.
    """
    where, context, question = row.where, row.text("context"), row.text("question")
    name = str(row.content.get("id", number))
    if not labelled:
        return Question(name, question, context, where=where)
    given, is_impossible = row.content.get("answers", ()), False
    if isinstance(given, Mapping):
        given = [{"text": t, "answer_start": s} for t, s in zip(given["text"], given["answer_start"], strict=True)]
        is_impossible = not given
    given = require_form(given, list, f"{where}: 'answers'")
    if "is_impossible" in row.content:
        is_impossible = row.get("is_impossible", bool)
    answers = tuple(a if isinstance(a, str) else a["text"] for a in given)
    starts = tuple(context.find(a) if isinstance(a, str) else a["answer_start"] for a in given)
    if not all(isinstance(text, str) and text for text in answers) or not all(type(start) is int for start in starts):
        raise InputError(f"{where}: an answer is a text and answer_start, the number of its first character")
    if is_impossible and not unanswerable:
        raise InputError(f"{where} is unanswerable: `task` squad2 supports that, or leave it out")
    if is_impossible == bool(answers):
        raise InputError(f"{where} needs either an answer or is_impossible true")
    return Question(name, question, context, answers, starts, is_impossible, where)


def repair_answers(path: str, found: Sequence[Question]) -> list[Question]:
    """Move answers that are not at their answer_start to the nearest place where they occur. Print their number on
    stderr."""
    mended = [replace(q, starts=tuple(map(_nearest_start, repeat(q.context), q.answers, q.starts))) for q in found]
    before, after = ([start for question in some for start in question.starts] for some in (found, mended))
    moved = sum(old != new for old, new in zip(before, after, strict=True) if new != NOWHERE)
    nowhere = [m.id for m in mended if m.answers and m.answer is None]
    if moved or nowhere:
        print(
            f"{path}: {moved} answers were not at their answer_start and were moved to where they occur; "
            f"{len(nowhere)} questions are skipped in training, as no answer of theirs occurs in its text"
            + (f" ({', '.join(nowhere[:3])}{', …' if len(nowhere) > 3 else ''})" if nowhere else ""),
            file=sys.stderr,
        )
    return mended


def _nearest_start(context: str, answer: str, start: int) -> int:
    if start >= 0 and context.startswith(answer, start):
        return start
    found = [m.start() for m in re.finditer(f"(?={re.escape(answer)})", context)]
    return min(found, key=lambda place: abs(place - start), default=NOWHERE)
