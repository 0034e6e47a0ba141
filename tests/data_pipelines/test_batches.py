"""Batch t is a pure function of (corpus, settings, seed, t)."""

import dataclasses

import numpy as np
import pytest

from data_pipelines.corpus import Corpus
from tests.data_pipelines.conftest import DATA, MEM_LEN
from xlnet_jax.errors import InputError
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.settings.config import Config
from xlnet_jax.training import sharding

BERT = {"objective": "mlm", "reuse_len": 0, "bidirectional": False, "targets": "pieces"}
TRANSFORMER_XL = {
    "objective": "clm", "window": "text", "reuse_len": 64, "num_predict": None, "bidirectional": False
}  # fmt: skip
FORMS = {
    "plm": {},
    "plm, dense": {"emit": "dense"},
    "plm, words": {"num_predict": None, "span_unit": "word"},
    "plm, dense, tf2": {"num_predict": None, "emit": "dense", "profile": "tf2"},
    "plm, next, static": {"pair_loss": "next", "masking": "static"},
    "mlm, BERT": BERT | {"pair_loss": "next", "masking": "static"},
    "mlm, RoBERTa": BERT | {"window": "sentences"},
    "mlm, ALBERT": BERT | {"targets": "spans", "pair_loss": "order"},
    "mlm, words": BERT | {"targets": "words", "num_predict": None},
    "mlm with memory": {"objective": "mlm"},
    "rtd": BERT | {"objective": "rtd"},
    "clm": TRANSFORMER_XL,
    "clm without memory": TRANSFORMER_XL | {"reuse_len": 0},
    "plm, packed": {"window": "sentences", "pack": True},
    "prefix": TRANSFORMER_XL | {"objective": "prefix", "reuse_len": 0},
    "plm in groups": {"group_sizes": (1, 3, 5)},
    "mdlm": TRANSFORMER_XL | {"objective": "mdlm", "reuse_len": 0, "masking": "static"},
}
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())


def formed(source, objective="plm", corpus=None, **changes):
    """Return the source with other settings, or with another corpus."""
    data = dataclasses.replace(source.data, **changes)
    return dataclasses.replace(
        source, filling=objective_named(objective).filling, corpus=corpus or source.corpus, data=data
    )


def text_of(batch, objective):
    """Return the tokens of the windows before masking, int [B, L]."""
    ids, real = batch["input_ids"].copy(), batch["target_weights"] > 0
    if objective not in ("clm", "prefix"):  # whose targets are the next tokens
        ids[np.nonzero(real)[0], batch["target_positions"][real]] = batch["target_ids"][real]
    return ids


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


@every_form
def test_the_iterator_yields_batch_t_at_t_from_wherever_it_starts(source, form):
    source = formed(source, **form)
    for start in (0, 3):
        batches = list(source.iterate(start, 6))
        assert len(batches) == 6 - start
        for step, batch in enumerate(batches, start=start):
            assert_same(batch, source.batch_at(step))


@every_form
def test_the_global_batch_is_the_same_for_every_number_of_hosts(source, form):
    corpus = source_blocks(source.corpus, 30, 10, 40)
    mixed = formed(source, corpus=corpus, batch_size=24, weights=(0.5, 0.2, 0.3), **form)
    whole = mixed.batch_at(5)
    for hosts in (1, 2, 3, 8):
        share = 24 // hosts
        parts = [mixed.batch_at(5, range(h * share, (h + 1) * share)) for h in range(hosts)]
        assert_same({name: np.concatenate([p[name] for p in parts]) for name in parts[0]}, whole)


def test_any_rows_of_a_batch_are_those_of_the_whole(source):
    """The rows need not be consecutive: those of a host on a torus are not."""
    rows = np.array([0, 1, 4, 5, 11])
    whole = source.batch_at(5)
    assert_same(source.batch_at(5, rows), {name: array[rows] for name, array in whole.items()})
    (batch,) = source.iterate(5, 6, rows)
    assert_same(batch, source.batch_at(5, rows))


def test_batches_go_straight_onto_a_mesh(source):
    data = dataclasses.replace(DATA, batch_size=24)
    of_24 = dataclasses.replace(source, data=data)
    mesh = sharding.make_mesh(Config(data=data))
    put = sharding.batch_to_mesh(mesh, 24)
    for step, batch in enumerate(map(put, of_24.iterate(0, 3, sharding.process_rows(mesh, 24)))):
        assert all(len(array.sharding.device_set) == 8 for array in batch.values())
        assert batch["input_ids"].addressable_shards[0].data.shape == (3, 64)
        assert_same({name: np.asarray(array) for name, array in batch.items()}, of_24.batch_at(step))


READS_ON = {
    "plm": ({}, 32, 32),
    "plm, longer new part": ({"seq_len": 80}, 32, 32),
    "plm, shorter new part": ({"seq_len": 48}, 32, 32),
    "mlm with memory": ({"objective": "mlm"}, 32, 32),
    "mlm, sentences": (BERT | {"window": "sentences", "seq_len": 34}, 32, 32),
    "mlm, sentences with memory": ({"objective": "mlm", "window": "sentences"}, 32, 62),
    "clm": (TRANSFORMER_XL | {"seq_len": 32, "reuse_len": 32}, 32, 32),
    "clm without memory": (TRANSFORMER_XL | {"seq_len": 32, "reuse_len": 0}, 32, 32),
}


@pytest.mark.parametrize(("form", "advance", "text"), READS_ON.values(), ids=READS_ON.keys())
def test_within_a_visit_each_row_reads_on_where_it_stood(source, form, advance, text):
    source = formed(source, **form)
    visit = source.read_visit(2, range(DATA.batch_size))
    assert source.steps_per_block >= 3
    for index in range(source.steps_per_block):
        batch = source.batch_at(2 * source.steps_per_block + index)
        begin = index * advance
        np.testing.assert_array_equal(
            text_of(batch, source.filling.objective)[:, :text], visit["tokens"][:, begin : begin + text]
        )
        assert (batch["mem_filled"] == min(MEM_LEN, index * source.data.reuse_len)).all()


@pytest.mark.parametrize("form", [BERT | {"pair_loss": "next"}, {}, BERT | {"targets": "words"}], ids=str)
def test_a_static_text_is_masked_alike_at_every_visit_and_a_dynamic_one_never(source, form):
    for masking in ("static", "dynamic"):
        drawn = formed(source, corpus=source_blocks(source.corpus, 13), **form | {"masking": masking})
        rows = range(DATA.batch_size)
        seen = {}  # block and window of it -> what was made of it
        repeated = 0
        for visit in range(6):
            blocks = drawn.assign(visit, rows)[0]
            for index in range(drawn.steps_per_block):
                batch = drawn.batch_at(visit * drawn.steps_per_block + index)
                for row, block in enumerate(blocks.tolist()):
                    window = {name: array[row].tolist() for name, array in batch.items()}
                    before = seen.setdefault((block, index), window)
                    if before is not window:
                        repeated += 1
                        assert (before == window) == (masking == "static")
        assert repeated > 50
        different = {str(window["target_positions"]) for window in seen.values()}
        assert len(different) > 0.9 * len(seen)  # targets still differ between texts


@pytest.mark.parametrize("weights", [(), (0.7, 0.3)])
def test_the_epochs_of_a_text_read_its_static_masks_in_turn(source, weights):
    form = BERT | {"pair_loss": "next", "masking": "static", "static_masks": 3, "weights": weights}
    corpus = source_blocks(source.corpus, 8, 5) if weights else source_blocks(source.corpus, 13)
    drawn = formed(source, corpus=corpus, **form)
    once = formed(source, corpus=corpus, **form | {"static_masks": 1})
    reads = {}  # block and window of it -> what was made of it, each time
    for visit in range(12):
        blocks = drawn.assign(visit, range(DATA.batch_size))[0]
        for index in range(drawn.steps_per_block):
            step = visit * drawn.steps_per_block + index
            batch, first = drawn.batch_at(step), once.batch_at(step)
            some = drawn.batch_at(step, [1, 5])
            for row, block in enumerate(blocks.tolist()):
                window = {name: array[row].tolist() for name, array in batch.items()}
                made = reads.setdefault((block, index), [])
                if row in (1, 5):
                    assert {name: array[[1, 5].index(row)].tolist() for name, array in some.items()} == window
                assert (window == {name: array[row].tolist() for name, array in first.items()}) == (len(made) % 3 == 0)
                made.append(window)
    assert min(map(len, reads.values())) > 3
    for made in reads.values():
        for number, window in enumerate(made):
            assert [window == other for other in made] == [(number - i) % 3 == 0 for i in range(len(made))]


def test_a_reversed_row_reads_its_block_and_its_partner_backwards(source):
    visit = source.read_visit(0, range(DATA.batch_size))
    *blocks, is_reversed = source.assign(0, range(DATA.batch_size))
    assert 0 < is_reversed.sum() < DATA.batch_size
    for prefix, read in zip(("", "partner_"), blocks, strict=True):
        tokens, starts = source.corpus.read("train", read)
        for row in range(DATA.batch_size):
            text, cuts = tokens[row], np.flatnonzero(starts[row, 1:]) + 1
            if is_reversed[row]:  # a cut is between the same two tokens in both directions
                text, cuts = text[::-1], np.sort(len(text) - cuts)
            np.testing.assert_array_equal(visit[f"{prefix}tokens"][row], text)
            np.testing.assert_array_equal(np.flatnonzero(visit[f"{prefix}cuts"][row, 1:]) + 1, cuts)


def test_half_of_the_visits_are_reversed_and_none_where_only_one_direction_is_asked_for(source):
    flags = np.concatenate([source.assign(v, range(DATA.batch_size))[2] for v in range(200)])
    assert 0.45 < flags.mean() < 0.55
    forwards = dataclasses.replace(source, data=dataclasses.replace(DATA, bidirectional=False))
    assert not any(forwards.assign(v, range(DATA.batch_size))[2].any() for v in range(20))


def test_training_on_fewer_blocks_than_rows_is_refused(source):
    few = source_blocks(source.corpus, 5, 6)
    with pytest.raises(InputError, match="11 training blocks of 158 tokens are fewer than the 12 rows of a batch: lo"):
        dataclasses.replace(source, corpus=few)


def test_rows_read_the_sources_in_the_shares_of_the_corpus_or_of_the_settings(source):
    corpus = source_blocks(source.corpus, 30, 10, 40, weights=(0.25, 0.25, 0.5))
    data = dataclasses.replace(DATA, weights=(0.5, 0.5 / 3, 1 / 3))
    for settings, rows in ((DATA, [3, 3, 6]), (data, [6, 2, 4])):
        mixed = dataclasses.replace(source, corpus=corpus, data=settings)
        read = np.concatenate([mixed.assign(v, range(12))[0] for v in range(100)])
        np.testing.assert_allclose(np.histogram(read, [0, 30, 40, 80])[0], 100 * np.array(rows), atol=3)


def test_shares_for_another_number_of_sources_are_refused_by_their_names(source):
    data = dataclasses.replace(DATA, weights=(0.7, 0.2, 0.1))
    with pytest.raises(InputError, match=r"`data.weights` 0.7, 0.2, 0.1: 3 for the 2 sources .*: source0, source1"):
        dataclasses.replace(source, data=data, corpus=source_blocks(source.corpus, 30, 10))


def test_a_source_that_is_shorter_than_a_block_can_have_no_share_in_training(source):
    corpus = source_blocks(source.corpus, 30, 0, weights=(0.5, 0.5))
    with pytest.raises(InputError, match="the source source1 has less training text than one block of 158 tokens"):
        dataclasses.replace(source, corpus=corpus)
    held_out = dataclasses.replace(source, corpus=corpus, split="validation")
    assert (held_out.assign(0, range(12))[0] < 30).all()


def source_blocks(corpus, *blocks, weights=()):
    """Return the corpus as if its first blocks, in both splits, came from sources with these numbers of blocks."""
    few = Corpus(corpus.folder)
    splits = {n: dataclasses.replace(s, source_blocks=blocks) for n, s in corpus.manifest.splits.items()}
    names = tuple(f"source{i}" for i in range(len(blocks)))
    few.manifest = dataclasses.replace(few.manifest, splits=splits, sources=names, weights=weights)
    return few
