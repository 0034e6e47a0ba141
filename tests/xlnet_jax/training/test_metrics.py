"""The records of a run: those that are damaged, and the account of its time."""

import io
import json
import re
import sys
from types import SimpleNamespace

import pytest
from etils import epath

from xlnet_jax.printing import Console, Printable
from xlnet_jax.training import metrics
from xlnet_jax.training.callbacks import ProgressBar
from xlnet_jax.training.metrics import WallTime, read_records

SOUND = {"step": 3, "split": "train", "loss": 1.5, "gradient_norm": None}


@pytest.mark.parametrize(
    "line",
    ["[" * 100_000, "[]", '{"step": 1', *(json.dumps(SOUND | {name: {}}) for name in SOUND), '{"step": 3}'],
    ids=range(8),
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
    clock = SimpleNamespace(now=0.0, time=lambda: 1e9 + clock.now, perf_counter=lambda: 77 + clock.now)
    monkeypatch.setattr(metrics, "time", clock)
    return clock


def test_what_was_done_after_the_checkpoint_is_lost_with_the_time_until_the_restart(clock):
    times, records = WallTime([], 0, clock.time()), []
    with times.lost_to("evaluation"):
        clock.now += 5
    for step in (0, 10, 20):
        records.append(times.record(step))
        clock.now += 100  # spent in steps
    clock.now += 50  # until it is started again, from the checkpoint of step 10, which was made at 100
    times = WallTime(records, 10, clock.time())
    clock.now += 100
    record = times.record(20)
    assert record["wall"] == pytest.approx(455)
    assert record["updates"] == pytest.approx(200)
    assert (record["restarts"], record["evaluation"]) == pytest.approx((250, 5))
    assert record["goodput"] == pytest.approx(200 / 455)


def test_time_before_the_first_step_is_the_start(clock):
    began = clock.time()
    clock.now += 30
    times = WallTime([], 0, began)
    clock.now += 10
    assert times.record(0)["start"] == pytest.approx(30)
    assert times.summary() == "goodput 25.0% of 0:40 in updates; lost to start 0:30"


def test_the_bar_of_a_narrow_terminal_has_the_time_left_and_messages_stay_above_it(monkeypatch):
    shown = io.StringIO()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, Printable(shown))
    console = Console(width=80, force_terminal=True, soft_wrap=True, highlight=False, markup=False)
    run = SimpleNamespace(reference={"unigram": 6.124}, config=SimpleNamespace(steps=1000))
    loop, bar = SimpleNamespace(run=run, step=0), ProgressBar(console)
    bar.on_start(loop)
    loop.step = 220
    numbers = {"loss": 5.1, "learning_rate": 1e-3, "seconds_per_step": 0.5, "tokens_per_second": 12_548.0}
    bar.on_step(loop, 220, numbers)
    bar.bar.refresh()
    console.print("held out at step 220: loss 5.2")
    print("a note", file=sys.stderr)
    bar.on_end(loop, None)
    assert "\\u001b" not in shown.getvalue()
    lines = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown.getvalue().replace("\r", "\n")).splitlines()
    assert {"held out at step 220: loss 5.2", "a note"} <= set(map(str.strip, lines))
    (bar, *_) = (line for line in lines if "220/1000" in line and "loss" in line)
    assert len(bar) <= 80
    assert bar.split()[1:] == "220/1000 6:30 left loss 5.100 unigram 6.124 12,548 tokens/s".split()
