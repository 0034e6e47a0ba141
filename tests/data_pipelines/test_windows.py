"""Windows have the parts, the segments and the cuts of the original."""

import dataclasses

import numpy as np
import pytest

from data_pipelines.windows import DRAWS, block_len, cut_text, cut_windows, steps_per_block, text_len
from tests.data_pipelines.test_spans import FALSE_ALARM, same_distribution
from xlnet_jax.settings.config import DataConfig

SEP, CLS, EOD = 4, 3, 7
DATA = DataConfig(batch_size=64, seq_len=32, reuse_len=8, perm_size=8, num_predict=4, windows_per_block=5)


def random_blocks(rows, size, seed=0, sentence=0.1):
    rng = np.random.default_rng(seed)
    return rng.integers(9, 1000, (rows, size)), rng.random((rows, size)) < sentence


def cut(begin=8, rows=64, seed=0, sentence=0.1, data=DATA):
    size = block_len(DATA)
    tokens, cuts = random_blocks(rows, size, seed, sentence)
    partner, partner_cuts = random_blocks(rows, size, seed + 1, sentence)
    uniform = np.random.default_rng(seed + 2).random((rows, DRAWS))
    visit = {"tokens": tokens, "cuts": cuts, "partner_tokens": partner, "partner_cuts": partner_cuts}
    return tokens, cuts, partner, cut_windows(visit, begin, uniform, data)


def test_a_window_is_reused_part_a_sep_b_sep_cls():
    tokens, _, partner, window = cut()
    for b in range(64):
        ids, segments = window["input_ids"][b], window["segment_ids"][b]
        np.testing.assert_array_equal(ids[:8], tokens[b, 8:16])
        assert ids[-2:].tolist() == [SEP, CLS]
        assert segments[-1] == 2
        first_sep = np.flatnonzero(ids == SEP)[0]
        a, b_part = ids[8:first_sep], ids[first_sep + 1 : -2]
        assert (segments[: first_sep + 1] == 0).all()
        assert (segments[first_sep + 1 : -1] == 1).all()
        assert len(a) + len(b_part) == text_len(DATA)
        np.testing.assert_array_equal(a, tokens[b, 16 : 16 + len(a)])
        source = tokens[b] if window["is_next"][b] else partner[b]
        assert any((source[i : i + len(b_part)] == b_part).all() for i in range(len(source)))


@pytest.mark.parametrize("sentence", [0.3, 0.0], ids=["cut between sentences", "no sentence ends"])
def test_in_order_or_not_a_and_b_are_one_stretch_of_text_cut_once(sentence):
    data = dataclasses.replace(DATA, pair_loss="order")
    tokens, cuts, _, window = cut(rows=2000, sentence=sentence, data=data)
    total = text_len(data)
    lengths = np.zeros(total + 1, int)
    for b in range(2000):
        ids = window["input_ids"][b]
        first_sep = np.flatnonzero(ids == SEP)[0]
        a, b_part = ids[8:first_sep], ids[first_sep + 1 : -2]
        first, second = (a, b_part) if window["is_next"][b] else (b_part, a)
        np.testing.assert_array_equal(np.concatenate([first, second]), tokens[b, 16 : 16 + total])
        assert cuts[b, 16 + len(first)] or not cuts[b, 17 : 16 + total].any()
        assert (window["segment_ids"][b, 8 : first_sep + 1] == 0).all()
        lengths[len(a)] += 1
    assert lengths[0] == lengths[total] == 0
    assert abs(window["is_next"].mean() - 0.5) < 5 * 0.5 / np.sqrt(2000)


def test_sentences_are_text_without_a_gap_then_sep_and_cls_also_over_the_ends_of_documents():
    for reuse_len in (0, 8):
        data = dataclasses.replace(DATA, window="sentences", reuse_len=reuse_len)
        tokens, _ = random_blocks(64, block_len(data))
        tokens[:, 20] = EOD
        assert steps_per_block(block_len(data), data) == data.windows_per_block
        window = cut_text(tokens, 8, data)
        np.testing.assert_array_equal(window["input_ids"][:, :30], tokens[:, 8:38])
        assert (window["input_ids"][:, 30:] == [SEP, CLS]).all()
        assert (window["segment_ids"] == np.append(np.zeros(31), 2)).all()


def test_a_block_is_used_to_its_last_token_and_without_a_cut_point_in_it_too():
    size = block_len(DATA)
    assert [steps_per_block(n, DATA) for n in (size, size - 1)] == [DATA.windows_per_block, DATA.windows_per_block - 1]
    _, _, _, window = cut(begin=(DATA.windows_per_block - 1) * DATA.reuse_len, sentence=0.0)
    assert not window["is_next"].any()
    assert ((window["input_ids"] == SEP).sum(1) == 2).all()


@pytest.mark.parametrize("total", [29, 253])
def test_cuts_are_distributed_as_the_originals(reference, total):
    stats = np.load(reference / "data" / "split_a_and_b.npz")
    sentence = stats["sent_ids"]
    cuts = np.append(False, sentence[1:] != sentence[:-1])
    data = DataConfig(seq_len=total + 3 + 8, reuse_len=8, perm_size=1)
    # Slices of the stream stand for blocks: far longer than a window, so that their ends hardly matter.
    rows, size, rng = 20_000, 3000, np.random.default_rng(0)
    begins = rng.integers(0, len(cuts) - size, (2, rows))
    own, partner = (cuts[b[:, None] + np.arange(size)] for b in begins)
    none = np.zeros((rows, size), np.int64)
    visit = {"tokens": none, "cuts": own, "partner_tokens": none, "partner_cuts": partner}
    window = cut_windows(visit, 0, rng.random((rows, DRAWS)), data)
    a_len = (window["input_ids"][:, 8:] == SEP).argmax(1)
    for label in (0, 1):
        ours = np.bincount(a_len[window["is_next"] == label], minlength=total + 1)
        theirs = stats[f"tot{total}/stats/a_len_hist_label{label}"]
        assert same_distribution(ours, theirs) > FALSE_ALARM
    calls = [stats[f"tot{total}/stats/a_len_hist_label{label}"].sum() for label in (0, 1)]
    assert same_distribution(np.bincount(window["is_next"], minlength=2), calls) > FALSE_ALARM
