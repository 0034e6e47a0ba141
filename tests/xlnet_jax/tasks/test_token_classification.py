"""Labels of words: CoNLL files read, cut into pieces and windows, scored as seqeval does, and written for conlleval."""

import dataclasses

import numpy as np
import pytest

from data_pipelines.tokenizer import CLS, SEP, UNK, Tokenizer
from tests.xlnet_jax.tasks.task_runs import metrics, write
from xlnet_jax.errors import InputError
from xlnet_jax.tasks.config import ColumnsConfig
from xlnet_jax.tasks.defaults import DEFAULTS
from xlnet_jax.tasks.task import Prediction
from xlnet_jax.tasks.token_classification import (
    Sentence,
    TokenClassification,
    encode_words,
    entities,
    entity_scores,
    is_tag,
    scheme_of,
    spaces_before,
    strict_entities,
    windows,
)

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
CHINESE = ["春天来了，山上的花都开了。", "火车慢慢地离开了车站。北京站到了。", "我们都抬起头来看天上的月亮。"] * 5


def task_with(task="ner", seq_len=64, **columns):
    config = DEFAULTS["ner"]()
    data = dataclasses.replace(config.data, seq_len=seq_len)
    return TokenClassification(dataclasses.replace(config, task=task, data=data, columns=ColumnsConfig(**columns)))


def read(folder, text, task=None, role="train"):
    (folder / "a.conll").write_bytes(text.encode())
    return (task or task_with()).read([str(folder / "a.conll")], role)


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
    first, _ = read(tmp_path, CONLL_2003, task_with("token_classification", text="2", label="1"))
    assert first.labels == ("NNP", "NNP", "VBD", "NNP", ".")
    assert first.words == ("B-NP", "I-NP", "B-VP", "B-NP", "O")
    with pytest.raises(InputError, match=r"`columns\.text` and `columns\.label` of a CoNLL file are numbers"):
        task_with(text="word")


@pytest.fixture(scope="module")
def chinese():
    return Tokenizer.train(CHINESE, 48, "auto")


def pieces_of(words, tokenizer):
    ((ids, places),) = encode_words([words], tokenizer)
    return [tokenizer.pieces[i] for i in ids], places.tolist()


def test_spaces_stand_where_running_text_has_them():
    for words, spaces in (
        ("It is a dog .", [1, 1, 1, 1, 1]),
        ("北 京", [1, 0]),
        ("在 1 9 9 8 年", [1, 0, 0, 0, 0, 0]),
        ("用 iPhone 拍 了", [1, 0, 0, 0]),
        ("北京 说 “ New York ” 。", [1, 0, 0, 1, 1, 1, 0]),
        ("나는 집에 간다", [1, 1, 1]),
    ):
        assert spaces_before(words.split()) == [bool(space) for space in spaces]


def test_words_have_the_pieces_of_their_text(english, chinese):
    words = "It is a truth universally acknowledged , that Mr Bennet ( aged 50 ) had £ 2,000 a year .".split()
    ((ids, _),) = encode_words([words], english)
    np.testing.assert_array_equal(ids, english.encode_lines([" ".join(words)])[0])
    pieces, places = pieces_of(["She", ".", "“", "ran"], english)  # places of the first pieces with text
    assert pieces[places[1] - 1 : places[1] + 1] == ["▁", "."]
    assert all(pieces[place].strip("▁") for place in places)
    for text in CHINESE[:3]:
        pieces, places = pieces_of(list(text), chinese)
        assert "".join(pieces) == "▁" + chinese.settings.normalize([text])[0]
        assert not any(piece.startswith("▁") for piece in pieces[1:])
        assert len(places) == len(text)


def test_a_word_that_normalisation_leaves_nothing_of_is_unknown_and_keeps_its_place(english, chinese):
    nothing = "\u3000"
    for tokenizer, words in ((english, ["a", nothing, "b"]), (chinese, ["山", nothing, "花"]), (english, [nothing])):
        ((ids, places),) = encode_words([words], tokenizer)
        assert ids[places[words.index(nothing)]] == UNK
        assert len(set(places.tolist())) == len(words)


@pytest.mark.parametrize("seed", range(3))
def test_every_word_is_labelled_once_with_text_on_both_sides(seed):
    rng = np.random.default_rng(seed)
    room = int(rng.integers(1, 40))
    lengths = rng.integers(1, 6, rng.integers(1, 120))
    places = np.cumsum(lengths) - lengths
    total = int(lengths.sum())
    labelled = []
    for tokens, words in windows(total, places, room):
        assert tokens.stop - tokens.start == min(room, total)
        for word in range(words.start, words.stop):
            place = int(places[word])
            assert place - tokens.start >= max(min(place, room // 4 - 1), 0)
            assert tokens.stop - 1 - place >= max(min(total - 1 - place, room // 4 - 1), 0)
            labelled.append(word)
    assert labelled == list(range(len(places)))


@pytest.fixture
def sentences(tmp_path):
    return read(tmp_path, CONLL_2003)


def features_of(task, sentences, english):
    head = task.head(sentences)
    return head, task.features(sentences, english, head, training=True)


def test_a_window_is_text_with_its_special_tokens_and_labels_on_first_pieces(sentences, english, tmp_path):
    task = task_with()
    head, features = features_of(task, sentences, english)
    ids, segments = features.tokens["input_ids"][0], features.tokens["segment_ids"][0]
    assert ids.tolist() == [*english.encode_lines([" ".join(sentences[0].words)])[0], SEP, CLS]
    assert segments.tolist() == [0] * (len(ids) - 1) + [2]
    assert features.values["target_weights"].tolist() == [[1] * 5 + [0] * 4, [1] * 9]
    assert [head.labels[i] for i in features.values["labels"][0, :5]] == list(sentences[0].labels)
    firsts = [english.pieces[ids[place]] for place in features.positions["words"][0, :5]]
    assert all(word.startswith(piece.strip("▁")) for word, piece in zip(sentences[0].words, firsts, strict=True))
    with pytest.raises(InputError, match="line 1: the label 'B-ORG' does not occur in the training examples, which ha"):
        task.features(read(tmp_path, "a O\nb B-ORG\n"), english, head, training=False)


def outputs_of(head, features, labels):
    """Predictions as the network would give them."""
    found = np.full(features.values["target_weights"].shape, -1)
    found[features.values["target_weights"] > 0] = [head.labels.index(label) for label in labels]
    return {"label": found}


def test_scores_count_entities_and_words(sentences, english):
    task = task_with()
    head, features = features_of(task, sentences, english)
    labels = ["O", "B-PER", "O", "B-LOC", "O", "I-PER", "I-PER", "O", "O", "O", "O", "O", "O", "O"]
    scores = metrics(task, sentences, features, outputs_of(head, features, labels))
    # 4 true, 3 predicted and all right; strictly one of them begins without B.
    of_entities = {"f1": 6 / 7, "precision": 1, "recall": 3 / 4, "strict_f1": 2 / 3, "f1_LOC": 2 / 3, "f1_PER": 1}
    assert scores == pytest.approx({"accuracy": 6 / 7} | of_entities)
    assert task.metric == "f1"


def test_labels_that_are_no_tags_have_accuracy_alone(tmp_path, english):
    task = task_with("token_classification")
    sentences = read(tmp_path, "she PRP\nran VBD\n\nhe PRP\n", task)
    head, features = features_of(task, sentences, english)
    outputs = outputs_of(head, features, ["PRP", "PRP", "PRP"])
    assert metrics(task, sentences, features, outputs) == {"accuracy": 2 / 3}
    assert task.metric == "accuracy"
    assert write(task, tmp_path, sentences, features, outputs) == ["predictions.txt"]


def test_unlabelled_words_are_written_with_their_labels(sentences, english, tmp_path):
    task = task_with()
    head = task.head(sentences)
    words = read(tmp_path, "she\tx\nran\ty\n", task, "predict")
    features = task.features(words, english, head, training=False)
    assert write(task, tmp_path, words, features, outputs_of(head, features, ["O", "O"])) == ["predictions.txt"]
    assert (tmp_path / "predictions.txt").read_text() == "she\tx\tO\nran\ty\tO\n\n"


def test_words_are_compared_by_the_type_of_their_entity(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr("xlnet_jax.tasks.token_classification.draw_confusion", lambda *given: drawn.extend(given))
    task = task_with()
    monkeypatch.setattr(task, "_names", ("B-PER", "I-PER", "O", "S-LOC"))
    sentence = Sentence(tuple("abcd"), ("B-PER", "I-PER", "O", "S-LOC"), ("",) * 4, "")
    task.draw([sentence], [Prediction(("I-PER", "O", "O", "B-PER"), {})], tmp_path, "a title")
    assert drawn[:3] == [["LOC", "PER", "O"], [1, 1, 2, 0], [1, 2, 2, 1]]


def split(*sentences):
    return [sentence.split() for sentence in sentences]


TRUE = split("B-PER I-PER O B-LOC", "O B-ORG I-ORG I-ORG O", "B-LOC O B-PER", "I-LOC I-LOC O")
PREDICTED = split("B-PER I-PER O I-LOC", "O B-ORG I-ORG O O", "B-LOC B-LOC I-PER", "B-LOC I-LOC O")


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O B-PER I-PER O", [("PER", 1, 3)]),
        ("I-PER I-PER O I-PER", [("PER", 0, 2), ("PER", 3, 4)]),
        ("B-PER B-PER I-LOC I-LOC", [("PER", 0, 1), ("PER", 1, 2), ("LOC", 2, 4)]),
        ("B-PER I-PER E-PER S-LOC", [("PER", 0, 3), ("LOC", 3, 4)]),
        ("E-PER E-PER I-PER", [("PER", 0, 1), ("PER", 1, 2), ("PER", 2, 3)]),
        ("S-PER S-PER I-PER E-PER", [("PER", 0, 1), ("PER", 1, 2), ("PER", 2, 4)]),
        ("B-PER E-PER I-PER B-PER", [("PER", 0, 2), ("PER", 2, 3), ("PER", 3, 4)]),
        ("S-LOC E-LOC O", [("LOC", 0, 1), ("LOC", 1, 2)]),
        ("B-A-B I-A-B I-A", [("A-B", 0, 2), ("A", 2, 3)]),
        ("B I O I", [("_", 0, 2), ("_", 3, 4)]),
        ("B-A L-A U-A U-A W-A", [("A", 0, 2), ("A", 2, 3), ("A", 3, 4), ("A", 4, 5)]),  # other letters of BIOES
        ("B-A M-A E-A", [("A", 0, 3)]),
    ],
)
def test_any_sequence_of_tags_has_the_entities_that_seqeval_finds_by_default(tags, expected):
    assert entities(tags.split()) == expected


def test_scores_are_those_of_seqeval_by_default():
    scores = entity_scores(map(entities, TRUE), map(entities, PREDICTED))
    assert scores[None] == pytest.approx((5 / 7, 5 / 6, 10 / 13, 6, 7))
    assert scores["LOC"] == pytest.approx((0.75, 1.0, 6 / 7, 3, 4))
    assert scores["ORG"] == pytest.approx((0.0, 0.0, 0.0, 1, 1))
    assert scores["PER"] == pytest.approx((1.0, 1.0, 1.0, 2, 2))
    assert entity_scores([[]], [[]]) == {None: (0.0, 0.0, 0.0, 0, 0)}


def test_strict_scores_are_those_of_seqevals_strict_mode():
    def strict_scores(true, predicted, scheme):
        return entity_scores(*([strict_entities(tags, scheme) for tags in side] for side in (true, predicted)))

    scores = strict_scores(TRUE, PREDICTED, "IOB2")
    assert scores[None] == pytest.approx((0.4, 0.4, 0.4, 5, 5))
    assert [scores[kind].f1 for kind in ("LOC", "ORG", "PER")] == pytest.approx([0.4, 0.0, 2 / 3])
    true = split("B-PER E-PER S-LOC O", "S-PER B-ORG I-ORG E-ORG")
    predicted = split("B-PER I-PER S-LOC O", "S-PER B-ORG E-ORG I-ORG")
    assert entity_scores(map(entities, true), map(entities, predicted))[None][:3] == pytest.approx((0.6, 0.75, 2 / 3))
    assert strict_scores(true, predicted, "BIOES")[None][:3] == pytest.approx((2 / 3, 0.5, 4 / 7))


def test_the_scheme_is_told_from_the_tags():
    for scheme, *sentences in (
        ("IOB1", "I-PER I-PER O", "I-LOC B-LOC"),
        ("IOB2", "B-PER I-PER O", "O", "B-LOC I-PER"),
        ("BIOES", "B-PER E-PER O"),
        ("BIOES", "U-PER"),
        ("IOB2", "O O"),
    ):
        assert scheme_of(split(*sentences)) == scheme
    labels = ["O", "B-PER", "I", "B_L", "NN", "OK", "B-"]
    assert [is_tag(label) for label in labels] == [True, True, True, True, False, False, False]
