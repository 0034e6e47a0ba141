"""CLUE's tables in their published form: texts, labels in CLUE's order, and the files for submission."""

import json

import numpy as np
import pytest
from etils import epath

from xlnet_jax.errors import InputError
from xlnet_jax.tasks.classification.clue import CLUE
from xlnet_jax.tasks.defaults import DEFAULTS, make_task
from xlnet_jax.tasks.features import Features
from xlnet_jax.tasks.task import Prediction

WSC = {
    "target": {"span2_index": 10, "span1_index": 2, "span1_text": "铃铛", "span2_text": "它"}, "idx": 3,
    "label": "true", "text": "猫的铃铛响了，所以我把它拿走了。",
}  # fmt: skip
# Two rows as published, then the texts and the label of the first.
CASES = {
    "afqmc": (
        [{"sentence1": "怎么还款", "sentence2": "如何还钱", "label": "1"},
         {"sentence1": "怎么还款", "sentence2": "你好", "label": "0"}],
        ("怎么还款", "如何还钱"), "1",
    ),
    "tnews": (
        [{"label": "102", "label_desc": "news_entertainment", "sentence": "新电影今天上映", "keywords": "电影"},
         {"label": "103", "label_desc": "news_sports", "sentence": "球队赢了", "keywords": ""}],
        ("新电影今天上映",), "102",
    ),
    "iflytek": (
        [{"label": "110", "label_des": "社区超市", "sentence": "送菜到家的应用"},
         {"label": "0", "label_des": "打车", "sentence": "叫车的应用"}],
        ("送菜到家的应用",), "110",
    ),
    "cmnli": (
        [{"sentence1": "他在睡觉", "sentence2": "他醒着", "label": "contradiction"},
         {"sentence1": "他在睡觉", "sentence2": "他睡了", "label": "entailment"}],
        ("他在睡觉", "他醒着"), "contradiction",
    ),
    "cluewsc2020": ([WSC, WSC | {"label": "false"}], ("猫的_铃铛_响了，所以我把[它]拿走了。",), "true"),
    "csl": (
        [{"id": 1, "abst": "本文研究水声成像。", "keyword": ["水声学", "成像"], "label": "1"},
         {"id": 2, "abst": "本文研究水声成像。", "keyword": ["经济", "法律"], "label": "0"}],
        ("水声学 成像", "本文研究水声成像。"), "1",
    ),
}  # fmt: skip
LABELS = {"afqmc": 2, "tnews": 15, "iflytek": 119, "cmnli": 3, "cluewsc2020": 2, "csl": 2}
WSC["target"]["span2_index"] = WSC["text"].index("它")


@pytest.fixture
def folder(tmp_path):
    """Return a function that writes the published folder of a task."""

    def write(name):
        rows = CASES[name][0]
        unlabelled = [{key: value for key, value in row.items() if key != "label"} | {"id": 7} for row in rows[:1]]
        for stem, of_file in (("train", rows), ("dev", rows), ("test", unlabelled)):
            lines = [json.dumps(row, ensure_ascii=False) for row in of_file]
            (tmp_path / f"{stem}.json").write_text("\n".join(lines) + "\n")
        (tmp_path / "labels.json").write_text('{"label": "100", "label_desc": "news_story"}\n')  # as tnews has
        return [str(tmp_path)]

    return write


@pytest.mark.parametrize("name", CLUE)
def test_a_table_of_clue_is_read_as_published(name, folder):
    task, (rows, texts, label) = make_task(DEFAULTS[name]()), CASES[name]
    for role in ("train", "eval"):
        examples = task.read(folder(name), role)
        assert len(examples) == len(rows)
        assert (examples[0].texts, examples[0].label) == (texts, label)
        assert examples[1].label == rows[1]["label"]
    head = task.head(examples)
    assert head.num_labels == len(head.labels) == LABELS[name]
    (example,) = task.read(folder(name), "predict")
    assert (example.id, example.texts, example.label) == ("7", texts, None)
    (of_python,) = task.examples_of([{k: v for k, v in rows[0].items() if k != "label"}])
    assert of_python.texts == texts


@pytest.mark.parametrize("name", CLUE)
def test_predictions_are_written_as_clue_wants_them(name, folder, tmp_path):
    task, label = make_task(DEFAULTS[name]()), CASES[name][2]
    examples = task.read(folder(name), "predict")
    task._labels = CLUE[name].labels
    answers = [Prediction(label, dict.fromkeys(CLUE[name].labels, 1 / LABELS[name]))]
    names = task.write(epath.Path(tmp_path), examples, answers)
    assert names == ["predictions.tsv", f"{name.removeprefix('clue').removesuffix('2020')}_predict.json"]
    assert [json.loads(line) for line in (tmp_path / names[1]).read_text().splitlines()] == [{"id": 7, "label": label}]


def test_a_label_that_no_class_has_is_named(tmp_path):
    (tmp_path / "x.json").write_text('{"sentence": "a", "label": "105"}\n')
    task = make_task(DEFAULTS["tnews"]())
    with pytest.raises(InputError, match=r"the label '105' is none of 100, .*which tnews has"):
        task.read([str(tmp_path / "x.json")], "train")


def test_a_noun_that_is_not_where_its_index_says_is_named(tmp_path):
    wrong = WSC | {"target": WSC["target"] | {"span1_index": 4}}
    (tmp_path / "x.json").write_text(json.dumps(wrong) + "\n")
    with pytest.raises(InputError, match="line 1 is damaged: '铃铛' is not at 4 in its text"):
        make_task(DEFAULTS["cluewsc2020"]()).read([str(tmp_path / "x.json")], "train")


def c3(tmp_path, answered=True):
    asked = {"question": "他喜欢什么?", "choice": ["茶", "咖啡", "水"]} | (
        {"answer": "咖啡"} if answered else {"id": 0}
    )
    content = [[["男：喝茶吗？", "女：他喜欢咖啡。"], [asked], "1-1"], [["他只喝水。"], [asked], "1-2"]]
    path = tmp_path / ("d-train.json" if answered else "test1.1.json")
    path.write_text(json.dumps(content, ensure_ascii=False))
    return [str(path)]


CHID = {
    "content": ["开头#idiom000378#再进一步。", "去#idiom000379#？诚然，#idiom000380#远比随大流更辛苦。"],
    "candidates": "百尺竿头 随波逐流 方兴未艾 身体力行 一日千里 三十而立 逆水行舟 日新月异 百花齐放 沧海一粟".split(),
}
ANSWERS = {"#idiom000378#": 0, "#idiom000379#": 1, "#idiom000380#": 6}


def chid(tmp_path, stem, answered=True):
    path = tmp_path / f"{stem}.json"
    path.write_text(json.dumps(CHID, ensure_ascii=False) + "\n")
    if answered:
        (tmp_path / f"{stem}_answer.json").write_text(json.dumps(ANSWERS))
    return [str(path)]


def test_c3_is_read_and_submitted_as_published(tmp_path):
    task = make_task(DEFAULTS["c3"]())
    first, _ = task.read(c3(tmp_path), "train")
    assert (first.context, first.options, first.answer) == ("男：喝茶吗？ 女：他喜欢咖啡。", ("茶", "咖啡", "水"), 1)
    examples = task.read(c3(tmp_path, answered=False), "predict")
    answers = [Prediction(option, dict.fromkeys(("茶", "咖啡", "水"), 1 / 3)) for option in ("水", "茶")]
    assert task.write(epath.Path(tmp_path), examples, answers) == ["predictions.jsonl", "c3_predict.json"]
    assert json.loads((tmp_path / "c3_predict.json").read_text()) == [2, 0]


def test_chid_has_a_question_for_each_blank_and_is_submitted_as_published(tmp_path):
    task = make_task(DEFAULTS["chid"]())
    examples = task.read(chid(tmp_path, "train"), "train")
    assert [e.id for e in examples] == list(ANSWERS)
    assert [e.answer for e in examples] == list(ANSWERS.values())
    assert [e.context for e in examples] == [
        "开头_再进一步。",
        "去_？诚然，…远比随大流更辛苦。",
        "去…？诚然，_远比随大流更辛苦。",
    ]
    assert examples[0].asked(3) == "身体力行"
    unanswered = task.read(chid(tmp_path, "test1.1", answered=False), "predict")
    answers = [
        Prediction(option, dict.fromkeys(CHID["candidates"], 0.1)) for option in ("随波逐流", "百尺竿头", "沧海一粟")
    ]
    assert task.write(epath.Path(tmp_path), unanswered, answers) == ["predictions.jsonl", "chid_predict.json"]
    assert json.loads((tmp_path / "chid_predict.json").read_text()) == dict(zip(ANSWERS, (1, 0, 9), strict=True))


def test_a_passage_of_chid_is_read_around_its_blank(tmp_path):
    long = CHID | {"content": [f"{'前' * 300}#idiom000378#{'后' * 300}"]}
    (tmp_path / "test.json").write_text(json.dumps(long) + "\n")
    (example,) = make_task(DEFAULTS["chid"]()).read([str(tmp_path / "test.json")], "predict")
    assert example.context == f"{'前' * 70}_{'后' * 70}"


def test_chid_without_its_answers_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"dev\.json: its answers are missing: put dev_answer\.json beside it"):
        make_task(DEFAULTS["chid"]()).read(chid(tmp_path, "dev", answered=False), "eval")


def test_the_features_of_a_published_row_are_its_texts(folder, tokenizer):
    task = make_task(DEFAULTS["csl"]())
    examples = task.read(folder("csl"), "train")
    features = task.features(examples, tokenizer, task.head(examples), training=True)
    assert isinstance(features, Features)
    np.testing.assert_array_equal(features.values["labels"], [1, 0])
