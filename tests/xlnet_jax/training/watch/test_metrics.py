"""The records of a run: those that are damaged, and the account of its time."""

import json

import pytest
from etils import epath

from xlnet_jax.training import metrics
from xlnet_jax.training.metrics import WallTime, read_records

SOUND = {"step": 3, "split": "train", "loss": 1.5, "gradient_norm": None}


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        "[]",
        '{"step": 1',
        json.dumps(SOUND | {"step": "3"}),
        json.dumps(SOUND | {"loss": "low"}),
        json.dumps(SOUND | {"split": {}}),
        json.dumps({"step": 3, "split": "train"}),
        json.dumps(SOUND | {"step": 10**30}),
    ],
)
def test_a_damaged_line_is_passed_over(tmp_path, line):
    file = epath.Path(tmp_path / "metrics.jsonl")
    file.write_text(f'{{"format_version": 1}}\n{line}\n{json.dumps(SOUND)}\n')
    (record,) = read_records(file)
    assert record["step"] == 3
    assert record["loss"] == 1.5
    assert record["gradient_norm"] != record["gradient_norm"]


@pytest.fixture
def clock(monkeypatch):
    """Clock that the test moves; time.time() and time.perf_counter() start at different values."""

    class Clock:
        now = 0.0

        def time(self):
            return 1e9 + self.now

        def perf_counter(self):
            return 77 + self.now

    clock = Clock()
    monkeypatch.setattr(metrics, "time", clock)
    return clock


def test_what_was_done_after_the_checkpoint_is_lost_with_the_time_until_the_restart(clock):
    times, records = WallTime([], 0, clock.time()), []
    for step in (0, 10, 20):
        records.append(times.record(step))
        clock.now += 100  # spent in steps
    clock.now += 50  # until it is started again, from the checkpoint of step 10, which was made at 100
    times = WallTime(records, 10, clock.time())
    clock.now += 100
    record = times.record(20)
    assert record["wall"] == pytest.approx(450)
    assert record["updates"] == pytest.approx(200)
    assert record["restarts"] == pytest.approx(250)
    assert record["goodput"] == pytest.approx(200 / 450)


def test_time_before_the_first_step_is_the_start(clock):
    began = clock.time()
    clock.now += 30
    times = WallTime([], 0, began)
    clock.now += 10
    assert times.record(0)["start"] == pytest.approx(30)
    assert times.summary() == "goodput 25.0% of 0:40 in updates; lost to start 0:30"


def test_losses_add_up_over_restarts(clock):
    times = WallTime([], 0, clock.time())
    with times.lost_to("evaluation"):
        clock.now += 5
    times = WallTime([times.record(1)], 1, clock.time())
    with times.lost_to("evaluation"):
        clock.now += 7
    assert times.lost["evaluation"] == pytest.approx(12)


def test_seconds_per_step_include_waiting_for_input_and_no_other_lost_time(clock):
    times = WallTime([], 0, clock.time())
    times.mark(1)
    assert times.seconds_per_step(1) is None
    with times.lost_to("input"):
        clock.now += 2
    with times.lost_to("checkpoints"):
        clock.now += 50
    clock.now += 8
    assert times.seconds_per_step(6) == pytest.approx(2)
    clock.now += 3
    assert times.seconds_per_step(7) == pytest.approx(3)


def test_a_clock_that_was_put_back_loses_nothing(clock):
    times = WallTime([], 0, clock.time())
    clock.now += 10
    record = times.record(1)
    clock.now -= 5
    assert WallTime([record], 1, clock.time()).wall == pytest.approx(10)
