"""Entities and their scores are seqeval's: the numbers here are those of seqeval 1.2.2."""

import pytest

from xlnet_jax.tasks.token_classification.entities import entities, entity_scores, is_tag, scheme_of, strict_entities


def split(sentences):
    return [sentence.split() for sentence in sentences]


TRUE = split(["B-PER I-PER O B-LOC", "O B-ORG I-ORG I-ORG O", "B-LOC O B-PER", "I-LOC I-LOC O"])
PREDICTED = split(["B-PER I-PER O I-LOC", "O B-ORG I-ORG O O", "B-LOC B-LOC I-PER", "B-LOC I-LOC O"])


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O B-PER I-PER O", [("PER", 1, 3)]),
        ("I-PER I-PER O I-PER", [("PER", 0, 2), ("PER", 3, 4)]),
        ("B-PER B-PER I-LOC I-LOC", [("PER", 0, 1), ("PER", 1, 2), ("LOC", 2, 4)]),
        ("I-PER B-PER I-PER", [("PER", 0, 1), ("PER", 1, 3)]),
        ("B-PER I-LOC O", [("PER", 0, 1), ("LOC", 1, 2)]),
        ("B-PER I-PER E-PER S-LOC", [("PER", 0, 3), ("LOC", 3, 4)]),
        ("E-PER E-PER I-PER", [("PER", 0, 1), ("PER", 1, 2), ("PER", 2, 3)]),
        ("S-PER S-PER I-PER E-PER", [("PER", 0, 1), ("PER", 1, 2), ("PER", 2, 4)]),
        ("B-PER E-PER I-PER B-PER", [("PER", 0, 2), ("PER", 2, 3), ("PER", 3, 4)]),
        ("S-LOC E-LOC O", [("LOC", 0, 1), ("LOC", 1, 2)]),
        ("B-A-B I-A-B I-A", [("A-B", 0, 2), ("A", 2, 3)]),
        ("B I O I", [("_", 0, 2), ("_", 3, 4)]),
        ("O O", []),
    ],
)
def test_any_sequence_of_tags_has_the_entities_that_seqeval_finds_by_default(tags, expected):
    assert entities(tags.split()) == expected


def test_the_schemes_that_name_the_places_otherwise_are_read_as_bioes():
    for tags, same in (
        ("B-PER L-PER U-PER U-PER I-LOC L-LOC", "B-PER E-PER S-PER S-PER I-LOC E-LOC"),
        ("B-PER M-PER E-PER W-PER", "B-PER I-PER E-PER S-PER"),
    ):
        assert entities(tags.split()) == entities(same.split())
        assert strict_entities(tags.split(), "BIOES") == strict_entities(same.split(), "BIOES")


def test_scores_are_those_of_seqeval_by_default():
    scores = entity_scores(map(entities, TRUE), map(entities, PREDICTED))
    assert scores[None] == pytest.approx((5 / 7, 5 / 6, 10 / 13, 6, 7))
    assert scores["LOC"] == pytest.approx((0.75, 1.0, 6 / 7, 3, 4))
    assert scores["ORG"] == pytest.approx((0.0, 0.0, 0.0, 1, 1))
    assert scores["PER"] == pytest.approx((1.0, 1.0, 1.0, 2, 2))
    assert list(scores) == [None, "LOC", "ORG", "PER"]


def strict_scores(true, predicted, scheme):
    return entity_scores(*([strict_entities(tags, scheme) for tags in side] for side in (true, predicted)))


def test_strict_scores_are_those_of_seqevals_strict_mode():
    scores = strict_scores(TRUE, PREDICTED, "IOB2")
    assert scores[None] == pytest.approx((0.4, 0.4, 0.4, 5, 5))
    assert [scores[kind].f1 for kind in ("LOC", "ORG", "PER")] == pytest.approx([0.4, 0.0, 2 / 3])
    true = split(["B-PER E-PER S-LOC O", "S-PER B-ORG I-ORG E-ORG"])
    predicted = split(["B-PER I-PER S-LOC O", "S-PER B-ORG E-ORG I-ORG"])
    assert entity_scores(map(entities, true), map(entities, predicted))[None][:3] == pytest.approx((0.6, 0.75, 2 / 3))
    assert strict_scores(true, predicted, "BIOES")[None][:3] == pytest.approx((2 / 3, 0.5, 4 / 7))


def test_nothing_true_and_nothing_predicted_is_zero_as_in_seqeval():
    assert entity_scores([[]], [[]]) == {None: (0.0, 0.0, 0.0, 0, 0)}
    assert entity_scores([entities(["B-X"])], [[]])[None] == (0.0, 0.0, 0.0, 1, 0)


@pytest.mark.parametrize(
    ("sentences", "scheme"),
    [
        (["I-PER I-PER O", "I-LOC B-LOC"], "IOB1"),
        (["B-PER I-PER O", "O", "B-LOC I-PER"], "IOB2"),
        (["B-PER E-PER O"], "BIOES"),
        (["U-PER"], "BIOES"),
        (["O O"], "IOB2"),
    ],
)
def test_the_scheme_is_told_from_the_tags(sentences, scheme):
    assert scheme_of(split(sentences)) == scheme


def test_tags_are_told_from_other_labels():
    labels = ["O", "B-PER", "I", "B_L", "NN", "OK", "B-"]
    assert [is_tag(label) for label in labels] == [True, True, True, True, False, False, False]
