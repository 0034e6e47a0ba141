"""The order of a step, the account of lost time, and skipped steps: over stand-in devices."""

import dataclasses
import functools
import math
from types import SimpleNamespace

import pytest

from tests.xlnet_jax.training.tiny import CONFIG, changed
from xlnet_jax.errors import InputError
from xlnet_jax.training import loop, metrics
from xlnet_jax.training.callbacks import Recorder
from xlnet_jax.training.loop import Loop, Run
from xlnet_jax.training.metrics import Tracer, WallTime, speed
from xlnet_jax.training.selection import Evaluation
from xlnet_jax.training.stop import Interrupt

STEP_SECONDS = 10.0  # that the devices take


class Waiting:
    """Stand-in for the reader's thread: a reading is there when the devices are done."""

    def __init__(self, clock, devices):
        self.clock, self.devices = clock, devices

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def submit(self, read, metrics):
        ready, step, result = self.devices.free, self.devices.step, []

        def wait():
            if not result:
                now, self.clock.now = self.clock.now, ready
                result.append(read(metrics))
                self.clock.now = max(now, ready)
                self.devices.events.append(f"read {step}")
            return result[0]

        return SimpleNamespace(done=lambda: self.clock.now >= ready, result=wait)


class Devices:
    """Stand-in for the devices: runs one step after the other. bad: numbers of the steps that are skipped."""

    def __init__(self, clock, bad, seconds):
        self.clock, self.bad, self.seconds, self.free, self.events = clock, bad, seconds, 0.0, []
        self.step = self.skipped = self.in_a_row = 0

    def update(self, state, batch):
        self.step += 1
        is_bad = self.step in self.bad
        self.skipped, self.in_a_row = self.skipped + is_bad, (self.in_a_row + 1) * is_bad
        self.free = max(self.free, self.clock.now) + self.seconds
        self.events.append(f"dispatch {self.step}")
        return state, {
            "loss": math.nan if is_bad else 5.0,
            "gradient_norm": math.inf if is_bad else 1.0,
            "parameter_norm": 2.0,
            "learning_rate": 0.1,
            "skipped": self.skipped,
            "skipped_in_a_row": self.in_a_row,
        }


@pytest.fixture
def clock(monkeypatch):
    """Clock that moves only when somebody waits."""
    clock = SimpleNamespace(now=0.0, time=lambda: clock.now, perf_counter=lambda: clock.now)
    for module in (loop, metrics):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def run(clock, monkeypatch):
    """Return a function that trains eight steps, and returns events, records and lost seconds."""

    def run(bad=(), wait=0.0, evaluate=1000):
        devices = Devices(clock, bad, STEP_SECONDS)
        monkeypatch.setattr(loop, "ThreadPoolExecutor", lambda _: Waiting(clock, devices))
        log = dataclasses.replace(CONFIG.log, every_steps=2)
        config = changed(CONFIG, optimizer={"max_skipped": 3}, steps=8, log=log)

        def batches():
            while True:
                clock.now += wait
                yield {}

        def lasts(seconds, event):
            clock.now += seconds
            devices.events.append(event)
            return 4.0

        checkpoints = SimpleNamespace(
            save=lambda _, step: lasts(3.0, f"save {step}"),
            due=lambda step: step % 4 == 0,
            overdue=False,
            check=lambda: None,
            latest_up_to=lambda step: None,
            wait=lambda: None,
        )
        times, recorder = WallTime([], 0, 0.0), Recorder()
        recorder.write = (written := []).append
        evaluation = Evaluation(evaluate, lambda *_: {"loss": lasts(7.0, "evaluate")}, str, "loss", False)
        training = Run(
            config,
            SimpleNamespace(),
            SimpleNamespace(train_step=devices.update, put=lambda batch: batch, rows=range(8)),
            SimpleNamespace(iterate=lambda *_: batches()),
            evaluation,
            params={},
            origin="",
            memory=SimpleNamespace(),
            rates=functools.partial(speed, config),
            locate=str,
            callbacks=[recorder],
            reference={"unigram": 5.0},
        )
        state = SimpleNamespace(params=None)
        process, tracer = (
            SimpleNamespace(first=True, console=SimpleNamespace(print=print)),
            Tracer(range(0), 0, None, print),
        )
        Loop(training, checkpoints, process, Interrupt(), times, tracer, state, 0, is_evaluated=False).finish()
        return SimpleNamespace(events=devices.events, written=written, lost=times.lost)

    return run


def test_the_host_reads_a_step_while_the_next_one_runs(run):
    assert run().events == [
        "dispatch 1", "read 1",  # it compiles
        "dispatch 2", "dispatch 3", "read 2", "dispatch 4", "read 3",
        "read 4", "save 4",  # only what is known to be good is saved
        "dispatch 5", "dispatch 6", "read 5", "dispatch 7", "read 6", "dispatch 8", "read 7",
        "read 8", "evaluate", "save 8",
    ]  # fmt: skip


def test_a_skipped_step_gets_no_checkpoint_unless_the_run_ends_with_it(run):
    assert [event for event in run(bad=(4, 5)).events if "save" in event] == ["save 6", "save 8"]
    assert [event for event in run(bad=(8,)).events if "save" in event] == ["save 4", "save 8"]  # the run's end
    with pytest.raises(InputError, match="There is no good checkpoint yet"):
        run(bad=range(3, 99))


@pytest.mark.parametrize(("wait", "lost"), [(6.0, 3 * 6.0), (14.0, 3 * 14.0 + 5 * 4.0)])
def test_time_is_lost_to_input_only_while_the_devices_have_nothing_to_do(run, wait, lost):
    """Devices idle before the first step, after it, and after the save; else while a batch takes longer than 10 s."""
    assert run(wait=wait).lost["input"] == pytest.approx(lost)


def test_all_time_is_accounted_for(run):
    written = run(evaluate=4).written
    assert {r["seconds_per_step"] for r in written if r["split"] == "train" and r["step"] > 1} == {STEP_SECONDS}
    last = [r for r in written if r["split"] == "time"][-1]
    assert last["compilation"] == STEP_SECONDS
    assert last["evaluation"] == 2 * 7.0
    assert last["checkpoints"] == 2 * 3.0
    assert last["updates"] == 7 * STEP_SECONDS
    assert last["wall"] == 8 * STEP_SECONDS + 2 * 7.0 + 2 * 3.0
    assert last["goodput"] == pytest.approx(0.7)
