"""Batch t is a pure function of (corpus, settings, seed, t), whoever asks, and whenever."""

import dataclasses
import itertools

import numpy as np
import pytest

from data_pipelines import sources, windows
from data_pipelines.batches import BatchSource
from data_pipelines.corpus import Corpus
from data_pipelines.permutation import to_dense
from data_pipelines.prepare import prepare
from data_pipelines.tokenizer import CLS, SEP, Tokenizer
from xlnet_jax.config import DataConfig, InputError

DATA = DataConfig(batch_size=12, seq_len=64, reuse_len=32, perm_size=16, num_predict=11, windows_per_block=4)
MEM_LEN = 48


def prepared(texts, tokenizer, data, folder):
    """A corpus of these files, cut into the blocks that the settings ask for."""
    return prepare(
        texts, None, tokenizer, folder, block_len=windows.block_len(data), validation_fraction=0.1, errors="strict"
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Batches of a part of the embedded novels."""
    folder = tmp_path_factory.mktemp("corpus")
    text = folder / "text.txt"
    with open(sources.embedded()[0]) as novels:
        text.write_text("".join(itertools.islice(novels, 600)))
    tokenizer = Tokenizer.train(sources.read_lines([text], "strict"), 600, "english")
    corpus = prepared([text], tokenizer, DATA, folder / "blocks")
    return BatchSource(corpus, "train", tokenizer.is_word_start, DATA, MEM_LEN, seed=5)


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def test_the_iterator_yields_batch_t_at_t_from_wherever_it_starts(source):
    for start in (0, 3, 6):
        for step, batch in enumerate(source.iterate(start, 9), start=start):
            assert_same(batch, source.batch_at(step))
    assert len(list(source.iterate(7, 9))) == 2


@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_hosts_build_their_rows_of_one_global_batch(source, hosts):
    share = DATA.batch_size // hosts
    parts = [source.batch_at(5, range(h * share, (h + 1) * share)) for h in range(hosts)]
    whole = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
    assert_same(whole, source.batch_at(5))


def test_a_late_step_is_a_step_like_any_other(source):
    step = 10**6
    (batch,) = source.iterate(step, step + 1)
    assert_same(batch, source.batch_at(step))


def test_within_a_visit_each_row_reads_on_where_it_stood(source):
    visit = source.read_visit(2, range(DATA.batch_size))
    for index in range(source.steps_per_block):
        batch = source.batch_at(2 * source.steps_per_block + index)
        begin = index * DATA.reuse_len
        np.testing.assert_array_equal(batch["input_ids"][:, :32], visit.tokens[:, begin : begin + 32])
        assert (batch["mem_filled"] == min(MEM_LEN, begin)).all()


def test_a_reversed_row_reads_its_block_backwards(source):
    visit = source.read_visit(0, range(DATA.batch_size))
    own, _, is_reversed = source._assign(0, range(DATA.batch_size))
    tokens, starts = source.corpus.read("train", own)
    assert 0 < is_reversed.sum() < DATA.batch_size
    for row in range(DATA.batch_size):
        text = tokens[row, ::-1] if is_reversed[row] else tokens[row]
        np.testing.assert_array_equal(visit.tokens[row], text)
        # A cut lies between two tokens: the same two from either side.
        cuts = np.flatnonzero(starts[row, 1:]) + 1
        cuts = np.sort(len(text) - cuts) if is_reversed[row] else cuts
        np.testing.assert_array_equal(np.flatnonzero(visit.cuts[row, 1:]) + 1, cuts)


def test_half_of_the_visits_are_reversed_and_none_where_only_one_direction_is_asked_for(source):
    flags = np.concatenate([source._assign(v, range(DATA.batch_size))[2] for v in range(200)])
    assert 0.45 < flags.mean() < 0.55
    forwards = dataclasses.replace(source, data=dataclasses.replace(DATA, bidirectional=False))
    assert not any(forwards._assign(v, range(DATA.batch_size))[2].any() for v in range(20))


def test_an_epoch_reads_every_block_once(source):
    blocks = source.corpus.num_blocks("train")
    visits = -(-blocks // DATA.batch_size)
    own = np.concatenate([source._assign(v, range(DATA.batch_size))[0] for v in range(2 * visits)])
    first, second = own[:blocks], own[blocks : 2 * blocks]
    assert sorted(first) == sorted(second) == list(range(blocks))
    assert (first != second).any()


def test_a_partner_is_another_block(source):
    own, partner, _ = source._assign(0, range(DATA.batch_size))
    assert (own != partner).all()


def test_targets_are_real_tokens_and_their_number_is_asked_for(source):
    for step in range(8):
        batch = source.batch_at(step)
        real = batch["target_weights"] > 0
        picked = np.take_along_axis(batch["input_ids"], batch["target_positions"], axis=1)
        np.testing.assert_array_equal(picked[real], batch["target_ids"][real])
        assert not np.isin(picked[real], (SEP, CLS)).any()
        assert (real.sum(1) >= DATA.num_predict - 3).all()
        assert (batch["target_positions"][~real] == DATA.seq_len - 1).all()


def test_another_seed_gives_other_batches(source):
    other = dataclasses.replace(source, seed=6)
    assert (source.batch_at(0)["input_ids"] != other.batch_at(0)["input_ids"]).any()


def test_the_dense_form_is_the_compact_one_spelt_out(source):
    dense = dataclasses.replace(source, data=dataclasses.replace(DATA, emit="dense"))
    (batch,) = dense.iterate(3, 4)
    assert_same(batch, to_dense(source.batch_at(3)))
    assert batch["perm_mask"].shape == (12, 64, 64)
    assert batch["target_mapping"].shape == (12, 11, 64)


def test_a_held_out_text_of_one_block_fills_a_batch(source):
    one = dataclasses.replace(source, split="validation", corpus=source_blocks(source.corpus, 1))
    np.testing.assert_array_equal(one.read_visit(0, range(12)).is_reversed, source.read_visit(0, range(12)).is_reversed)
    assert (one._assign(0, range(12))[0] == 0).all()
    assert one.batch_at(0)["input_ids"].shape == (12, 64)


def test_training_on_fewer_blocks_than_rows_is_refused(source):
    few = source_blocks(source.corpus, 5, 6)
    with pytest.raises(
        InputError, match=r"11 training blocks of 158 tokens are fewer than the 12 rows of a batch: lower"
    ):
        dataclasses.replace(source, corpus=few)


def test_a_corpus_whose_blocks_hold_no_window_is_refused(source):
    longer = dataclasses.replace(DATA, seq_len=512, reuse_len=256)
    with pytest.raises(InputError, match=r"blocks of 158 tokens cannot hold a window: data\.seq-len 512"):
        dataclasses.replace(source, data=longer)


def source_blocks(corpus, *blocks, weights=()):
    """The corpus as if its first blocks came from so many sources, in either split."""
    few = Corpus(corpus.folder)
    splits = {n: dataclasses.replace(s, source_blocks=blocks) for n, s in corpus.manifest.splits.items()}
    names = tuple(f"source{i}" for i in range(len(blocks)))
    few.manifest = dataclasses.replace(few.manifest, splits=splits, sources=names, weights=weights)
    return few
