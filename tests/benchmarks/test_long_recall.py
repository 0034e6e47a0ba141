"""Made-up texts for recall, and the reading of them window by window."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import long_recall
from benchmarks.long_recall import DISTANCES, KEYS, RECENT, REUSED, VALUES, WINDOW, document, needle, recalled, words_of
from data_pipelines.tokenizer import Tokenizer
from tests.xlnet_jax.random_models import SMALL, random_model


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.load("tiny")


def places_of(keys):
    """Return the places of each key, in words."""
    return [2 * np.flatnonzero(keys == key) for key in range(KEYS)]


def test_a_word_is_a_piece_and_either_a_key_or_a_value(tokenizer):
    keys, values = words_of(tokenizer)
    assert (len(keys), len(values), len({*keys, *values})) == (KEYS, VALUES, KEYS + VALUES)
    assert all(len(pieces) == 1 for pieces in tokenizer.encode_lines([*keys, *values]))


def test_the_text_is_read_piece_by_piece(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(long_recall, "DOCUMENTS", 2)
    long_recall.write_text(tmp_path / "text.txt")
    documents = (tmp_path / "text.txt").read_text().strip().split("\n\n")
    assert [len(ids) for ids in tokenizer.encode_lines(documents)] == [2 * long_recall.PAIRS] * 2


def test_a_key_keeps_its_value_in_a_document():
    keys, values = document(np.random.default_rng(0), 500)
    assert all(len({*values[keys == key]}) == 1 for key in {*keys})


def test_keys_come_again_at_distances_of_a_quarter_to_ten_windows():
    keys, _ = document(np.random.default_rng(0), 12_000)
    distances = np.concatenate([np.diff(places) for places in places_of(keys)])
    for low, high in ((0.25, 0.75), (0.75, 1.5), (1.5, 3), (3, 6), (6, 10)):
        assert ((distances >= low * WINDOW) & (distances < high * WINDOW)).sum() > 50


def test_half_of_the_keys_were_mentioned_a_few_pairs_ago():
    keys, _ = document(np.random.default_rng(0), 4000)
    recent = np.mean([key in {*keys[max(n - 2 * RECENT, 0) : n]} for n, key in enumerate(keys)])
    assert 0.5 < recent < 0.8


@pytest.mark.parametrize("distance", [int(windows * WINDOW) for windows in DISTANCES])
def test_a_needle_is_told_once_and_asked_for_at_its_distance(distance):
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


def test_a_random_network_guesses(tokenizer, monkeypatch):
    monkeypatch.setattr(long_recall, "NEEDLES", 64)
    network = random_model(replace(SMALL, vocab_size=tokenizer.vocab_size, mem_len=64), tokenizer=tokenizer)
    assert recalled(network, WINDOW) < 0.2
