"""A run that is stopped or killed at any time ends with the bits of an uninterrupted one."""

import itertools
import random
import signal
import threading
import time
from collections import Counter

import pytest

from tests.xlnet_jax.training.tiny_run import Process, arguments, assert_same, records_of, state_of
from xlnet_jax import train
from xlnet_jax.training import checkpoint, pretrain
from xlnet_jax.training.metrics import ProgressView


@pytest.mark.slow
def test_a_stop_saves_and_says_how_to_go_on(straight, text, tmp_path):
    running = Process(text, tmp_path / "run", "--log.every-steps", "1")
    assert running.wait_for("step 5/12")
    exit_code, out = running.end(signal.SIGINT)
    assert exit_code == 130
    assert "stopped by SIGINT with step" in out
    assert "the same command goes on from there" in out
    assert "Traceback" not in out
    # It stopped inside a block: memory was saved, and the end is the same to the bit.
    assert train.main(arguments(text, tmp_path / "run", "--log.every-steps", "1")) == 0
    assert_same(state_of(tmp_path / "run"), state_of(straight))


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
    advance, steps = ProgressView.advance, []

    def fail(_):
        raise PermissionError(13, "Permission denied", "checksums.json")

    def until_the_save_has_ended(view, step):
        steps.append(step)
        for thread in threading.enumerate():
            if thread.name == "save_finalize":
                thread.join(60)
        advance(view, step)

    monkeypatch.setattr(checkpoint, "write_checksums", fail)
    monkeypatch.setattr(ProgressView, "advance", until_the_save_has_ended)
    with pytest.raises(PermissionError, match="Permission denied"):
        train.main(arguments(text, tmp_path / "run", "--checkpoint.every-steps", "4"))
    assert steps == [1, 2, 3, 4, 5]  # saved after 4, known to have failed after 5


def test_a_run_that_saves_by_the_clock_ends_the_same(straight, text, tmp_path):
    """Save at every step, so with memory inside the blocks."""
    by_the_clock = ("--checkpoint.every-minutes", "1e-9", "--checkpoint.keep-every", "4")
    assert train.main(arguments(text, tmp_path / "run", *by_the_clock)) == 0
    kept = sorted(int(p.name) for p in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == [4, 8, 10, 11, 12]
    assert_same(state_of(tmp_path / "run"), state_of(straight))


class Killer:
    """Kill runs at random moments, from the start of their process on."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.done = Counter()

    def strike(self, running, workdir):
        """Return False if the run ended before the moment came."""
        moments = {  # how often it is chosen, what the run then prints, and the longest pause after that
            "start": (3, None, 6),
            "step": (3, "step ", 0.1),
            "compile": (4, "unigram  ", 2),
            "evaluation": (4, self.draw.choice(["step 6/12", "step 12/12"]), 0.5),  # whose first batch is compiled
            "save": (4, None, 0.02),
        }
        moment = self.draw.choices(list(moments), [often for often, *_ in moments.values()])[0]
        _, words, pause = moments[moment]
        signum = self.draw.choice([signal.SIGKILL, signal.SIGTERM])
        while moment == "save" and running.running and not list(workdir.glob("checkpoints/*.orbax-checkpoint-tmp*")):
            time.sleep(0.002)  # the run wants the processor too
        if words is None or running.wait_for(words):
            time.sleep(self.draw.uniform(0, pause))
        code, out = running.end(signum if running.running else None)
        assert code in (0, -signum, 128 + signum), out
        print(f"{signum.name} at {moment}: exit code {code}", flush=True)
        if code != 0:
            self.done[moment, signum.name] += 1
        return code != 0


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bits(straight, text, tmp_path, request):
    killer, left = Killer(seed=2), request.config.getoption("--kills")
    for number in itertools.count():
        workdir = tmp_path / f"run-{number}"
        finished = False
        while left and not finished:
            struck = killer.strike(Process(text, workdir), workdir)
            left, finished = left - struck, not struck
        code, out = (0, "") if finished else Process(text, workdir).end()
        assert code == 0, out
        assert_same(state_of(workdir), state_of(straight))
        assert records_of(workdir) == records_of(straight)
        if not left:
            break
    print(f"{sum(killer.done.values())} kills of {number + 1} runs: {dict(killer.done)}")
