"""Labels of words: CoNLL files read and refused, learned from, scored as seqeval does, and written for conlleval."""

import dataclasses

import numpy as np
import pytest

from data_pipelines.tokenizer import CLS, SEP
from tests.xlnet_jax.tasks.task_runs import metrics, write
from xlnet_jax.errors import InputError
from xlnet_jax.tasks.config import ColumnsConfig
from xlnet_jax.tasks.defaults import DEFAULTS
from xlnet_jax.tasks.task import Prediction
from xlnet_jax.tasks.token_classification.task import Sentence, TokenClassification

CONLL_2003 = """-DOCSTART- -X- -X- O

Miss NNP B-NP O
Bennet NNP I-NP B-PER
saw VBD B-VP O
London NNP B-NP B-LOC
. . O O

Kitty NNP B-NP B-PER
Bennet NNP I-NP I-PER
coughed VBD B-VP O
and CC O O
coughed VBD B-VP O
and CC O O
went VBD B-VP O
to TO B-PP O
Longbourn NNP B-NP B-LOC
"""


def task_with(task="ner", seq_len=64, **columns):
    config = DEFAULTS["ner"]()
    data = dataclasses.replace(config.data, seq_len=seq_len)
    return TokenClassification(dataclasses.replace(config, task=task, data=data, columns=ColumnsConfig(**columns)))


def read(folder, text, task=None, labelled=True):
    (folder / "a.conll").write_bytes(text.encode())
    return (task or task_with()).read([str(folder / "a.conll")], labelled)


# ---- reading --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", [CONLL_2003, "\ufeff" + CONLL_2003.replace("\n", "\r\n"), CONLL_2003.replace(" ", "\t")]
)
def test_words_stand_first_and_labels_last(tmp_path, text):
    first, second = read(tmp_path, text)
    assert first.words == ("Miss", "Bennet", "saw", "London", ".")
    assert first.labels == ("O", "B-PER", "O", "B-LOC", "O")
    assert len(second.words) == 9
    assert second.where.endswith("a.conll: line 9")


def test_columns_are_named_by_number(tmp_path):
    task = task_with("token_classification", text="2", label="1")
    first, _ = read(tmp_path, CONLL_2003, task)
    assert first.labels == ("NNP", "NNP", "VBD", "NNP", ".")
    assert first.words == ("B-NP", "I-NP", "B-VP", "B-NP", "O")
    with pytest.raises(InputError, match="line 1 has no 'labels', only"):
        read(tmp_path, "a O\n", task_with(label="2"))
    with pytest.raises(InputError, match=r"columns\.text and columns\.label of a file in CoNLL form are numbers"):
        task_with(text="word")


def test_white_space_of_other_scripts_and_spaces_behind_tabs_are_words(tmp_path):
    (sentence,) = read(tmp_path, "\u3000 O\n\x85 O\n北 B-LOC\n")
    assert sentence.words == ("\u3000", "\x85", "北")
    (sentence,) = read(tmp_path, "New York\tB-LOC\n \tO\n")
    assert sentence.words == ("New York", " ")


def test_without_labels_a_column_of_words_is_enough(tmp_path):
    first, second = read(tmp_path, "Miss\nBennet\n\n\nsaw\n", labelled=False)
    assert (first.words, first.labels, second.words) == (("Miss", "Bennet"), None, ("saw",))


def test_chinese_characters_as_published_are_read(published):
    path = published("finetune/people_daily_ner/dev.txt")
    task = task_with()
    sentences = task.read([str(path)], labelled=True)
    assert (len(sentences), sum(len(sentence.words) for sentence in sentences)) == (500, 20342)
    assert task.head(sentences).labels == ("B-LOC", "B-ORG", "B-PER", "I-LOC", "I-ORG", "I-PER", "O")


def test_a_label_that_was_not_learned_is_refused(tmp_path, english):
    task = task_with()
    head = task.head(read(tmp_path, CONLL_2003))
    with pytest.raises(
        InputError, match="line 1: the label 'B-ORG' is not in the training data, which has B-LOC, B-PER"
    ):
        task.features(read(tmp_path, "a O\nb B-ORG\n"), english, head, training=False)


# ---- network --------------------------------------------------------------------------------------------------------


@pytest.fixture
def sentences(tmp_path):
    return read(tmp_path, CONLL_2003)


def features_of(task, sentences, english):
    head = task.head(sentences)
    return head, task.features(sentences, english, head, training=True)


def test_a_window_is_text_with_its_special_tokens_and_labels_on_first_pieces(sentences, english):
    head, features = features_of(task_with(), sentences, english)
    ids, segments = features.tokens["input_ids"][0], features.tokens["segment_ids"][0]
    assert ids.tolist() == [*english.encode_lines([" ".join(sentences[0].words)])[0], SEP, CLS]
    assert segments.tolist() == [0] * (len(ids) - 1) + [2]
    assert features.values["target_weights"].tolist() == [[1] * 5 + [0] * 4, [1] * 9]
    assert [head.labels[i] for i in features.values["labels"][0, :5]] == list(sentences[0].labels)
    firsts = [english.pieces[ids[place]] for place in features.positions["words"][0, :5]]
    assert all(word.startswith(piece.strip("▁")) for word, piece in zip(sentences[0].words, firsts, strict=True))


# ---- scores and files -----------------------------------------------------------------------------------------------


def outputs_of(task, head, features, labels):
    """Predictions as the network would give them."""
    found = np.full(features.values["target_weights"].shape, -1)
    found[features.values["target_weights"] > 0] = [head.labels.index(label) for label in labels]
    return {"label": found}


def test_scores_count_entities_and_words(sentences, english):
    task = task_with()
    head, features = features_of(task, sentences, english)
    labels = ["O", "B-PER", "O", "B-LOC", "O", "I-PER", "I-PER", "O", "O", "O", "O", "O", "O", "O"]
    scores = metrics(task, sentences, features, outputs_of(task, head, features, labels))
    # 4 true, 3 predicted and all right; strictly one of them begins without B.
    of_entities = {"f1": 6 / 7, "precision": 1, "recall": 3 / 4, "strict_f1": 2 / 3, "f1_LOC": 2 / 3, "f1_PER": 1}
    assert scores == pytest.approx({"accuracy": 6 / 7} | of_entities)
    assert task.metric == "f1"


def test_labels_that_are_no_tags_have_accuracy_alone(tmp_path, english):
    task = task_with("token_classification")
    sentences = read(tmp_path, "she PRP\nran VBD\n\nhe PRP\n", task)
    head, features = features_of(task, sentences, english)
    outputs = outputs_of(task, head, features, ["PRP", "PRP", "PRP"])
    assert metrics(task, sentences, features, outputs) == {"accuracy": 2 / 3}
    assert task.metric == "accuracy"
    assert write(task, tmp_path, sentences, features, outputs) == ["predictions.txt"]


@pytest.mark.parametrize(
    ("text", "expected"), [("she\nran\n", "she O\nran O\n\n"), ("she\tx\nran\ty\n", "she\tx\tO\nran\ty\tO\n\n")]
)
def test_unlabelled_words_are_written_with_their_labels(sentences, english, tmp_path, text, expected):
    task = task_with()
    head = task.head(sentences)
    words = read(tmp_path, text, task, labelled=False)
    features = task.features(words, english, head, training=False)
    assert "labels" not in features.values
    assert write(task, tmp_path, words, features, outputs_of(task, head, features, ["O", "O"])) == ["predictions.txt"]
    assert (tmp_path / "predictions.txt").read_text() == expected


def test_words_are_compared_by_the_type_of_their_entity(monkeypatch):
    task = task_with()
    monkeypatch.setattr(task, "_names", ("B-PER", "I-PER", "O", "S-LOC"))
    sentence = Sentence(tuple("abcd"), ("B-PER", "I-PER", "O", "S-LOC"), ("",) * 4, "")
    found = task.compare([sentence], [Prediction(("I-PER", "O", "O", "B-PER"), {})])
    assert found.labels == ("LOC", "PER", "O")
    assert found.counts.tolist() == [[0, 1, 0], [0, 1, 1], [0, 0, 1]]
