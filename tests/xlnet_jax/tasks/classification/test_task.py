"""Texts become what the original made of them; results depend on a text alone, however it is padded and batched."""

import csv
import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data_pipelines.tokenizer import CLS, SEP, Tokenizer
from data_pipelines.tokenizer.settings import TokenizerSettings
from tests.xlnet_jax.random_models import SMALL, random_params
from tests.xlnet_jax.tasks.task_runs import write
from xlnet_jax.errors import InputError
from xlnet_jax.models.heads import build_model
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.tasks.classification.task import TextExample
from xlnet_jax.tasks.config import ColumnsConfig, TaskDataConfig, TaskSelectionConfig
from xlnet_jax.tasks.defaults import DEFAULTS, make_task
from xlnet_jax.tasks.features import NO_ITEM, bucket_lengths, collate

ANY = ColumnsConfig()
SEQ_LEN = 8


def task(name="classification", model=SMALL, columns=ANY, metric=None, **data):
    settings = {"seq_len": SEQ_LEN, "max_windows": 3, **data}
    changed = {"data": TaskDataConfig(**settings), "selection": TaskSelectionConfig(metric=metric)}
    return make_task(dataclasses.replace(DEFAULTS[name](), model=model, columns=columns, **changed))


def example(text, label=None, pair=None, line=2):
    return TextExample(str(line), (text,) if pair is None else (text, pair), label, f"a.tsv: line {line}")


def test_texts_become_what_the_originals_converter_made_of_them(reference):
    described = json.loads((reference / "finetune_data" / "classifier.json").read_text())
    settings = TokenizerSettings(lower=described["lower"])
    pieces = Tokenizer((reference / "data" / described["spiece"]).read_bytes(), settings)
    for theirs in described["examples"]:
        labels = theirs["label_list"]
        ours = task("classification" if labels else "regression", seq_len=theirs["max_seq_length"])
        given = example(theirs["text_a"], theirs["label"], theirs["text_b"] or None)
        head = ours.head([dataclasses.replace(given, label=label) for label in labels or [0.0]])
        features = ours.features([given], pieces, head, training=True)
        first = theirs["input_mask"].index(0)  # padding is on the left
        assert features.tokens["input_ids"][0].tolist() == theirs["input_ids"][first:]
        assert features.tokens["segment_ids"][0].tolist() == theirs["segment_ids"][first:]
        label = theirs["label_id"]
        assert features.values["labels"].tolist() == [label if labels else np.float32(label)]


def test_a_long_text_keeps_its_head_its_head_and_tail_or_its_last_windows(english):
    words = " ".join(f"word {i}" for i in range(40))
    (ids,) = english.encode_lines([words])

    def kept(**data):
        ours = task(**data)
        features = ours.features([example(words, "x")], english, ours.head([example("", "x"), example("", "y")]), True)
        return features.tokens["input_ids"][0].tolist()

    end = [SEP, CLS]
    assert kept(seq_len=10) == [*ids[:8], *end]
    assert kept(seq_len=10, long_texts="head_tail") == [*ids[:2], *ids[-6:], *end]
    assert kept(seq_len=10, long_texts="memory") == [*ids[-28:], *end]
    assert len(ids) > 28


def test_batches_with_memory_have_the_length_of_whole_windows():
    assert bucket_lengths(TaskDataConfig(seq_len=16, long_texts="memory", max_windows=3)) == (2, 4, 8, 16, 32, 48)


@pytest.fixture(scope="module")
def setting(english):
    # Texts of one to many windows.
    model = dataclasses.replace(SMALL, vocab_size=english.vocab_size, num_layers=2)
    words = "it is a truth universally acknowledged that a single man in possession of".split()
    examples = [example(" ".join(words[:n]), label, line=n) for n, label in ((1, "1"), (4, "2"), (13, "3"))]
    return model, examples


def test_a_result_depends_on_its_text_alone(english, setting):
    model, examples = setting
    ours = task(model=model, long_texts="memory")
    head = ours.head(examples)
    features = ours.features(examples, english, head, training=False)
    network, params = build_model(model, head), random_params(model, head)
    predict = jax.jit(lambda params, batch: ours.predict(network, params, batch))

    def outputs(items, length, side):
        (values,) = predict(params, collate(features, items, length, side)).values()
        return np.asarray(values)

    buckets = bucket_lengths(ours.config.data)
    smallest = [next(b for b in buckets if b >= length) for length in features.lengths]
    assert smallest == [4, 16, 24]
    alone = np.concatenate([outputs([i], length, "left") for i, length in enumerate(smallest)])
    for side in ("left", "right"):
        together = outputs([2, NO_ITEM, 1, 0], buckets[-1], side)
        np.testing.assert_allclose(together[[3, 2, 0]], alone, rtol=0, atol=1e-5)


def test_earlier_windows_are_read_and_their_gradients_stopped(english, setting):
    model, examples = setting
    ours = task(model=model, long_texts="memory", max_windows=2)
    head = ours.head(examples)
    network, params = build_model(model, head), random_params(model, head)
    features = ours.features(examples[-1:], english, head, training=True)
    batch = jax.tree.map(jnp.asarray, collate(features, [0], 2 * SEQ_LEN, "left"))
    first, last = np.split(np.asarray(batch["input_ids"])[0], 2)
    only_first = np.setdiff1d(first, last)

    @jax.jit
    @jax.value_and_grad
    def loss(params, ids):
        return ours.losses(network, params, {**batch, "input_ids": ids}, None).sum()

    value, gradient = loss(params, batch["input_ids"])
    of_other, _ = loss(params, batch["input_ids"].at[0, SEQ_LEN - 2].set(only_first[0] + 1))
    assert abs(value - of_other) > 1e-4
    of_words = gradient["backbone"]["word_embedding"]
    assert len(only_first)
    assert not of_words[only_first].any()
    assert of_words[np.unique(last)].any(axis=1).all()


def read(tmp_path, content, name="classification", role="train", **columns):
    path = tmp_path / ("a.jsonl" if content.startswith("{") else "a.tsv")
    path.write_text(content)
    return task(name, columns=ColumnsConfig(**columns)).read([str(path)], role)


def test_several_labels_are_a_list_or_a_field_with_separators(tmp_path):
    fields = read(tmp_path, "text\tlabel\nfine\ta, b\nplain\t\nso so\tb\n", "multilabel")
    assert [e.label for e in fields] == [("a", "b"), (), ("b",)]
    assert read(tmp_path, "text\tlabel\nfine\ta b|c\n", "multilabel", label_separator="|")[0].label == ("a b", "c")
    assert read(tmp_path, '{"text": "a", "label": ["x", "y"]}', "multilabel")[0].label == ("x", "y")


def test_a_run_knows_its_examples_wherever_they_lie(tmp_path):
    # `Prepared.sha256` is computed from the repr of the examples.
    (tmp_path / "moved").mkdir()
    here, there = (repr(read(folder, "text\tlabel\na\tx\n")) for folder in (tmp_path, tmp_path / "moved"))
    assert here == there
    assert here != repr(read(tmp_path, "text\tlabel\na\ty\n"))


def test_labels_are_those_of_the_training_examples(english):
    ours = task()
    head = ours.head([example("a", "no"), example("b", "yes")])
    assert head.labels == ("no", "yes")
    with pytest.raises(InputError, match="line 9: the label 'maybe' does not occur in the training examples, which"):
        ours.features([example("c", "maybe", line=9)], english, head, training=False)
    with pytest.raises(InputError, match=r"a\.tsv: line 2: all examples have the same label, no: training needs two"):
        ours.head([example("a", "no")])
    with pytest.raises(InputError, match=r"a\.tsv: line 2: no example has a label"):
        task("multilabel").head([example("a", ())])
    for labels, shown in ((("bad", "good"), "bad, good"), ((), "2 of them")):
        head = HeadConfig("classification", num_labels=2, labels=labels)
        with pytest.raises(InputError, match=f"`task` mnli has the labels .*, and the head of `init` {shown}: name"):
            task("mnli").features([example("a", None)], english, head, training=False)


def test_settings_that_cannot_work_are_refused_at_once():
    with pytest.raises(InputError, match=r"`selection\.metric` f2: classification has accuracy, f1, mcc"):
        task(metric="f2")
    assert task("mnli", metric="accuracy_mm").metric == "accuracy"
    with pytest.raises(InputError, match=r"`data\.seq_len` 4 leaves no room for a text beside 4 tokens"):
        task(seq_len=4)
    with pytest.raises(InputError, match=r"`data\.long_texts` memory needs a memory: give its length by `model\.mem"):
        task(model=dataclasses.replace(SMALL, mem_len=0), long_texts="memory")


def test_predictions_have_an_id_a_label_and_the_probability_of_each(tmp_path, english):
    ours = task(columns=ColumnsConfig(id="key"))
    examples = read(tmp_path, '{"key": "x 1", "text": "a"}\n{"key": 7, "text": "b"}\n', role="predict", id="key")
    head = ours.head([example("a", "no"), example("b", "yes")])
    features = ours.features(examples, english, head, training=False)
    outputs = {"log_probs": np.log([[0.25, 0.75], [0.875, 0.125]])}
    assert write(ours, tmp_path, examples, features, outputs) == ["predictions.tsv"]
    with (tmp_path / "predictions.tsv").open() as file:
        assert list(csv.reader(file, delimiter="\t")) == [
            ["id", "label", "p(no)", "p(yes)"], ["x 1", "yes", "0.25", "0.75"], ["7", "no", "0.875", "0.125"],
        ]  # fmt: skip
