"""The lengths of a window's parts follow data.seq_len where nobody gives them; and the preset of long windows."""

import json
from dataclasses import replace

import numpy as np
import pytest

import xlnet_jax
from data_pipelines.windows import resized
from tests.xlnet_jax.tiny_text import batches_of
from xlnet_jax.errors import InputError
from xlnet_jax.objectives.presets import long, parse_config, with_objective
from xlnet_jax.objectives.registry import validate
from xlnet_jax.settings.fields import to_dict


def parsed(*words):
    return parse_config(words, "train", "")


@pytest.mark.parametrize(("objective", "preset"), [("mlm", "demo"), ("mlm", "bert-base"), ("rtd", "electra-small")])
def test_fifteen_percent_are_masked_in_windows_of_any_length(objective, preset):
    for seq_len in (64, 200, 384):
        data = parsed("--preset", preset, "--objective", objective, "--data.seq-len", str(seq_len)).data
        assert data.num_predict == round(0.15 * seq_len)


def test_the_parts_of_the_papers_windows_keep_their_proportions():
    data = parsed("--preset", "base", "--data.seq-len", "1024").data
    assert (data.reuse_len, data.perm_size, data.num_predict) == (512, 512, 170)
    assert parsed("--objective", "clm", "--data.seq-len", "64").data.reuse_len == 64
    named = parsed("--preset", "base", "--data.seq-len", "1024", "--data.num-predict", "85", "--data.reuse-len", "256")
    assert (named.data.reuse_len, named.data.perm_size, named.data.num_predict) == (256, 256, 85)


def test_chunks_that_are_smaller_than_the_parts_stay():
    assert resized(long().data, 131_072).perm_size == 1024
    assert resized(long().data, 512).perm_size == 32


def test_a_file_of_settings_counts_where_it_was_written_by_hand(tmp_path):
    chosen, of_run = tmp_path / "chosen.json", tmp_path / "config.json"
    chosen.write_text('{"data.seq_len": 64}')
    assert parsed("--config", str(chosen), "--objective", "mlm").data.num_predict == 10
    run = replace(parsed("--objective", "mlm"), data=replace(parsed("--objective", "mlm").data, seq_len=64))
    of_run.write_text(json.dumps(to_dict(run)))
    assert parsed("--config", str(of_run)).data.num_predict == run.data.num_predict == 19


def test_keywords_of_python_mean_what_the_flags_of_train_mean():
    for words, keywords in (
        (["--data.seq-len", "256"], {"data": {"seq_len": 256}}),
        (["--data.seq-len", "256", "--data.reuse-len", "64"], {"data": {"seq_len": 256, "reuse_len": 64}}),
        (["--objective", "mlm", "--data.seq-len", "64"], {"objective": "mlm", "data": {"seq_len": 64}}),
        (
            ["--objective", "mlm", "--model.positions", "learned", "--data.no-bidirectional"],
            {"objective": "mlm", "model": {"positions": "learned"}, "data": {"bidirectional": False}},
        ),
    ):
        ours = xlnet_jax.preset("demo", **keywords)
        assert ours == parsed("--preset", "demo", *words)
        assert ours.given == parsed(*words).given
    with pytest.raises(InputError, match=r"`data\.mask_share` has no effect: `objective` plm replaces no tokens"):
        xlnet_jax.preset("demo", data={"mask_share": 0.5})


# ---- long windows ----------------------------------------------------------------------------------------------------

SMALLER = replace(long(), data=replace(long().data, batch_size=2))


def test_its_batches_are_made():
    source = batches_of(SMALLER)
    (batch,) = source.iterate(3, 4)
    for name, values in source.batch_at(3).items():
        np.testing.assert_array_equal(batch[name], values)
    assert batch["input_ids"].shape == (2, 16_384)
    assert batch["target_positions"].shape == (2, 2_720)
    assert batch["target_weights"].mean() > 0.99
    assert (np.unique(batch["document_start"]) >= 0).all()


@pytest.mark.parametrize("objective", ["plm", "mlm", "clm", "prefix"])
def test_targets_stand_in_ascending_order(objective):
    """So tiles of neighboring query rows read neighboring keys."""
    config = with_objective(SMALLER, objective)
    validate(config)
    batch = batches_of(config).batch_at(0)
    steps = np.diff(batch["target_positions"], axis=1)
    assert (steps[batch["target_weights"][:, 1:] > 0] > 0).all()
    assert (steps >= 0).all()
