"""Read questions about texts from the JSON of SQuAD 1.1 and 2.0 (also DRCD and CMRC 2018), and from CMRC 2018's own
form."""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from data_pipelines.notes import tell
from xlnet_jax.errors import InputError
from xlnet_jax.tasks.readers import Record, checked, files, json_file, records

NOWHERE = -1


@dataclass(frozen=True)
class Answer:
    text: str
    start: int  # its first character in the text; NOWHERE = it does not occur


@dataclass(frozen=True)
class Question:
    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]  # none where it is unanswerable, or where answers are not known
    is_impossible: bool = False

    @property
    def answer(self) -> Answer | None:
        """Answer to learn: the first one that occurs in the text; None where no answer does."""
        return next((a for a in self.answers if a.start != NOWHERE), None)


def read_questions(paths: Sequence[str], labelled: bool, unanswerable: bool) -> list[Question]:
    """Read the questions of files, globs and folders.

    labelled: every question has an answer, or is unanswerable; otherwise answers are not read. Answers that do not
    stand at their answer_start move to the nearest place where they occur, and one line on stderr counts them. Raises
    InputError, with file and record, on what cannot be read.
    """
    questions: list[Question] = []
    places: dict[str, str] = {}
    for path in files(paths, "questions"):
        found = list(_questions_in(path, labelled, unanswerable))
        for question in found:
            if question.id in places:
                raise InputError(f"{path}: the id {question.id!r} is there twice, first in {places[question.id]}")
            places[question.id] = path
        mended = [_mended(question) for question in found]
        _report(path, found, mended)
        questions += mended
    if not questions:
        raise InputError(f"{', '.join(paths)}: there is no question in it")
    return questions


def unlabelled_question(given: Any, number: int) -> Question:
    """Return the question of {"question": …, "context": …}. Raises InputError on another form, or an empty text."""
    record = Record(checked(given, dict, f"input {number}"), f"input {number}")
    question = Question(str(number), record.get("question", str), record.get("context", str), ())
    for what, text in (("text", question.context), ("question", question.question)):
        if not text.strip():
            raise InputError(f"input {number}: its {what} is empty")
    return question


def _questions_in(path: str, labelled: bool, unanswerable: bool) -> Iterator[Question]:
    content = json_file(path)
    if isinstance(content, dict) and "data" in content:
        found = _squad(Record(content, path), labelled)
    elif isinstance(content, list):
        found = _cmrc(path, content, labelled)
    else:
        raise InputError(f"{path}: neither SQuAD's form (an object with 'data') nor CMRC 2018's (a list of texts)")
    for question, where in found:
        if not question.context.strip():
            raise InputError(f"{where}: its text is empty")
        if question.is_impossible and not unanswerable:
            raise InputError(f"{where} is unanswerable: `task` squad2 learns that, or leave it out")
        if question.is_impossible and question.answers:
            raise InputError(f"{where} is unanswerable and has an answer: one of them is wrong")
        if labelled and not question.answers and not question.is_impossible:
            raise InputError(f"{where} has no answer, and is_impossible is not true: give it one of them")
        yield question


def _squad(top: Record, labelled: bool) -> Iterator[tuple[Question, str]]:
    for article in top.records("data", "article"):
        for paragraph in article.records("paragraphs", "paragraph"):
            context = paragraph.get("context", str)
            for record in paragraph.records("qas", "question"):
                id = record.get("id", str)
                named = replace(record, where=f"{record.where} ({id})")
                question = Question(id, named.get("question", str), context, ())
                if labelled:
                    records = named.records("answers", "answer") if "answers" in named.content else ()
                    answers = (_answer(r.get("text", str), r.get("answer_start", int), r.where) for r in records)
                    is_impossible = "is_impossible" in named.content and named.get("is_impossible", bool)
                    question = replace(question, answers=tuple(answers), is_impossible=is_impossible)
                yield question, named.where


def _cmrc(path: str, texts: Sequence[Any], labelled: bool) -> Iterator[tuple[Question, str]]:
    for text in records(texts, f"{path}, text"):
        context = text.get("context_text", str)
        for record in text.records("qas", "question"):
            id = record.get("query_id", str)
            where = f"{record.where} ({id})"
            given = record.get("answers", list) if labelled and "answers" in record.content else []
            answers = [checked(answer, str, f"{where}: an answer") for answer in given]
            # CMRC names no place: take the first, as the published conversion to SQuAD's form does.
            placed = tuple(_answer(a, context.find(a), where) for a in answers)
            yield Question(id, record.get("query_text", str), context, placed), where


def _answer(text: str, start: int, where: str) -> Answer:
    if not text:
        raise InputError(f"{where}: the text of the answer is empty")
    return Answer(text, start)


def _mended(question: Question) -> Question:
    if all(_is_there(a, question.context) for a in question.answers):
        return question
    return replace(question, answers=tuple(_moved(a, question.context) for a in question.answers))


def _is_there(answer: Answer, context: str) -> bool:
    return answer.start >= 0 and context.startswith(answer.text, answer.start)


def _moved(answer: Answer, context: str) -> Answer:
    if _is_there(answer, context):
        return answer
    found = [m.start() for m in re.finditer(f"(?={re.escape(answer.text)})", context)]
    return replace(answer, start=min(found, key=lambda start: abs(start - answer.start), default=NOWHERE))


def _report(path: str, found: Sequence[Question], mended: Sequence[Question]) -> None:
    before, after = ([answer for question in some for answer in question.answers] for some in (found, mended))
    moved = sum(old != new for old, new in zip(before, after, strict=True) if new.start != NOWHERE)
    nowhere = [m.id for m in mended if m.answers and m.answer is None]
    if empty := [question.id for question in found if not question.question.strip()]:
        tell(f"{path}: {len(empty)} questions are empty, {empty[0]} the first; they are read as they are")
    if moved or nowhere:
        print(
            f"{path}: {moved} answers were not at their answer_start and were moved to where they occur; "
            f"{len(nowhere)} questions are skipped in training, as no answer of theirs occurs in its text"
            + (f" ({', '.join(nowhere[:3])}{', …' if len(nowhere) > 3 else ''})" if nowhere else ""),
            file=sys.stderr,
        )
