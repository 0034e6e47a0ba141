"""The benchmark of sessions keeps the last item for the test, and calls the collator of transformers itself."""

import gzip
import random
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks import collator_plm, sessions, studies
from data_pipelines.objectives import Windows
from data_pipelines.tokenizer import BOS, EOD, MASK, PAD
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.settings.config import DataConfig


def test_the_last_item_of_each_user_is_only_in_the_test(tmp_path):
    rows = ["1 30", "1 31", "1 32", "1 33", "2 30", "2 31", "3 32", "3 30", "3 34"]
    file = tmp_path / "games.txt.gz"
    file.write_bytes(gzip.compress("\n".join(rows).encode()))
    train, test = sessions.write_texts(file, tmp_path / "texts")
    assert train.read_text() == "30 31 32\n32 30\n"
    assert test.read_text() == "30 31 32 33\n32 30 34\n"


@pytest.mark.parametrize("contender", sessions.TARGETS)
def test_settings_of_contenders(contender, tmp_path):
    _, *words = sessions.job(contender, 1, 20, 0.3, Path("train.txt"), Path("test.txt")).command(tmp_path)
    config = COMMANDS["train"].parse(words)
    assert (config.steps, config.seed, config.fields, config.hold_out) == (20, 1, ("items:item",), "last")
    assert (config.model.dropout, config.model.attention_dropout) == (0.3, 0.3)
    assert config.data.targets == ("all" if contender in ("plm", "collator") else "spans")


def test_records_of_sessions_have_the_commands_of_their_runs(tmp_path):
    for name, record in studies.read(studies.MEASURED / sessions.NAME).items():
        contender, steps, dropout, seed = re.fullmatch(r"(.*)-(\d+)-([\d.]+)-seed-(\d+)", name).groups()
        given = int(seed), int(steps), float(dropout), Path("TRAIN"), Path("test.txt")
        command = sessions.job(contender, *given).command(tmp_path)
        assert studies.shown(command, tmp_path) == record["command"]


def symbols_of(count, length):
    rng, symbols = np.random.default_rng(0), np.full((count, length), PAD)
    for row, size in zip(symbols, rng.integers(1, length + 1, count), strict=True):
        row[:size] = rng.integers(9, 90, size)
    return symbols


def test_ranks_let_rows_see_what_the_mask_of_the_collator_allows():
    transformers = pytest.importorskip("transformers")
    symbols = symbols_of(20, 30)
    ranks = collator_plm.collate(symbols, 0.25)
    random.seed(0.25)
    np.random.seed(2**30)
    collator = transformers.DataCollatorForPermutationLanguageModeling(collator_plm.TOKENIZER, return_tensors="np")
    _, perm_mask, _, labels = collator.numpy_mask_tokens(symbols.copy())
    is_target = labels != -100
    np.testing.assert_array_equal(ranks > 0, is_target)
    hidden = is_target[:, None, :] & (ranks[:, :, None] <= ranks[:, None, :])
    is_symbol = np.broadcast_to((symbols != PAD)[:, :, None], hidden.shape)
    np.testing.assert_array_equal(hidden[is_symbol], perm_mask[is_symbol] == 1)
    assert 0.1 < is_target[symbols != PAD].mean() < 0.25


def test_targets_of_the_collator_are_hidden_in_windows_of_records():
    pytest.importorskip("transformers")
    rng = np.random.default_rng(1)
    records = [[BOS, *rng.integers(9, 90, 14).tolist(), EOD] for _ in range(2)]
    ids = np.array([[*records[0], *records[1]]] * 4, np.int32)
    start = np.array([[0] * 16 + [16] * 16] * 4, np.int32)
    arrays = {"input_ids": ids, "document_start": start, "segment_ids": np.zeros_like(ids)}
    windows = Windows(
        arrays, np.ones(90, bool), lambda purpose, width: np.full((4, width), 0.25), DataConfig(num_predict=None), False
    )
    batch = collator_plm.fill(windows)
    is_target = batch["perm_rank"] > 0
    assert is_target.any()
    assert not is_target[ids < 9].any()
    np.testing.assert_array_equal(batch["input_ids"] == MASK, is_target)
    np.testing.assert_array_equal(batch["input_ids"][~is_target], ids[~is_target])
    weights = batch["target_weights"] > 0
    assert weights.sum() == is_target.sum()
    np.testing.assert_array_equal(batch["target_ids"][weights], ids[is_target])


def test_the_report_has_published_numbers_beside_ours(capsys):
    rate = {"value": 0.5, "low": 0.4, "high": 0.6}
    table = {f"{name}@{top}": dict.fromkeys(("model", "item-kNN", "popularity"), rate)
             for name in ("HR", "NDCG", "MRR") for top in (5, 10, 20)}  # fmt: skip
    record = dict.fromkeys(("all items", "100 sampled items"), table)
    sessions.report({"plm-20-0.2-seed-0": record, "plm-20-0.2-seed-1": record, "clm-20-0.2-seed-0": record})
    printed = capsys.readouterr().out
    assert "| plm, 20 steps, dropout 0.2, seeds: 2 | 0.5000 ± 0.0000 | 0.5000 ± 0.0000 |" in printed
    assert "| item-kNN | 0.5000 (0.4000 to 0.6000) |" in printed
    assert "| SASRec, published | 0.741 | 0.536 |" in printed
