"""Records in windows: each whole and alone, packed tightly, cut or continued."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_pipelines.corpus import Start
from data_pipelines.prepare.encoding import EncodedSource
from data_pipelines.prepare.packing import RecordWindows, count_blocks, lay_out
from data_pipelines.sources import Source
from data_pipelines.tokenizer import BOS, EOD, PAD
from xlnet_jax.errors import InputError

FIRST = 9


def encoded(records, part_size=10**9):
    """Return (source, tokens of each part) of records, lists of symbols, in parts of at most `part_size` records."""
    pieces, tokens = [], []
    for part, of_part in enumerate([records[i : i + part_size] for i in range(0, len(records), part_size)]):
        ends = np.cumsum([len(record) + 1 for record in of_part])
        begins = ends - [len(record) + 1 for record in of_part]
        pieces.append(np.column_stack([np.full(len(ends), part), begins, ends]))
        tokens.append(np.array([token for record in of_part for token in (*record, EOD)], np.int32))
    pieces = np.concatenate(pieces)
    source = Source("records", "my.txt", ())
    return EncodedSource(source, "", (), pieces, np.arange(len(pieces)), np.zeros(len(pieces), np.uint64)), tokens


def laid_out(windows, records, **how):
    """Return tokens and starts, [blocks, block_len], of all parts."""
    source, tokens = encoded(records)
    stretches = windows.place(source, np.ones(len(records), bool), **how)
    placed, starts = lay_out(tokens[0], stretches, windows.block_len)
    shape = (count_blocks(stretches, windows.block_len)[0, 1], windows.block_len)
    return placed.reshape(shape), starts.reshape(shape)


def documents(tokens, starts):
    """Return what stands between the starts, without padding."""
    found = [list(d) for d in np.split(tokens.ravel(), np.flatnonzero(starts.ravel() == Start.DOCUMENT))]
    return sorted(d for d in found if d and d != [PAD])


sizes = st.lists(st.integers(1, 14), min_size=1, max_size=80)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no error
@given(sizes)
def test_each_record_stands_whole_in_one_window_between_its_ends(lengths):
    rng = np.random.default_rng(len(lengths))
    records = [(FIRST + rng.integers(0, 9, n)).tolist() for n in lengths]
    tokens, starts = laid_out(RecordWindows(16), records)
    assert documents(tokens, starts) == sorted([BOS, *record, EOD] for record in records)
    assert (tokens[:, -1] == PAD).all(), "one more token after the window"
    assert (starts[:, -1] == Start.DOCUMENT).all()
    for row, of_row in zip(tokens, starts, strict=True):
        assert (of_row[row == PAD] == Start.DOCUMENT).all(), "no padding stands in a record"


def test_short_records_fill_the_windows():
    rng = np.random.default_rng(0)
    records = [[FIRST] * n for n in rng.integers(8, 22, 5_000)]
    tokens, _ = laid_out(RecordWindows(128), records)
    assert (tokens[:, :-1] == PAD).mean() < 0.05


def test_a_longer_record_is_refused_with_its_number():
    source, _ = encoded([[FIRST] * 3, [FIRST] * 15, [FIRST] * 16])
    with pytest.raises(InputError, match=r"text my.txt: record 2 has 15 symbols, and a window of `data.seq_len` 16 has "
                       r"room for 14 .* \(2 of 3 records are longer\)"):  # fmt: skip
        RecordWindows(16).place(source, np.ones(3, bool))


def test_a_longer_record_is_cut_and_then_has_no_end():
    record = list(range(FIRST, FIRST + 40))
    tokens, starts = laid_out(RecordWindows(16, long="cut"), [[FIRST], record])
    assert documents(tokens, starts) == sorted([[BOS, FIRST, EOD], [BOS, *record[:15]]])


def test_a_longer_record_whose_last_symbol_counts_is_cut_at_its_beginning():
    record = list(range(FIRST, FIRST + 40))
    tokens, starts = laid_out(RecordWindows(16, long="cut"), [record], keeps_end=True)
    assert documents(tokens, starts) == [[BOS, *record[-14:], EOD]]
    tokens, starts = laid_out(RecordWindows(16, long="cut"), [record], keeps_end=True, dropped_end=1)
    assert documents(tokens, starts) == [[BOS, *record[-15:-1], EOD]]


@pytest.mark.parametrize("windows_per_block", [1, 2, 3])
@pytest.mark.parametrize("length", [15, 30, 31, 46, 47, 62, 63, 130])
def test_a_longer_record_continues_in_the_next_windows(windows_per_block, length):
    records = [[FIRST] * 4, [*range(FIRST, FIRST + length)], [FIRST + 1] * 9]
    windows = RecordWindows(16, windows_per_block, "continue")
    tokens, starts = laid_out(windows, records)
    text = tokens[:, :-1].ravel()
    at = int(np.flatnonzero((text[:-2] == BOS) & (text[1:-1] == FIRST) & (text[2:] == FIRST + 1))[0])
    whole = [BOS, *records[1], EOD]
    assert at % 16 == 0, "from the first symbol of a window on"
    assert text[at : at + len(whole)].tolist() == whole
    if len(whole) <= 16 * windows_per_block:
        assert at // (16 * windows_per_block) == (at + len(whole) - 1) // (16 * windows_per_block), "in one block"
    inside = np.zeros(len(text), bool)
    inside[at + 1 : at + len(whole)] = True
    assert not starts[:, :-1].ravel()[inside].any(), "memory of the windows before is of the same document"
    assert (tokens[:, -1] == PAD).all()


def test_the_last_symbols_can_be_left_out():
    tokens, starts = laid_out(RecordWindows(16), [[10, 11, 12], [13], [14, 15]], dropped_end=1)
    assert documents(tokens, starts) == [[BOS, 10, 11, EOD], [BOS, 14, EOD]]


def test_parts_are_laid_out_alone():
    records = [[FIRST] * n for n in (3, 5, 2, 7, 1)]
    source, tokens = encoded(records, part_size=2)
    windows = RecordWindows(16)
    stretches = windows.place(source, np.ones(5, bool))
    blocks = count_blocks(stretches, windows.block_len)
    assert blocks[:, 0].tolist() == [0, 1, 2]
    for part, count in blocks.tolist():
        placed, _ = lay_out(tokens[part], stretches[stretches["part"] == part], windows.block_len)
        assert len(placed) == count * windows.block_len
