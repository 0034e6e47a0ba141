"""Every family of tasks on a tiny network, from rows to predictions: results depend on an example alone, and a few
updates teach a few examples."""

import json
from dataclasses import replace

import pytest
from etils import epath

from tests.xlnet_jax.random_models import random_params
from tests.xlnet_jax.tasks.conftest import BAD, GOOD
from tests.xlnet_jax.tasks.task_runs import asked, json_lines, outputs_and_loss, tiny, trained
from xlnet_jax.models.heads import build_model
from xlnet_jax.tasks.defaults import DEFAULTS, make_task

EMMA, ANNE = "Emma had tea.", "Anne walked far and saw the sea in Lyme, of all places."
TEXTS = [(text, i) for i, texts in enumerate((GOOD[:3], BAD[:2])) for text in texts]


ROWS = {
    "classification": [{"text": text, "label": ("good", "bad")[i]} for text, i in TEXTS],
    "regression": [{"text": text, "label": 2.5 * i - 1} for text, i in TEXTS],
    "multilabel": [{"text": text, "label": (["good", "short"], ["bad"])[i]} for text, i in TEXTS]
    + [{"text": "it", "label": []}],
    "squad2": [
        asked("What of Emma?", EMMA, "Emma"), asked("What of tea?", EMMA, "tea"), asked("What of sea?", ANNE, "sea"),
        asked("What of Anne?", ANNE, "Anne"), asked("Who is Darcy?", EMMA),
    ],
    "multiple_choice": [
        {"context": "The old man came.", "question": "Who?", "options": ["the old man", "a king", "a dog"],
         "answer": 0},
        {"context": "A dog came.", "question": "Who?", "options": ["a king", "a dog"], "answer": 1},
        {"context": "No one came, and all were glad of it.", "question": "Who?", "options": ["a dog", "none"],
         "answer": 1},
    ],
    "ner": [
        {"words": "Miss Bennet saw London .".split(), "labels": "O B-PER O B-LOC O".split()},
        {"words": "Kitty Bennet coughed and coughed and went to Longbourn".split(),
         "labels": "B-PER I-PER O O O O O O B-LOC".split()},
    ],
}  # fmt: skip
FILES = {
    "squad2": ["predictions.json", "nbest_predictions.json", "null_odds.json"],
    "multiple_choice": ["predictions.jsonl"],
    "ner": ["predictions.txt", "entities.tsv"],
}


class Family:
    """A task, its examples and their features, of which some have several windows."""

    def __init__(self, name, tokenizer, file):
        config = DEFAULTS[name]()
        queries = 24 if name == "multiple_choice" else 14
        data = replace(config.data, seq_len=24 if name == "ner" else 48, max_query_len=queries)
        self.task = make_task(replace(config, data=data, qa=replace(config.qa, doc_stride=8)))
        self.files = json_lines(file, ROWS[name])
        self.examples = self.task.read(self.files, "train")
        self.head = self.task.head(self.examples)
        self.features = self.task.features(self.examples, tokenizer, self.head, training=True)
        self.network = tiny(tokenizer.vocab_size)
        self.model = build_model(self.network, self.head)

    def answers(self, outputs):
        return self.task.answers(self.examples, self.features, outputs)


@pytest.fixture(scope="module", params=ROWS)
def family(request, english, tmp_path_factory):
    return Family(request.param, english, tmp_path_factory.mktemp("rows") / "rows.jsonl")


def test_answers_and_loss_depend_on_no_padding_bucket_or_neighbor(family):
    # The last batch is partly padding, and may begin with a long item whose positions mean nothing in it.
    params, longest = random_params(family.network, family.head), int(family.features.lengths.max())
    (ours, loss), (theirs, other) = (
        outputs_and_loss(family.task, family.model, params, family.features, rows, longest + more, side)
        for rows, more, side in ((1, 0, "left"), (4, 8, "right"))
    )
    assert loss == pytest.approx(other, abs=1e-5)
    answers = (family.answers(outputs) for outputs in (ours, theirs))
    pairs = zip(*(family.task.predictions(family.examples, of_way) for of_way in answers), strict=True)
    for one, two in pairs:
        assert one.value == (pytest.approx(two.value, abs=1e-5) if isinstance(one.value, float) else two.value)
        assert one.probabilities == pytest.approx(two.probabilities, abs=1e-5)


def test_a_few_updates_teach_a_few_examples(family, tmp_path):
    name = family.task.config.task
    params, losses = trained(family.task, family.network, family.head, family.features, 120)
    assert losses[-1] < 0.1 * losses[0]
    longest = int(family.features.lengths.max())
    outputs, _ = outputs_and_loss(family.task, family.model, params, family.features, 4, longest + 8, "right")
    answers = family.answers(outputs)
    assert family.task.metrics(family.examples, answers)[family.task.metric] > (98 if name == "squad2" else 0.98)
    names = family.task.write(epath.Path(tmp_path), family.examples, answers)
    assert names == FILES.get(name, ["predictions.tsv"])
    values = [prediction.value for prediction in family.task.predictions(family.examples, answers)]
    rows = ROWS[name]
    if name == "squad2":
        assert values == ["".join(row["answers"]["text"]) for row in rows]
        assert json.loads((tmp_path / names[0]).read_text()) == {str(i): value for i, value in enumerate(values)}
    elif name == "multiple_choice":
        assert values == [row["options"][row["answer"]] for row in rows]
    elif isinstance(values[0], float):
        assert values == pytest.approx([row["label"] for row in rows], abs=0.3)
    else:
        labels = [row["labels" if name == "ner" else "label"] for row in rows]
        assert values == [tuple(label) if isinstance(label, list) else label for label in labels]


def test_values_of_python_are_read_as_a_file_of_them_is(family):
    task = family.task
    assert repr(task.read(family.files, "predict")) == repr(task.examples_of(ROWS[task.config.task]))
