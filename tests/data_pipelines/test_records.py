"""Batches have the structure of the original's records: one set of checks, for its records and for our batches of the
same text with the same settings."""

import json
from dataclasses import dataclass

import numpy as np
import pytest

from data_pipelines.batches import BatchSource
from data_pipelines.objectives import plm
from data_pipelines.tokenizer import CLS, SEP, Tokenizer
from tests.data_pipelines.conftest import prepared
from tests.data_pipelines.test_spans import FALSE_ALARM, same_distribution
from xlnet_jax.settings.config import DataConfig

RUNS = ["records_bi", "records_uni", "records_small_bi_2core", "records_small_noeod_ids"]
# Files, and windows in a block: as long as the text allows, since the original cuts B from far longer rows of text.
CORPORA = {"corpus_0*.txt": (["corpus_00.txt", "corpus_01.txt"], 64), "corpus_small.txt": (["corpus_small.txt"], 8)}
WINDOWS = 5_000


@dataclass(frozen=True)
class Reading:
    """Consecutive windows of B rows: arrays [steps, B, L]."""

    ids: np.ndarray
    segments: np.ndarray
    is_target: np.ndarray  # bool; functional tokens are not targets

    def parts(self, t, b, reuse_len):
        """Return (reused, a, b) of one window."""
        ids = self.ids[t, b]
        first_sep = reuse_len + int((ids[reuse_len:] == SEP).argmax())
        return ids[:reuse_len], ids[reuse_len:first_sep], ids[first_sep + 1 : -2]


def flags_of(reference, run):
    return json.loads((reference / "data" / f"{run}.json").read_text())["flags"]


def settings_of(flags):
    return DataConfig(
        batch_size=flags["bsz_per_host"], seq_len=flags["seq_len"], reuse_len=flags["reuse_len"],
        perm_size=flags["reuse_len"], num_predict=flags["num_predict"], mask_alpha=flags["mask_alpha"],
        mask_beta=flags["mask_beta"], bidirectional=flags["bi_data"],
        windows_per_block=CORPORA[flags["input_glob"]][1],
    )  # fmt: skip


def their_reading(reference, run, data):
    """([the reading], which rows read backwards, their labels [T, B], the text as bytes)."""
    records = np.load(reference / "data" / f"{run}.npz")
    shape = (-1, data.batch_size, data.seq_len)
    ids = records["records/input"].reshape(shape)
    drawn = records["records/is_masked"].reshape(shape).astype(bool)
    new = drawn[..., data.reuse_len :].sum(-1)
    assert (new == data.num_predict // 2).all()
    reading = Reading(ids, records["records/seg_id"].reshape(shape), drawn & ~np.isin(ids, (SEP, CLS)))
    # Half of the rows of each core.
    cores = flags_of(reference, run)["num_core_per_host"]
    half = np.repeat([False, True], data.batch_size // cores // 2)
    backwards = np.tile(half, cores) & data.bidirectional
    text = records["stream/input_data"].astype(np.int32).tobytes()
    return [reading], [backwards], records["records/label"].reshape(shape[:2]), text


def our_readings(reference, run, data, folder):
    """(a reading for each visit, which rows read backwards, the text as bytes)."""
    flags = flags_of(reference, run)
    texts = [reference / "data" / name for name in CORPORA[flags["input_glob"]][0]]
    tokenizer = Tokenizer.load(reference / "data" / "spiece.model")
    corpus = prepared(texts, tokenizer, data, folder / "blocks")
    source = BatchSource(corpus, "train", tokenizer.is_word_start, data, 0, 1, plm.FILLING)
    readings, backwards = [], []
    steps = source.steps_per_block
    rows = range(data.batch_size)
    for number in range(WINDOWS // (steps * data.batch_size)):
        visit = source.read_visit(number, rows)
        batches = [source.batch(visit, number * steps + index, rows) for index in range(steps)]
        stack = {name: np.stack([b[name] for b in batches]) for name in batches[0]}
        is_target = np.zeros(stack["input_ids"].shape, bool)
        t, b, p = np.nonzero(stack["target_weights"])
        is_target[t, b, stack["target_positions"][t, b, p]] = True
        readings.append(Reading(stack["input_ids"], stack["segment_ids"], is_target))
        assert (stack["is_reversed"] == stack["is_reversed"][0]).all()
        backwards.append(stack["is_reversed"][0])
    blocks, _ = corpus.read("train", np.arange(corpus.num_blocks("train")))
    return readings, backwards, blocks.tobytes()


@pytest.fixture(scope="module", params=RUNS)
def both(request, reference, tmp_path_factory):
    data = settings_of(flags_of(reference, request.param))
    theirs = their_reading(reference, request.param, data)
    return data, theirs, our_readings(reference, request.param, data, tmp_path_factory.mktemp(request.param))


def check_special_tokens_and_segments(reading, data):
    ids, reuse = reading.ids, data.reuse_len
    assert (ids[..., -2] == SEP).all()
    assert (ids[..., -1] == CLS).all()
    assert not np.isin(ids[..., :reuse], (SEP, CLS)).any()
    assert ((ids == SEP).sum(-1) == 2).all()
    assert ((ids == CLS).sum(-1) == 1).all()
    first_sep = (ids == SEP).argmax(-1)[..., None]
    assert (first_sep > reuse).all()  # A is never empty
    column = np.arange(data.seq_len)
    expected = np.where(column <= first_sep, 0, np.where(column < data.seq_len - 1, 1, 2))
    np.testing.assert_array_equal(reading.segments, expected)


def check_number_of_targets(reading, data):
    reused = reading.is_target[..., : data.reuse_len].sum(-1)
    new = reading.is_target[..., data.reuse_len :].sum(-1)
    assert (reused == data.num_predict - data.num_predict // 2).all()
    assert (new <= data.num_predict // 2).all()
    assert (new >= data.num_predict // 2 - 3).all()  # <sep> and <cls> may have been drawn


def check_rows_advance_by_reuse_len(reading, data):
    for t in range(len(reading.ids) - 1):
        for b in range(reading.ids.shape[1]):
            _, a, _ = reading.parts(t, b, data.reuse_len)
            following, _, _ = reading.parts(t + 1, b, data.reuse_len)
            np.testing.assert_array_equal(a[: data.reuse_len], following[: len(a)])


def check_directions(reading, backwards, text, data):
    """Return whether each row's reused parts occur in the text, as they are or mirrored."""
    for b, is_reversed in enumerate(backwards):
        for reused in reading.ids[:, b, : data.reuse_len].astype(np.int32):
            assert (reused[::-1] if is_reversed else reused).tobytes() in text


def continues(reading, data):
    """bool [T - 2, B]: B is text that follows A in the same row."""
    steps, rows, _ = reading.ids.shape
    found = np.zeros((steps - 2, rows), bool)
    for t in range(steps - 2):
        for b in range(rows):
            following = np.concatenate([reading.ids[t + i, b, : data.reuse_len] for i in (1, 2)])
            found[t, b] = reading.parts(t, b, data.reuse_len)[2].tobytes() in following.tobytes()
    return found


def histograms(readings, data):
    """Lengths of A, and real targets in the new part, over all windows."""
    ids, is_target = (np.concatenate([getattr(r, n) for r in readings]) for n in ("ids", "is_target"))
    a_len = (ids[..., data.reuse_len :] == SEP).argmax(-1).ravel()
    new = is_target[..., data.reuse_len :].sum(-1).ravel()
    return np.bincount(a_len, minlength=data.seq_len), np.bincount(new, minlength=data.seq_len)


def test_windows_have_the_structure_of_the_originals_records(both):
    data, (their_readings, their_backwards, _, their_text), (our_readings, our_backwards, our_text) = both
    for readings, backwards, text in (
        (their_readings, their_backwards, their_text),
        (our_readings, our_backwards, our_text),
    ):
        for reading, is_reversed in zip(readings, backwards, strict=True):
            check_special_tokens_and_segments(reading, data)
            check_number_of_targets(reading, data)
            check_rows_advance_by_reuse_len(reading, data)
            check_directions(reading, is_reversed, text, data)
    assert np.concatenate(our_backwards).any() == data.bidirectional


def test_a_label_says_whether_b_goes_on_where_a_ends(both):
    data, ((theirs,), _, labels, _), (ours, _, _) = both
    their_share = continues(theirs, data)
    labels = labels[: len(their_share)].astype(bool)
    assert their_share[labels].all()
    assert their_share[~labels].mean() < 0.05  # a random B can be what follows, by chance
    our_share = np.concatenate([continues(reading, data) for reading in ours])
    counts = [np.bincount(share.ravel(), minlength=2) for share in (our_share, their_share)]
    assert same_distribution(*counts) > FALSE_ALARM


def test_lengths_and_lost_targets_are_distributed_as_in_the_originals_records(both):
    data, (theirs, _, _, _), (ours, _, _) = both
    for our, their in zip(histograms(ours, data), histograms(theirs, data), strict=True):
        assert same_distribution(our, their) > FALSE_ALARM
