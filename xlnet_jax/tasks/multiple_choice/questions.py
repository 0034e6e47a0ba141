"""Questions with options: RACE and DREAM in their published forms, and JSON lines."""

import json
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from etils import epath

from data_pipelines.readers import numbered_lines, whole
from data_pipelines.sources import find
from xlnet_jax.errors import InputError
from xlnet_jax.tasks.config import ColumnsConfig

LEVELS = ("middle", "high")
GAP = "_"


@dataclass(frozen=True)
class Question:
    """One question about a text."""

    id: str
    context: str
    question: str
    options: tuple[str, ...]
    answer: int | None  # which option is right, from 0
    where: str = field(repr=False)  # file and record, for messages
    level: str | None = None  # RACE: middle or high (school)

    def asked(self, option: int) -> str:
        """The question with an option: in place of its gaps, or behind it (`get_examples` of run_race.py)."""
        text = self.options[option]
        return self.question.replace(GAP, text) if GAP in self.question else f"{self.question} {text}"


def letter(option: int) -> str:
    """A for the first option."""
    return string.ascii_uppercase[option]


def read_questions(names: Sequence[str], labelled: bool, form: str, columns: ColumnsConfig) -> list[Question]:
    """The questions of files, globs and folders.

    form: race, an object a file; dream, a list of dialogues a file; otherwise an object a line, with its fields by
    `columns` (else context, question, options, answer, id). labelled: an answer must be there; otherwise none is read.
    InputError names file and record of what cannot be read, and an id that is there twice.
    """
    reader: Callable[[str, bool], Iterator[Question]]
    reader = {"race": _race, "dream": _dream}.get(form, lambda path, labelled: _json_lines(path, labelled, columns))
    found: dict[str, Question] = {}
    for path in _files(names):
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


def _race(path: str, labelled: bool) -> Iterator[Question]:
    content = _fields(_json(_text(path), path), path, "article", "questions", "options")
    school, file = epath.Path(path).parent.name, epath.Path(path).name
    name = content.get("id", f"{school}/{file}")
    questions, options = (_list(content[key], f"{path}: {key}") for key in ("questions", "options"))
    answers = _list(_fields(content, path, "answers")["answers"], f"{path}: answers") if labelled else questions
    if not len(questions) == len(options) == len(answers):
        raise InputError(
            f"{path}: {len(questions)} questions, {len(options)} lists of options and {len(answers)} answers; each "
            "question needs one of both"
        )
    level = next((level for level in LEVELS if school == level or str(name).startswith(level)), None)
    for i, (question, of_question, answer) in enumerate(zip(questions, options, answers, strict=True)):
        where = f"{path}: question {i + 1}"
        yield _question(f"{name}-{i}", content["article"], question, of_question, answer, where, labelled, level)


def _dream(path: str, labelled: bool) -> Iterator[Question]:
    for number, dialogue in enumerate(_list(_json(_text(path), path), path), 1):
        where = f"{path}: dialogue {number}"
        if not (isinstance(dialogue, list) and len(dialogue) == 3 and isinstance(dialogue[2], str)):
            raise InputError(f"{where} is not of DREAM's form: [[turn, …], [{{question, choice, answer}}, …], id]")
        turns, questions, name = dialogue
        spoken = " ".join(_string(turn, where) for turn in _list(turns, f"{where}, turns"))
        for i, asked in enumerate(_list(questions, f"{where}, questions")):
            at = f"{where} ({name}), question {i + 1}"
            fields = _fields(asked, at, "question", "choice", *["answer"] * labelled)
            choice, answer = fields["choice"], fields.get("answer")
            yield _question(f"{name}-{i}", spoken, fields["question"], choice, answer, at, labelled)


def _json_lines(path: str, labelled: bool, columns: ColumnsConfig) -> Iterator[Question]:
    context, question = columns.text or "context", columns.text_pair or "question"
    answer, name = columns.label or "answer", columns.id or "id"
    for number, line in enumerate(_text(path).split("\n"), 1):
        if line.strip():
            where = f"{path}: line {number}"
            fields = _fields(_json(line, where), where, context, question, "options", *[answer] * labelled)
            of_line = str(fields.get(name, f"{epath.Path(path).name}-{number}"))
            texts = fields[context], fields[question], fields["options"]
            yield _question(of_line, *texts, fields.get(answer), where, labelled)


def _question(
    name: str,
    context: Any,
    question: Any,
    options: Any,
    answer: Any,
    where: str,
    labelled: bool,
    level: str | None = None,
) -> Question:
    texts = tuple(_string(option, f"{where}, options") for option in _list(options, f"{where}, options"))
    if not _string(context, where).strip():
        raise InputError(f"{where}: the text that it asks about is empty")
    if not 2 <= len(texts) <= len(string.ascii_uppercase):
        raise InputError(
            f"{where} has {len(texts)} options; from 2 to {len(string.ascii_uppercase)} can be chosen from"
        )
    if sum(not text.strip() for text in texts) > 1:
        raise InputError(f"{where}: more than one option is empty, so that they cannot be told apart")
    right = _answer(answer, texts, where) if labelled else None
    return Question(whole(name, f"{where}: its id"), context, _string(question, where), texts, right, where, level)


def _answer(answer: Any, options: tuple[str, ...], where: str) -> int:
    """By its text, its letter or its number from 0, in this order."""
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


def _files(names: Sequence[str]) -> Iterator[str]:
    for source in find(names):
        for unit in source.units:
            if not isinstance(path := getattr(unit, "path", None), str):
                raise InputError(f"{source.given}: questions with options are read from files; give files")
            yield path


def _text(path: str) -> str:
    return "\n".join(line for _, line in numbered_lines(path))


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not JSON ({error}); mend it, or name another --task for another form") from None


def _fields(value: Any, where: str, *names: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where} is no JSON object; it should have {', '.join(names)}")
    if missing := [name for name in names if name not in value]:
        raise InputError(f"{where} has no field {missing[0]!r}, only {', '.join(value) or 'none at all'}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise InputError(f"{where}: a list is wanted, not {value!r:.60}")
    return value


def _string(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where}: a text is wanted, not {value!r:.60}")
    return whole(value, f"{where}: its text")
