"""Recorded batches of every form. They show any change of what is drawn; the other tests say what is wrong with it.
Update the table (`python -m tests.data_pipelines.test_golden_batches`) only when a change is meant to alter what a run
reads or predicts, and say so in the commit: a run that continues after such a change reads other batches."""

import dataclasses
import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from data_pipelines import windows
from data_pipelines.batches import BatchSource
from data_pipelines.objectives import plm
from data_pipelines.stateless import Purpose, uniforms
from tests.data_pipelines.conftest import DATA, MEM_LEN
from tests.data_pipelines.test_batches import FORMS, every_form, formed
from tests.xlnet_jax.tiny_text import TinyCorpus

pytestmark = pytest.mark.contract

TABLE = Path(__file__).with_name("golden_batches.json")
VOCAB_SIZE, SOURCES = 600, (10, 2, 20)
SEEDS = (5, 2**40 + 3)
STEPS = (0, 1, 6, 10**6 + 1)


def source_of(seed=SEEDS[0], split="train", form=None, **data):
    """Return batches of random tokens from three sources. They depend on no tokenizer and no file."""
    corpus = TinyCorpus(VOCAB_SIZE, windows.block_len(DATA))
    of_sources = SimpleNamespace(source_blocks=SOURCES)
    corpus.manifest = SimpleNamespace(
        made_from={}, sources=("a", "b", "c"), weights=(), splits={"train": of_sources, "validation": of_sources}
    )
    is_word_start = np.arange(VOCAB_SIZE) % 2 == 0
    source = BatchSource(corpus, split, is_word_start, DATA, MEM_LEN, seed, plm.FILLING)
    return formed(source, **(form or {}), **data)


def digests(form):
    """Return the first digits of the SHA-256 of each array of a form, over several seeds and steps, and of held-out
    text."""
    sources = [source_of(seed, form=form) for seed in SEEDS]
    sources += [source_of(form=form, weights=(0.5, 0.1, 0.4)), source_of(split="validation", form=form)]
    hashes = {}
    for source in sources:
        for step in STEPS:
            for name, array in source.batch_at(step).items():
                plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
                hashes.setdefault(name, hashlib.sha256()).update(plain.tobytes())
    return {name: of_array.hexdigest()[:16] for name, of_array in hashes.items()}


@pytest.mark.parametrize("name", FORMS)
def test_batches_are_those_that_were_recorded(name):
    assert digests(FORMS[name]) == json.loads(TABLE.read_text())[name]


def test_a_row_is_the_one_that_was_recorded():
    batch = source_of(seq_len=16, reuse_len=8, perm_size=8, num_predict=4).batch_at(7)
    assert {name: array[1].tolist() for name, array in batch.items()} == ROW


# ---- what a batch is drawn from -------------------------------------------------------------------------------------


def test_step_purpose_and_seed_have_places_of_their_own_in_the_counter():
    """A number is word (row * words + i) of Philox with the key (seed, purpose) and the counter (_, 0, step, 0)."""
    for seed, step, row in ((7, 3, 5), (2**64 - 1, 2**40, 2**33)):
        key = np.array([seed, Purpose.CUTS], np.uint64)
        counter = np.array([2 * row, 0, step, 0], np.uint64)  # 7 words take two counters
        words = np.random.Philox(key=key, counter=counter).random_raw(7) >> np.uint64(11)
        np.testing.assert_array_equal(uniforms(seed, Purpose.CUTS, step, [row], 7)[0], words * 2.0**-53)


@every_form
def test_no_part_of_a_batch_is_drawn_from_the_numbers_of_another(form):
    source, drawn = source_of(form=form), []

    def fill(windows):
        def draw(purpose, width):
            drawn.append(purpose)
            return windows.draw(purpose, width)

        return source.filling.fill(dataclasses.replace(windows, draw=draw))

    watched = dataclasses.replace(source, filling=dataclasses.replace(source.filling, fill=fill))
    watched.batch_at(0)
    assert len(set(drawn)) == len(drawn)
    assert not {Purpose.VISIT, Purpose.CUTS, Purpose.EPOCH} & set(drawn)


ROW = {
    "input_ids": [79, 115, 241, 173, 342, 47, 56, 544, 195, 429, 319, 4, 62, 230, 4, 3],
    "segment_ids": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2],
    "perm_rank": [7, -1, -1, -1, -1, -1, 4, -1, 8, 8, 8, 16, 8, 14, 13, 12],
    "target_positions": [0, 6, 13, 15],
    "target_ids": [79, 56, 230, 0],
    "target_weights": [1.0, 1.0, 1.0, 0.0],
    "is_reversed": True,
    "mem_filled": 48,
}

if __name__ == "__main__":
    TABLE.write_text(json.dumps({name: digests(form) for name, form in FORMS.items()}, indent=1) + "\n")
