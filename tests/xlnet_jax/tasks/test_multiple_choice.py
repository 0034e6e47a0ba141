"""Questions with options: read as published, converted as the original does but for its leak, scored and written."""

import dataclasses
import json

import numpy as np
import pytest

from data_pipelines.tokenizer import SEP, Tokenizer
from tests.xlnet_jax.random_models import random_params
from tests.xlnet_jax.tasks.task_runs import json_lines, metrics, outputs_and_loss, tiny, write
from xlnet_jax.errors import InputError
from xlnet_jax.models.heads import build_model
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.tasks.config import ColumnsConfig
from xlnet_jax.tasks.defaults import DEFAULTS
from xlnet_jax.tasks.multiple_choice import ChoiceQuestion, MultipleChoice, encode_option

MIDDLE = {
    "id": "middle7.txt", "article": "The cat sat on the mat.\nIt slept.",
    "questions": ["Where did the cat sit?", "The cat _ on the mat."],
    "options": [["on the mat", "in the hat", "at the bat", "by the rat"], ["ran", "sat", "ate", "hid"]],
    "answers": ["A", "B"],
}  # fmt: skip
HIGH = {
    "id": "high2.txt", "article": "A dog barked at night.", "questions": ["What barked?"],
    "options": [["a cat", "a fox", "a dog", "a cow"]], "answers": ["C"],
}  # fmt: skip
DIALOGUE = [
    ["M: Shall we go?", "W: By bus."],
    [{"question": "How?", "choice": ["Bus", "Car", "Foot"], "answer": "Car"}],
    "4-7",
]


def task_of(name="multiple_choice", **columns):
    config = DEFAULTS["race"]()
    data = dataclasses.replace(config.data, seq_len=48, max_query_len=24)
    return MultipleChoice(dataclasses.replace(config, task=name, data=data, columns=ColumnsConfig(**columns)))


def test_each_option_is_what_the_original_makes_of_it_where_it_stands_first(reference):
    english = Tokenizer.load(reference / "data" / "spiece.model")
    cases = json.loads((reference / "finetune_data" / "race.json").read_text())["examples"]
    assert len(cases) == 12
    for case in cases:
        seq_len = case["max_seq_length"]
        context, *asked = english.encode_lines([case["context"], *case["qa_list"]])
        for i, question in enumerate(asked):
            ids, segments = encode_option(context, question, seq_len, case["max_qa_length"])
            theirs = {
                k: np.array(case[k][i * seq_len : (i + 1) * seq_len])
                for k in ("input_ids", "input_mask", "segment_ids")
            }
            real = theirs["input_mask"] == 0
            original = theirs["input_ids"][real]
            if i == 0:
                np.testing.assert_array_equal(ids, original)
                np.testing.assert_array_equal(segments, theirs["segment_ids"][real])
            # Behind the text, and what leaked into it, the original's question stands whole.
            asked_with = original[np.flatnonzero(original == SEP)[-2] :]
            room = seq_len - len(asked_with)
            np.testing.assert_array_equal(ids, np.concatenate([context[:room], asked_with]))
            assert segments.tolist() == [0] * (len(ids) - len(asked_with) + 1) + [1] * (len(asked_with) - 2) + [2]


def test_an_option_takes_the_place_of_gaps_or_stands_behind_the_question():
    question = ChoiceQuestion("1", "text", "He _ and _.", ("sat", "ran"), 0, "file")
    assert question.asked(1) == "He ran and ran."
    assert dataclasses.replace(question, question="What did he do?").asked(0) == "What did he do? sat"


def test_race_is_read_from_its_folders_with_its_levels(tmp_path):
    for name, content in (("middle/7.txt", MIDDLE), ("high/2.txt", HIGH)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(json.dumps(content))
    found = task_of("race").read([str(tmp_path)], "train")
    assert {(q.id, q.level, q.answer, len(q.options)) for q in found} == {
        ("high2.txt-0", "high", 2, 4), ("middle7.txt-0", "middle", 0, 4), ("middle7.txt-1", "middle", 1, 4),
    }  # fmt: skip
    assert next(q for q in found if q.level == "high").context == HIGH["article"]
    with pytest.raises(InputError, match="task race has fields of its own: leave `columns` out, or `task` multiple_ch"):
        task_of("race", text="story")


def test_dream_is_read_with_its_turns_as_one_text(tmp_path):
    (tmp_path / "dev.json").write_text("\ufeff" + json.dumps([DIALOGUE], indent=1).replace("\n", "\r\n"))
    (question,) = task_of("dream").read([str(tmp_path / "dev.json")], "eval")
    assert question.context == "M: Shall we go? W: By bus."
    assert (question.id, question.answer, question.level) == ("4-7-0", 1, None)


def test_json_lines_answer_by_text_letter_or_number_under_any_names(tmp_path):
    rows = [{"story": "s", "ask": "q", "options": ["B", "x", "y"], "key": key} for key in ("B", "C", 1, "y")]
    files = json_lines(tmp_path / "a.jsonl", rows)
    found = task_of(text="story", text_pair="ask", label="key").read(files, "train")
    assert [(q.id, q.answer) for q in found] == [("0", 0), ("1", 2), ("2", 1), ("3", 2)]


@pytest.fixture(scope="module")
def questions():
    return [
        ChoiceQuestion(f"q{i}", text, "Who came?", options, answer, f"file: line {i}", level)
        for i, text, options, answer, level in (
            (1, "The old man came at night.", ("the old man", "the king", "a dog", "no one"), 0, "middle"),
            (2, "A dog came.", ("the king", "a dog", "an old and very angry man"), 1, "high"),
            (3, "No one came, and all were glad of it.", ("a dog", "no one"), 1, "high"),
        )
    ]


def features_of(questions, english, head=None):
    task = task_of()
    head = head or task.head(questions)
    return task, head, task.features(questions, english, head, training=True)


def test_an_option_that_a_question_lacks_has_no_share(questions, english):
    config = tiny(english.vocab_size)

    def probabilities(questions, side):
        task, head, features = features_of(questions, english)
        model, params = build_model(config, head), random_params(config, head)
        outputs, _ = outputs_and_loss(task, model, params, features, 2, 48, side)
        return outputs["probabilities"]

    both = probabilities(questions, "right")
    assert (both[1, 3:] == 0).all()
    assert (both[2, 2:] == 0).all()
    np.testing.assert_allclose(both.sum(1), 1, atol=1e-5)
    alone = probabilities(questions[2:], "left")  # among options of its own number
    np.testing.assert_allclose(alone[0], both[2, :2], rtol=0, atol=1e-5)
    with pytest.raises(InputError, match="file: line 1 has 4 options, and the training examples have 3 at most"):
        features_of(questions, english, HeadConfig("multiple_choice", 3))


def test_accuracy_is_counted_by_level_and_predictions_name_the_answers(questions, english, tmp_path):
    task, _, features = features_of(questions, english)
    outputs = {"probabilities": np.array([[0.7, 0.1, 0.1, 0.1], [0.1, 0.2, 0.7, 0.0], [0.4, 0.6, 0.0, 0.0]])}
    scores = {"accuracy": 2 / 3, "accuracy_middle": 1.0, "accuracy_high": 0.5}
    assert metrics(task, questions, features, outputs) == pytest.approx(scores)
    assert write(task, tmp_path, questions, features, outputs) == ["predictions.jsonl"]
    rows = [json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text().splitlines()]
    assert rows[1] == {"id": "q2", "answer": "C", "text": "an old and very angry man", "probabilities": [0.1, 0.2, 0.7]}
    assert [(row["id"], row["answer"]) for row in rows] == [("q1", "A"), ("q2", "C"), ("q3", "B")]
