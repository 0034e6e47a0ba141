"""A run that is stopped in an evaluation, or saves by the clock, ends with the bits of an uninterrupted one.
`tests/faults` stops and kills runs at other moments."""

import itertools
import signal
import threading

import pytest

from tests.xlnet_jax.training.tiny_run import arguments, assert_same, records_of, state_of
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.training import checkpoint, pretrain
from xlnet_jax.training.checkpoint import Checkpoints

train = COMMANDS["train"]


def test_a_stop_does_not_wait_for_an_evaluation_which_is_made_up_for(straight, text, tmp_path, monkeypatch):
    make_eval_step, calls = pretrain.make_eval_step, itertools.count(1)

    def stopped_at_the_second_batch(*args):
        step = make_eval_step(*args)

        def counted(*batch):
            if next(calls) == 2:
                signal.raise_signal(signal.SIGTERM)
            return step(*batch)

        return counted

    with monkeypatch.context() as patch:
        patch.setattr(pretrain, "make_eval_step", stopped_at_the_second_batch)
        assert train.main(arguments(text, tmp_path / "run")) == 143
    assert next(calls) == 3  # of four batches
    assert [r["split"] for r in records_of(tmp_path / "run")] == ["train", "train", "train"]
    assert (tmp_path / "run" / "checkpoints" / "6").is_dir()
    assert train.main(arguments(text, tmp_path / "run")) == 0
    assert records_of(tmp_path / "run") == records_of(straight)
    assert_same(state_of(tmp_path / "run"), state_of(straight))


def test_a_save_that_fails_in_the_background_stops_the_run_at_the_next_step(text, tmp_path, monkeypatch):
    check, checked = Checkpoints.check, []

    def fail(_):
        raise PermissionError(13, "Permission denied", "checksums.json")

    def check_after_the_save_has_ended(checkpoints):
        checked.append(True)
        for thread in threading.enumerate():
            if thread.name == "save_finalize":
                thread.join(60)
        check(checkpoints)

    monkeypatch.setattr(checkpoint, "write_checksums", fail)
    monkeypatch.setattr(Checkpoints, "check", check_after_the_save_has_ended)
    with pytest.raises(PermissionError, match="Permission denied"):
        train.main(arguments(text, tmp_path / "run", "--checkpoint.every-steps", "4"))
    assert len(checked) == 5  # before each step: saved after the fourth, known to have failed before the fifth


def test_a_run_that_saves_by_the_clock_ends_the_same(straight, text, tmp_path):
    """Save at every step, so with memory inside the blocks."""
    by_the_clock = ("--checkpoint.every-minutes", "1e-9", "--checkpoint.keep-every", "4")
    assert train.main(arguments(text, tmp_path / "run", *by_the_clock)) == 0
    kept = sorted(int(p.name) for p in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == [4, 8, 10, 11, 12]
    assert_same(state_of(tmp_path / "run"), state_of(straight))
