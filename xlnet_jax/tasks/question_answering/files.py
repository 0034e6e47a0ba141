"""Questions about texts: rows of them from the JSON of SQuAD 1.1 and 2.0 (also DRCD and CMRC 2018) and from CMRC 2018's
own form, and the question of a row."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from data_pipelines.readers import whole
from xlnet_jax.errors import InputError
from xlnet_jax.printing import tell
from xlnet_jax.tasks.readers import Record, demand_kind, json_file, records

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
    where: str = field(default="", repr=False)  # file and record, for messages

    @property
    def answer(self) -> Answer | None:
        """Answer to learn: the first one that occurs in the text; None where no answer does."""
        return next((a for a in self.answers if a.start != NOWHERE), None)


def read_rows(path: str) -> Iterator[Record]:
    """Yield a row for each question of a file: id, question, context, answers and is_impossible, where it has them.

    Raises InputError, with file and record, on what cannot be read.
    """
    content = json_file(path)
    if isinstance(content, dict) and "data" in content:
        return _squad(Record(content, path))
    if isinstance(content, list):
        return _cmrc(path, content)
    raise InputError(f"{path}: neither SQuAD's form (an object with 'data') nor CMRC 2018's (a list of texts)")


def question_of(row: Record, number: int, labelled: bool, unanswerable: bool) -> Question:
    """Return the question of a row.

    Its answers are SQuAD's list of objects, the Hub's object of lists {"text": […], "answer_start": […]}, where none
    means that it is unanswerable, or CMRC's list of texts, each of which counts where it occurs first.

    labelled: the question has an answer, or is unanswerable; otherwise answers are not read. unanswerable: the task has
    such questions. Raises InputError on a row of another form.
    """
    where, context, question = row.where, row.get("context", str), row.get("question", str)
    if not context.strip():
        raise InputError(f"{where}: its text is empty")
    name = whole(str(row.content.get("id", number)), f"{where}: its id")
    if not labelled:
        return Question(name, question, context, (), where=where)
    given, is_impossible = row.content.get("answers", ()), False
    if isinstance(given, Mapping):
        texts, starts = (Record(given, f"{where}: 'answers'").get(key, list) for key in ("text", "answer_start"))
        given = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=False)]
        is_impossible = not given
    elif given:
        given = demand_kind(given, list, f"{where}: 'answers'")
    if "is_impossible" in row.content:
        is_impossible = row.get("is_impossible", bool)
    answers = []
    for i, each in enumerate(given):
        at = f"{where}, answer {i}"
        if isinstance(each, str):
            answers.append(Answer(demand_kind(each, str, at), context.find(each)))
        else:
            answer = Record(demand_kind(each, dict, at), at)
            answers.append(Answer(answer.get("text", str), answer.get("answer_start", int)))
        if not answers[-1].text:
            raise InputError(f"{at}: the text of the answer is empty")
    if is_impossible and not unanswerable:
        raise InputError(f"{where} is unanswerable: `task` squad2 learns that, or leave it out")
    if is_impossible and answers:
        raise InputError(f"{where} is unanswerable and has an answer: one of them is wrong")
    if not answers and not is_impossible:
        raise InputError(f"{where} has no answer, and is_impossible is not true: give it one of them")
    return Question(name, question, context, tuple(answers), is_impossible, where)


def mend_answers(path: str, found: Sequence[Question]) -> list[Question]:
    """Move answers that are not at their answer_start to the nearest place where they occur, and count them in a line
    on stderr."""
    mended = [replace(q, answers=tuple(_moved(a, q.context) for a in q.answers)) for q in found]
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
    return mended


def _squad(top: Record) -> Iterator[Record]:
    for article in top.records("data", "article"):
        for paragraph in article.records("paragraphs", "paragraph"):
            context = paragraph.get("context", str)
            for question in paragraph.records("qas", "question"):
                where = f"{question.where} ({question.get('id', str)})"
                yield Record({**question.content, "context": context}, where)


def _cmrc(path: str, texts: list[object]) -> Iterator[Record]:
    for text in records(texts, f"{path}, text"):
        context = text.get("context_text", str)
        for asked in text.records("qas", "question"):
            name = asked.get("query_id", str)
            row = {**asked.content, "id": name, "question": asked.get("query_text", str), "context": context}
            yield Record(row, f"{asked.where} ({name})")


def _moved(answer: Answer, context: str) -> Answer:
    if answer.start >= 0 and context.startswith(answer.text, answer.start):
        return answer
    found = [m.start() for m in re.finditer(f"(?={re.escape(answer.text)})", context)]
    return replace(answer, start=min(found, key=lambda start: abs(start - answer.start), default=NOWHERE))
