"""Held-out text is read once and in order, by any batch size, number of hosts, weights and seed."""

import dataclasses

import numpy as np
import pytest

from tests.data_pipelines.test_batches import FORMS, TRANSFORMER_XL, formed, source_blocks

CAUSAL = {
    "with memory": TRANSFORMER_XL | {"seq_len": 32, "reuse_len": 32},
    "without memory": TRANSFORMER_XL | {"seq_len": 32, "reuse_len": 0},
}
SOURCES = ((13,), (7, 1, 5), (3, 0, 2))  # held-out blocks of each source


def held_out(source, **changes):
    return formed(dataclasses.replace(source, split="validation"), **changes)


def epoch_of(source, hosts=1):
    """Return the batches of an evaluation, each put together from the rows of several hosts."""
    size = source.data.batch_size
    rows = np.array_split(np.arange(size), hosts)
    parts = [[source.batch_at(step, of_host) for step in range(source.steps_per_epoch)] for of_host in rows]
    return [
        {name: np.concatenate([p[name] for p in of_step]) for name in of_step[0]}
        for of_step in zip(*parts, strict=True)
    ]


def windows_of(source, batches):
    """Return {(block, window of it): the row's arrays}, and how many rows had each."""
    found, counts = {}, {}
    for step, batch in enumerate(batches):
        visit, index = divmod(step, source.steps_per_block)
        blocks = source.assign(visit, range(source.data.batch_size))[0]
        for row in np.flatnonzero(batch["row_weights"]):
            key = int(blocks[row]), index
            found[key] = {name: array[row].tolist() for name, array in batch.items()}
            counts[key] = counts.get(key, 0) + 1
    return found, counts


@pytest.mark.parametrize("blocks", SOURCES, ids=str)
@pytest.mark.parametrize("form", CAUSAL.values(), ids=CAUSAL)
def test_every_token_behind_the_first_of_a_block_is_predicted_once(source, form, blocks):
    """Count the predictions in the text, for batches that the blocks fill, partly fill, or are too few to fill once."""
    corpus = source_blocks(source.corpus, *blocks, weights=(0.7, 0.2, 0.1)[: len(blocks)])
    tokens, _ = corpus.read("validation", np.arange(sum(blocks)))
    for batch_size, hosts in ((1, 1), (3, 3), (4, 1), (12, 2), (40, 8)):
        causal = held_out(source, corpus=corpus, batch_size=batch_size, weights=(0.1, 0.2, 0.7)[: len(blocks)], **form)
        end = 32 * causal.steps_per_block + 1
        predicted = []  # of one block after the other
        of_rows = [[] for _ in range(batch_size)]
        for step, batch in enumerate(epoch_of(causal, hosts)):
            for row, (ids, weights) in enumerate(zip(batch["target_ids"], batch["target_weights"], strict=True)):
                of_rows[row] += ids[weights > 0].tolist()
            if step % causal.steps_per_block == causal.steps_per_block - 1:
                predicted += [row for row in of_rows if row]
                of_rows = [[] for _ in range(batch_size)]
        assert predicted == tokens[:, 1:end].tolist()


@pytest.mark.parametrize("name", ["plm", "plm, dense", "mlm, words", "clm"])
def test_every_block_is_read_once_whatever_the_weights(source, name):
    corpus = source_blocks(source.corpus, 7, 1, 5, weights=(0.98, 0.01, 0.01))
    reader = held_out(source, corpus=corpus, batch_size=5, **FORMS[name])
    batches = epoch_of(reader)
    counts = windows_of(reader, batches)[1]
    assert counts == {(b, w): 1 for b in range(13) for w in range(reader.steps_per_block)}
    for batch in batches:
        for weighed in ("target_weights", "target_mapping"):
            assert weighed not in batch or not batch[weighed][batch["row_weights"] == 0].any()


@pytest.mark.parametrize("name", ["plm, dense", "mlm, ALBERT", "plm, packed", "rtd", "plm in groups", "mdlm"])
def test_held_out_windows_do_not_depend_on_batch_size_hosts_seed_or_weights(source, name):
    """Their partners, directions, cuts and targets do not either."""
    form = FORMS[name]
    corpus = source_blocks(source.corpus, 7, 1, 5)
    first = held_out(source, corpus=corpus, batch_size=5, **form)
    expected, _ = windows_of(first, epoch_of(first))
    for batch_size, hosts, seed, weights in ((1, 1, 5, ()), (4, 2, 6, (0.1, 0.2, 0.7)), (24, 8, 2**40, ())):
        other = held_out(source, corpus=corpus, batch_size=batch_size, weights=weights, **form)
        other = dataclasses.replace(other, seed=seed)
        assert windows_of(other, epoch_of(other, hosts))[0] == expected


@pytest.mark.parametrize("max_windows", [1, 13, 30, 51, 1000])
def test_a_cap_leaves_out_blocks_evenly_and_reads_none_twice(source, max_windows):
    corpus = source_blocks(source.corpus, 6, 7)
    reader = dataclasses.replace(held_out(source, corpus=corpus, batch_size=5), max_windows=max_windows)
    batches = epoch_of(reader)
    counts = windows_of(reader, batches)[1]
    assert set(counts.values()) == {1}
    assert len(counts) == sum(batch["row_weights"].sum() for batch in batches)
    assert len(batches) == min(-(-max_windows // 5), 3 * reader.steps_per_block)
    assert len(counts) < max_windows + 5
    blocks = np.unique([block for block, _ in counts])
    assert np.diff(blocks).max(initial=0) <= -(-13 // len(blocks))
    assert blocks[0] == 0
    assert blocks[-1] >= 13 - -(-13 // len(blocks))


def test_what_comes_after_the_end_is_the_beginning(source):
    reader = held_out(source, corpus=source_blocks(source.corpus, 3))
    again = reader.batch_at(reader.steps_per_epoch)
    for name, array in reader.batch_at(0).items():
        np.testing.assert_array_equal(again[name], array)
