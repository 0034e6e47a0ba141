"""Questions from the published forms of SQuAD, DRCD and CMRC 2018; what is mended, and what is refused."""

import json

import pytest

from xlnet_jax.tasks.defaults import DEFAULTS, make_task
from xlnet_jax.tasks.question_answering.files import NOWHERE

CONTEXT = "The tea was cold. The tea of Bath was warm."


def task(unanswerable=True):
    return make_task(DEFAULTS["squad2" if unanswerable else "squad"]())


def squad(*questions, context=CONTEXT):
    return {"version": "v2.0", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": list(questions)}]}]}


def asked(id="q", *answers, **more):
    return {
        "id": id,
        "question": "Which tea?",
        "answers": [{"text": text, "answer_start": start} for text, start in answers],
        **more,
    }


@pytest.fixture
def read(tmp_path):
    def read(content, labelled=True, unanswerable=True):
        path = tmp_path / "data.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return task(unanswerable).read([str(path)], labelled)

    return read


def test_squad_form_is_read_with_its_unanswerable_questions(read):
    first, second = read(squad(asked("a", ("cold", 12), ("was cold", 8)), asked("b", is_impossible=True)))
    assert (first.id, first.question, first.context) == ("a", "Which tea?", CONTEXT)
    assert [(a.text, a.start) for a in first.answers] == [("cold", 12), ("was cold", 8)]
    assert not first.is_impossible
    assert second.is_impossible
    assert second.answers == ()


def test_cmrc_form_is_read_with_the_first_place_of_its_answers(read, capsys):
    question = {"query_id": "Q0", "query_text": "什么茶？", "answers": ["茶", "没有"]}
    (found,) = read([{"context_id": "C0", "context_text": "热茶和冷茶", "qas": [question], "title": "茶"}])
    assert (found.id, found.question, found.context) == ("Q0", "什么茶？", "热茶和冷茶")
    assert [(a.text, a.start) for a in found.answers] == [("茶", 1), ("没有", NOWHERE)]
    assert found.answer == found.answers[0]
    assert capsys.readouterr().err == ""


def test_answers_are_moved_to_the_nearest_place_where_they_occur_and_counted(read, capsys):
    near, far, lost, both = read(
        squad(asked("a", ("tea", 1)), asked("b", ("tea", 30)), asked("c", ("milk", 3)), asked("d", ("x", 0), ("of", 0)))
    )
    assert near.answers[0].start == 4
    assert far.answers[0].start == 22
    assert lost.answer is None
    assert both.answer == both.answers[1]
    (line,) = capsys.readouterr().err.splitlines()
    assert "3 answers were not at their answer_start and were moved" in line
    assert "1 questions are skipped in training, as no answer of theirs occurs in its text (c)" in line


def test_cmrc_as_published_is_mended(published, capsys):
    path = published("finetune/cmrc2018/cmrc2018_trial.json")
    found = task(False).read([str(path)], True)
    assert len(found) == 1002
    assert all(q.context.startswith(a.text, a.start) for q in found for a in q.answers)
    assert "5 answers were not at their answer_start" in capsys.readouterr().err


def test_unlabelled_files_may_say_what_they_like_of_answers(read):
    (found,) = read(squad({"id": "a", "question": "?", "answers": [{"text": 3}], "is_impossible": True}), False, False)
    assert found.answers == ()
    assert not found.is_impossible
