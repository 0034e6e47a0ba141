"""Read questions with options: RACE and DREAM in their published forms, and JSON lines."""

import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from etils import epath

from data_pipelines.readers import whole
from xlnet_jax.errors import InputError
from xlnet_jax.tasks.config import ColumnsConfig
from xlnet_jax.tasks.readers import Record, checked, files, json_file, json_lines

LEVELS = ("middle", "high")
GAP = "_"


@dataclass(frozen=True)
class Question:
    """Question about a text, with its options."""

    id: str
    context: str
    question: str
    options: tuple[str, ...]
    answer: int | None  # which option is right, from 0
    where: str = field(repr=False)  # file and record, for messages
    level: str | None = None  # RACE: middle or high (school)

    def asked(self, option: int) -> str:
        """Return the question with an option, in place of its gaps or behind the question (`get_examples` of
        run_race.py)."""
        text = self.options[option]
        return self.question.replace(GAP, text) if GAP in self.question else f"{self.question} {text}"


def letter(option: int) -> str:
    """Return the letter of an option: A for the first."""
    return string.ascii_uppercase[option]


def read_questions(names: Sequence[str], labelled: bool, form: str, columns: ColumnsConfig) -> list[Question]:
    """Read the questions of files, globs and folders.

    form: race (one object a file), dream (a list of dialogues a file), or else JSON lines, whose fields `columns` names
    (default: context, question, options, answer, id). labelled: every question needs an answer; otherwise answers are
    not read. Raises InputError, with file and record, on what cannot be read and on an id that occurs twice.
    """
    reader: Callable[[str, bool], Iterator[Question]]
    reader = {"race": _race, "dream": _dream}.get(form, lambda path, labelled: _json_lines(path, labelled, columns))
    found: dict[str, Question] = {}
    for path in files(names, "questions"):
        before = len(found)
        for question in reader(path, labelled):
            if question.id in found:
                raise InputError(
                    f"{question.where}: the id {question.id} is there already ({found[question.id].where}); an id "
                    "names one question"
                )
            found[question.id] = question
        if len(found) == before:
            raise InputError(f"{path}: no questions are in it")
    return list(found.values())


def unlabelled_question(given: Any, number: int) -> Question:
    """Return the question of {"context": …, "question": …, "options": […]}. Raises InputError on another form."""
    where = f"input {number}"
    record = Record(checked(given, dict, where), where)
    context, question, options = record.get("context", str), record.get("question", str), record.get("options", list)
    return _question(str(number), context, question, options, None, where, labelled=False)


def _race(path: str, labelled: bool) -> Iterator[Question]:
    record = Record(checked(json_file(path), dict, path), path)
    school, file = epath.Path(path).parent.name, epath.Path(path).name
    name = record.content.get("id", f"{school}/{file}")
    article, questions, options = record.get("article", str), record.get("questions", list), record.get("options", list)
    answers = record.get("answers", list) if labelled else questions
    if not len(questions) == len(options) == len(answers):
        raise InputError(
            f"{path}: {len(questions)} questions, {len(options)} lists of options and {len(answers)} answers; each "
            "question needs one of both"
        )
    level = next((level for level in LEVELS if school == level or str(name).startswith(level)), None)
    for i, (question, of_question, answer) in enumerate(zip(questions, options, answers, strict=True)):
        where = f"{path}: question {i + 1}"
        asked = checked(question, str, where)
        yield _question(f"{name}-{i}", article, asked, of_question, answer, where, labelled, level)


def _dream(path: str, labelled: bool) -> Iterator[Question]:
    for number, dialogue in enumerate(checked(json_file(path), list, path), 1):
        where = f"{path}: dialogue {number}"
        if not (isinstance(dialogue, list) and len(dialogue) == 3 and isinstance(dialogue[2], str)):
            raise InputError(f"{where} is not of DREAM's form: [[turn, …], [{{question, choice, answer}}, …], id]")
        turns, questions, name = dialogue
        spoken = " ".join(checked(turn, str, f"{where}, turn") for turn in checked(turns, list, f"{where}, turns"))
        for i, asked in enumerate(checked(questions, list, f"{where}, questions")):
            at = f"{where} ({name}), question {i + 1}"
            record = Record(checked(asked, dict, at), at)
            answer = record.get("answer", object) if labelled else None
            choice = record.get("choice", list)
            yield _question(f"{name}-{i}", spoken, record.get("question", str), choice, answer, at, labelled)


def _json_lines(path: str, labelled: bool, columns: ColumnsConfig) -> Iterator[Question]:
    for number, record in json_lines(path):
        name = str(record.content.get(columns.id or "id", f"{epath.Path(path).name}-{number}"))
        context, question = record.get(columns.text or "context", str), record.get(columns.text_pair or "question", str)
        answer = record.get(columns.label or "answer", object) if labelled else None
        yield _question(name, context, question, record.get("options", list), answer, record.where, labelled)


def _question(
    name: str,
    context: str,
    question: str,
    options: Any,
    answer: Any,
    where: str,
    labelled: bool,
    level: str | None = None,
) -> Question:
    texts = tuple(checked(o, str, f"{where}, an option") for o in checked(options, list, f"{where}: its options"))
    if not context.strip():
        raise InputError(f"{where}: the text that it asks about is empty")
    if not 2 <= len(texts) <= len(string.ascii_uppercase):
        raise InputError(
            f"{where} has {len(texts)} options; from 2 to {len(string.ascii_uppercase)} can be chosen from"
        )
    if sum(not text.strip() for text in texts) > 1:
        raise InputError(f"{where}: more than one option is empty, so that they cannot be told apart")
    right = _answer(answer, texts, where) if labelled else None
    return Question(whole(name, f"{where}: its id"), context, question, texts, right, where, level)


def _answer(answer: Any, options: tuple[str, ...], where: str) -> int:
    if answer in options:
        return options.index(answer)
    letters = string.ascii_uppercase[: len(options)]
    if isinstance(answer, str) and len(answer) == 1 and answer in letters:
        return letters.index(answer)
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(options):
        return answer
    raise InputError(
        f"{where}: the answer {answer!r:.60} is none of its {len(options)} options, nor a letter from A to "
        f"{letters[-1]}, nor a number from 0 to {len(options) - 1}"
    )
