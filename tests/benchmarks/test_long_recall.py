"""Made-up texts for recall, and the reading of them window by window."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import long_recall
from benchmarks.long_recall import (
    DISTANCES,
    KEYS,
    REUSED,
    VALUES,
    WINDOW,
    far_document,
    near_document,
    needle_text,
    recalled,
)
from data_pipelines.tokenizer import Tokenizer
from tests.xlnet_jax.random_models import SMALL, random_model
from xlnet_jax.objectives import command_line


@pytest.fixture(scope="module")
def tokenizer():
    words = [f"{kind}{n}" for kind, many in (("k", KEYS), ("v", VALUES)) for n in range(many)]
    return Tokenizer.train([" ".join(words)], 100, "none", token_level="word")


def mentions(words):
    """Return places and values of each key."""
    found = {}
    for place, word in enumerate(words):
        if word.startswith("k"):
            found.setdefault(word, []).append((place, words[place + 1]))
    return found


@pytest.mark.parametrize("make", [near_document, far_document])
def test_a_key_keeps_its_value_in_a_document(make):
    for places in mentions(make(np.random.default_rng(0), 500)).values():
        assert len({value for _, value in places}) == 1


def test_near_keys_come_again_within_a_window():
    places = mentions(near_document(np.random.default_rng(0), 2000))
    assert len(places) == KEYS
    distances = np.concatenate([np.diff([place for place, _ in of_key]) for of_key in places.values()])
    assert np.mean(distances < WINDOW) > 0.8


def test_keys_come_again_at_distances_of_a_quarter_to_ten_windows():
    places = mentions(far_document(np.random.default_rng(0), 12_000)).values()
    distances = np.concatenate([np.diff([place for place, _ in of_key]) for of_key in places])
    for low, high in ((0.25, 0.75), (0.75, 1.5), (1.5, 3), (3, 6), (6, 10)):
        assert ((distances >= low * WINDOW) & (distances < high * WINDOW)).sum() > 50


@pytest.mark.parametrize("distance", [int(windows * WINDOW) for windows in DISTANCES])
def test_a_needle_is_told_once_and_asked_for_at_its_distance(distance):
    words, value = needle_text(np.random.default_rng(1), distance, 640)
    assert len(words) == 640
    assert words[-1] == value
    assert [place for place, _ in mentions(words)[words[-2]]] == [640 - 2 - distance, 640 - 2]
    assert words[-1 - distance] == value


@pytest.mark.parametrize(("memory", "sees"), [(0, False), (4 * WINDOW, True)])
def test_a_needle_two_windows_back_is_seen_through_memory_alone(memory, sees, tokenizer):
    network = random_model(replace(SMALL, vocab_size=tokenizer.vocab_size, mem_len=memory), tokenizer=tokenizer)
    ids_BT = np.random.default_rng(0).integers(10, tokenizer.vocab_size, (2, 6 * REUSED + WINDOW))
    ids_BT[1] = ids_BT[0]
    ids_BT[1, -1 - 2 * WINDOW] += 1  # the needle
    mems = jnp.zeros((network.model.num_layers, 2, memory, network.model.d_model))
    for number in range(7):
        window = jnp.asarray(ids_BT[:, number * REUSED : number * REUSED + WINDOW])
        logits, mems = long_recall._read(network.model, network.params, window, mems, jnp.full(2, number * REUSED))
    assert (np.abs(logits[0] - logits[1]).max() > 1e-6) == sees


def test_a_random_network_guesses(tokenizer, monkeypatch):
    monkeypatch.setattr(long_recall, "NEEDLES", 64)
    network = random_model(replace(SMALL, vocab_size=tokenizer.vocab_size, mem_len=64), tokenizer=tokenizer)
    assert recalled(network, WINDOW) < 0.2


def test_the_second_training_begins_with_what_the_first_has_learned(tmp_path):
    texts = {name: tmp_path / f"{name}.txt" for name in long_recall.STEPS}
    for memory in long_recall.MEMORIES:
        command = long_recall.far(memory, 2, texts, tmp_path).command(tmp_path / "run")
        config = command_line.parse_config(command[1:], "train", "")
        assert (config.init, config.model.mem_len, config.seed) == (str(tmp_path / "near-seed-2"), memory, 2)
