"""Batches of records by objective: what is a target, what each target sees, and the order of fields."""

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from data_pipelines.batches import BatchSource
from data_pipelines.corpus import Start
from data_pipelines.objectives import FieldTables, clm, mdlm, mlm, plm
from data_pipelines.tokenizer import BOS, EOD, MASK, PAD
from xlnet_jax.errors import InputError
from xlnet_jax.settings.config import DataConfig

V, CDR3, J = range(9, 14), range(14, 24), range(24, 30)
VOCAB_SIZE, LENGTH, BLOCKS = 30, 48, 40
DATA = DataConfig(
    batch_size=8, seq_len=LENGTH, reuse_len=0, perm_size=LENGTH, num_predict=None, windows_per_block=1, pack=True,
    window="records", bidirectional=False, targets="all",
)  # fmt: skip
SEGMENT_V = np.repeat([0, 0, 1, 2], [9, 5, 10, 6]).astype(np.int32)


class Records:
    """Blocks of records v cdr3 j, in the place of a corpus."""

    folder = "of the test"

    def __init__(self, holds_out_last=False):
        rng, self.block_len = np.random.default_rng(0), LENGTH + 1
        self.tokens = np.full((BLOCKS, self.block_len), PAD, np.int32)
        self.starts = np.full(self.tokens.shape, Start.DOCUMENT, np.uint8)
        for tokens, starts in zip(self.tokens, self.starts, strict=True):
            at = 0
            while at + (size := int(rng.integers(3, 12)) + 4) <= LENGTH:
                symbols = [rng.choice(V), *rng.choice(CDR3, size - 4), rng.choice(J)]
                tokens[at : at + size] = [BOS, *symbols, EOD]
                starts[at + 1 : at + size] = Start.NOTHING
                at += size
        split = SimpleNamespace(source_blocks=(BLOCKS,))
        self.manifest = SimpleNamespace(
            splits={"train": split, "validation": split},
            sources=("records",),
            weights=(),
            made_from={"records": {"seq_len": LENGTH, "holds_out_last": holds_out_last}},
        )

    def num_blocks(self, split):
        return BLOCKS

    def read(self, split, indices):
        return self.tokens[indices], self.starts[indices]


def batch_of(filling, data=DATA, orders=((0, 0, 0),), split="train", **corpus):
    fields = FieldTables(SEGMENT_V, np.array(orders, np.int32)[:, SEGMENT_V])
    is_word_start = np.ones(VOCAB_SIZE, bool)
    source = BatchSource(Records(**corpus), split, is_word_start, data, 0, 0, filling, record_fields=fields)
    return source.batch_at(0)


def is_symbol(ids):
    return ids >= 9


def test_every_symbol_of_plm_is_a_target_and_its_ends_are_context_that_all_see():
    batch = batch_of(plm.FILLING)
    symbols = is_symbol(batch["input_ids"])
    np.testing.assert_array_equal(batch["target_weights"] > 0, symbols)
    ends = np.isin(batch["input_ids"], (BOS, EOD, PAD))
    assert batch["perm_rank"][ends].max() < batch["perm_rank"][symbols].min()
    for rank, of_row in zip(batch["perm_rank"], symbols, strict=True):
        assert len(set(rank[of_row].tolist())) == of_row.sum(), "each target has a place of its own"
    np.testing.assert_array_equal(batch["segment_ids"], SEGMENT_V[batch["input_ids"]])


def test_the_order_of_fields_holds_in_each_record_and_is_drawn_for_each_row():
    batch = batch_of(plm.FILLING, orders=((1, 0, 2), (0, 2, 1)))
    found = set()
    for ids, rank, start in zip(batch["input_ids"], batch["perm_rank"], batch["document_start"], strict=True):
        for first in np.unique(start[is_symbol(ids)]):
            of_record = (start == first) & is_symbol(ids)
            by_field = [rank[of_record & (SEGMENT_V[ids] == field)] for field in range(3)]
            order = tuple(sorted(range(3), key=lambda field: by_field[field].min()))
            for before, after in itertools.pairwise(order):
                assert by_field[before].max() < by_field[after].min()
            found.add((order, int(start[0])))
    assert {order for order, _ in found} == {(1, 0, 2), (0, 2, 1)}


def test_spans_stay_in_a_field_of_a_record():
    data = dataclasses.replace(DATA, targets="spans", span_max=5, mask_alpha=1)
    longest = dict.fromkeys(range(3), 0)
    for seed_rows in range(3):
        batch = batch_of(plm.FILLING, dataclasses.replace(data, batch_size=8 + 8 * seed_rows))
        ids, is_target = batch["input_ids"], batch["target_weights"] > 0
        assert is_symbol(ids[is_target]).all()
        for row, targets in zip(ids, is_target, strict=True):
            runs = np.split(np.arange(LENGTH), np.flatnonzero(np.diff(targets.astype(int))) + 1)
            for run in runs:
                if targets[run[0]]:
                    fields = SEGMENT_V[row[run]]
                    longest[fields[0]] = max(longest[fields[0]], int((fields == fields[0]).sum()))
    assert longest[1] > 1
    assert longest[0] == longest[2] == 1


@pytest.mark.parametrize("split", ["train", "validation"])
def test_masked_diffusion_masks_symbols_alone_and_weighs_them_to_their_number(split):
    batch = batch_of(mdlm.FILLING, dataclasses.replace(DATA, bound_weights=True), split=split)
    is_target = batch["target_weights"] > 0
    assert (batch["input_ids"][is_target] == MASK).all()
    assert not (batch["input_ids"][~is_target] == MASK).any()
    assert is_symbol(batch["target_ids"][is_target]).all()
    symbols = np.where(is_target, batch["target_ids"], batch["input_ids"])
    np.testing.assert_allclose(batch["target_weights"].sum(1), is_symbol(symbols).sum(1), rtol=1e-5)


def test_masked_language_modeling_draws_symbols():
    data = dataclasses.replace(DATA, targets="pieces", num_predict=7)
    batch = batch_of(mlm.FILLING, data)
    assert is_symbol(batch["target_ids"][batch["target_weights"] > 0]).all()
    assert (batch["target_weights"].sum(1) == 7).all()


def test_clm_predicts_every_symbol_and_the_end_of_each_record():
    batch = batch_of(clm.FILLING)
    ids, weights = batch["input_ids"], batch["target_weights"] > 0
    predicted = is_symbol(ids) | (ids == EOD)
    np.testing.assert_array_equal(weights[:, :-1], predicted[:, 1:])
    np.testing.assert_array_equal(batch["target_ids"][:, :-1][weights[:, :-1]], ids[:, 1:][weights[:, :-1]])


@pytest.mark.parametrize("filling", [plm.FILLING, mdlm.FILLING, clm.FILLING], ids=["plm", "mdlm", "clm"])
def test_of_held_out_last_symbols_only_the_last_is_a_target_and_sees_all_others(filling):
    batch = batch_of(filling, split="validation", holds_out_last=True)
    is_target = batch["target_weights"] > 0
    ids = np.where(batch["input_ids"] == MASK, batch["target_ids"], batch["input_ids"])
    last = np.zeros(ids.shape, bool)
    last[:, :-1] = is_symbol(ids[:, :-1]) & (ids[:, 1:] == EOD)
    if filling is clm.FILLING:
        np.testing.assert_array_equal(is_target[:, :-1], last[:, 1:])
    elif filling is plm.FILLING:
        np.testing.assert_array_equal(is_target, last)
        assert batch["perm_rank"][is_target].min() > batch["perm_rank"][~is_target].max()
    else:
        assert last[is_target].all()
    train = batch_of(filling, holds_out_last=True)
    assert (train["target_weights"] > 0).sum() > is_target.sum()


def test_golden_batch_of_records():
    """The numbers of a batch do not change: a run that resumes must read the same."""
    batch = batch_of(plm.FILLING, orders=((1, 0, 2), (0, 0, 0)))
    assert batch["input_ids"].sum() == batch_of(plm.FILLING)["input_ids"].sum()
    digest = [int((batch["perm_rank"] * np.arange(1, LENGTH + 1)).sum()), int(batch["document_start"].sum())]
    assert digest == [179174, 7244]


@pytest.mark.parametrize("change", [{"seq_len": LENGTH // 2, "perm_size": LENGTH // 2}, {"window": "text"}])
def test_windows_that_would_cut_records_are_refused(change):
    with pytest.raises(InputError, match=f"it holds records in windows of {LENGTH} tokens, not what `data.window` "):
        batch_of(plm.FILLING, dataclasses.replace(DATA, **change))
