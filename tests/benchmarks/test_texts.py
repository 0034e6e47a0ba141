"""Texts that studies make up or take apart, and the networks that read them."""

import itertools
import json
import random
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import eight_tasks, long_recall
from benchmarks.dependent_targets import (
    CONTEXT,
    Span,
    associated_pairs,
    collocations,
    masked_log_likelihoods,
    names,
    numbers,
    queries_of,
)
from benchmarks.long_recall import DISTANCES, KEYS, RECENT, REUSED, WINDOW, needle
from benchmarks.twice import words_twice
from data_pipelines.tokenizer import MASK, Tokenizer
from tests.xlnet_jax.random_models import SMALL, random_model
from xlnet_jax.inference.log_probs import Query
from xlnet_jax.models.heads import build_model
from xlnet_jax.models.inputs import compact_inputs

# ---- spans of words that depend on each other ------------------------------------------------------------------------


def spans(found, words):
    return [" ".join(words[span.begin : span.end]) for span in found]


def test_names_numbers_and_collocations_are_found():
    words = "Nothing was said. Lady Ann met Miss Eleanor Tilney, and Mr. Henry bowed to Captain Hunt; They left".split()
    assert spans(names(words), words) == ["Miss Eleanor Tilney,", "Mr. Henry", "Captain Hunt;"]
    words = "she was five and twenty, had two thousand pounds and one horse in 1803".split()
    assert spans(numbers(words), words) == ["five and twenty,", "two thousand"]
    text = " ".join(f"the word{i} met a drawing room at once" for i in range(40)) + " a room " * 10
    found = associated_pairs(text, at_least=30, information=1.5)
    assert {("drawing", "room"), ("at", "once")} <= {*found}
    assert ("the", "word1") not in found
    words = "He saw the drawing room and a room".split()
    assert spans(collocations(words, found), words) == ["drawing room"]


def test_the_pieces_of_a_span_spell_its_words():
    """Words bring their punctuation along."""
    tokenizer = Tokenizer.load("tiny")
    words = ['"Oh,', "yes;", "Mr.", "Tilney's", "(dear)", "sister,", "said", "she."] * 20
    asked = [Span("name", begin, begin + 2) for begin in range(len(words) - 1)]
    found = list(queries_of(tokenizer, " ".join(words), asked))
    assert len(found) > 40
    for span, query in found:
        spelled = "".join(tokenizer.pieces[piece] for piece in query.ids_L[query.positions_P])
        assert spelled.replace("▁", " ").split() == words[span.begin : span.end]


def test_masked_pieces_are_predicted_as_by_one_text_without_padding():
    """And a piece of the span says nothing about another."""
    network = random_model(replace(SMALL, mem_len=0))
    ids = np.random.default_rng(0).integers(10, 40, 2 * CONTEXT + 3).astype(np.int32)
    positions = np.arange(CONTEXT, CONTEXT + 3)
    query, other = Query(ids, positions, np.arange(3)), Query(ids[:-5], positions, np.arange(3))
    found, of_other = masked_log_likelihoods(network, [query, other])

    masked = ids.copy()
    masked[positions] = MASK
    inputs = compact_inputs(
        masked[None], np.zeros((1, len(ids)), int), np.zeros((1, len(ids)), int), None, np.zeros(1, bool),
        np.zeros((1, 0), bool),
    )  # fmt: skip
    logits, _ = build_model(network.model, None).apply({"params": network.params}, inputs)
    expected = jax.nn.log_softmax(logits)[0, positions, ids[positions]]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(found - of_other).max() > 1e-4

    changed = ids.copy()
    changed[positions[0]] = 10 + (ids[positions[0]] - 9) % 30
    (again,) = masked_log_likelihoods(network, [query._replace(ids_L=changed)])
    np.testing.assert_array_equal(again[1:], found[1:])
    assert again[0] != found[0]


# ---- recall over long distances --------------------------------------------------------------------------------------


def places_of(keys):
    """Return the places of each key, in words."""
    return [2 * np.flatnonzero(keys == key) for key in range(KEYS)]


def test_the_text_is_read_piece_by_piece(tmp_path, monkeypatch):
    monkeypatch.setattr(long_recall, "DOCUMENTS", 2)
    long_recall.write_text(tmp_path / "text.txt")
    documents = (tmp_path / "text.txt").read_text().strip().split("\n\n")
    assert [len(ids) for ids in Tokenizer.load("tiny").encode_lines(documents)] == [2 * long_recall.PAIRS] * 2


def test_a_key_keeps_its_value_and_comes_again_at_distances_of_a_quarter_to_ten_windows():
    keys, values = long_recall.document(np.random.default_rng(0), 12_000)
    assert all(len({*values[keys == key]}) == 1 for key in {*keys})
    distances = np.concatenate([np.diff(places) for places in places_of(keys)])
    for low, high in ((0.25, 0.75), (0.75, 1.5), (1.5, 3), (3, 6), (6, 10)):
        assert ((distances >= low * WINDOW) & (distances < high * WINDOW)).sum() > 50
    recent = np.mean([key in {*keys[max(n - 2 * RECENT, 0) : n]} for n, key in enumerate(keys[:4000])])
    assert 0.5 < recent < 0.8


def test_a_needle_is_told_once_and_asked_for_at_its_distance():
    for distance in (int(windows * WINDOW) for windows in DISTANCES):
        keys, values = needle(np.random.default_rng(1), distance, 640)
        assert 2 * len(keys) == 640
        assert [*places_of(keys)[keys[-1]]] == [640 - 2 - distance, 640 - 2]
        assert values[-1 - distance // 2] == values[-1]


@pytest.mark.parametrize(("memory", "sees"), [(0, False), (4 * WINDOW, True)])
def test_a_needle_two_windows_back_is_seen_through_memory_alone(memory, sees):
    network = random_model(replace(SMALL, vocab_size=100, mem_len=memory))
    ids_BT = np.random.default_rng(0).integers(10, 100, (2, 6 * REUSED + WINDOW))
    ids_BT[1] = ids_BT[0]
    ids_BT[1, -1 - 2 * WINDOW] -= 1  # the needle
    mems = jnp.zeros((network.model.num_layers, 2, memory, network.model.d_model))
    for number in range(7):
        window = jnp.asarray(ids_BT[:, number * REUSED : number * REUSED + WINDOW])
        logits, mems = long_recall._read(network.model, network.params, window, mems, jnp.full(2, number * REUSED))
    assert (np.abs(logits[0] - logits[1]).max() > 1e-6) == sees


# ---- texts to learn from ---------------------------------------------------------------------------------------------

ROWS = [f"row {number}" for number in range(25)]
CONTENTS = {
    eight_tasks.split_table: "head\n" + "\n".join(ROWS) + "\n",
    eight_tasks.split_rows: "\n".join(ROWS) + "\n",
    eight_tasks.split_sentences: "\n\n".join(f"{row}\tO" for row in ROWS) + "\n",
    eight_tasks.split_list: json.dumps(ROWS),
    eight_tasks.split_articles: json.dumps({"version": "1.1", "data": ROWS}),
}


@pytest.mark.parametrize("split", CONTENTS, ids=lambda split: split.__name__)
def test_an_example_is_learned_or_set_aside(split):
    learned, aside = split(CONTENTS[split])
    found = [
        {row for row in ROWS if row in part.replace('"', "\n").replace("\t", "\n").split("\n")}
        for part in (learned, aside)
    ]
    assert found[0] | found[1] == set(ROWS)
    assert not found[0] & found[1]
    assert len(found[1]) == (1 if split is eight_tasks.split_articles else 2)
    assert ("head" in learned) == ("head" in aside) == (split is eight_tasks.split_table)


def test_a_phrase_of_a_sentence_that_is_set_aside_is_not_learned():
    sentence = "a long sentence whose many words all stand apart from those of others number {}"
    rows = [f"{sentence.format(n)} \t1\n" for n in range(100, 141)] + ["of others number 140 \t0\n", "new \t1\n"]
    learned, aside = eight_tasks.split_phrases("sentence\tlabel\n" + "".join(rows))
    assert aside == "sentence\tlabel\n" + rows[0] + rows[40]
    assert learned == "sentence\tlabel\n" + "".join(rows[1:40]) + rows[42]


def test_words_of_the_text_are_said_twice_or_three_times():
    known = ["".join(letters) for letters in itertools.product("abcdefghij", repeat=3)]
    times = []
    for document in words_twice(" ".join([*known, *known, "of", "once"]), 100, random.Random(2), at_least=2):
        said = document.split("\n")
        assert set(document.split()) <= {*known, "of", "once"}
        times += [said.count(line) for line in dict.fromkeys(said)]
    assert set(times) == {2, 3}
