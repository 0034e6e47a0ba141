"""Output of a run: a trace, Weights & Biases, bad batches; and the programs that it keeps for a restart."""

import contextlib
import functools
import gzip
import json
import shlex
import sys
from importlib.machinery import ModuleSpec
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from data_pipelines.batches import BatchSource
from tests.xlnet_jax.training.tiny_run import arguments
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.errors import InputError
from xlnet_jax.objectives import presets
from xlnet_jax.settings.config import Config
from xlnet_jax.training import metrics, workdir
from xlnet_jax.training.callbacks import Trackio, Wandb
from xlnet_jax.training.metrics import Tracer, read_records
from xlnet_jax.training.workdir import Workdir

train = COMMANDS["train"]
inspect = COMMANDS["inspect"]

POISONED = (5, 6, 9, 10, 11)  # batches whose weights are no numbers


class WandbPackage:
    """Stand-in for the package."""

    __spec__ = ModuleSpec("wandb", None)

    def __init__(self):
        self.started, self.logged, self.finished = [], [], []

    def init(self, **settings):
        self.started.append(settings)
        finish = functools.partial(self.finished.append, settings["id"])
        return SimpleNamespace(define_metric=lambda *_, **__: None, log=self.logged.append, finish=finish)


def poisoned(batch_of):
    def batch(self, visit, step, rows):
        batch = batch_of(self, visit, step, rows)
        if step in POISONED and self.split == "train":
            batch["target_weights"] = np.full_like(batch["target_weights"], np.nan)
        return batch

    return batch


@pytest.fixture(scope="module")
def watched(text, tmp_path_factory):
    """Run over bad batches in two starts: its workdir, error, programs, and records at W&B."""
    run = SimpleNamespace(workdir=tmp_path_factory.mktemp("watched") / "run", wandb=WandbPackage(), programs=[])
    # An epsilon of its own: runs of equal settings share their programs in tests, and nothing would be compiled.
    words = arguments(
        text, run.workdir, "--optimizer.decay-steps", "12", "--log.every-steps", "1", "--optimizer.eps=2e-6"
    )
    with pytest.MonkeyPatch.context() as patch, no_compile_cache_but_ours():
        patch.setitem(sys.modules, "wandb", run.wandb)
        patch.setattr(workdir, "PLATFORMS", ("cpu",))
        patch.setattr(BatchSource, "batch", poisoned(BatchSource.batch))
        assert train.main([*words, "--steps", "4", "--trace-steps", "2:4", "--log.wandb", "novels"]) == 0
        run.programs.append({p.name for p in (run.workdir / "compiled").iterdir()})
        with pytest.raises(InputError) as stopped:
            train.main([*words, "--steps", "12", "--optimizer.max-skipped", "3", "--log.wandb", "novels"])
        run.programs.append({p.name for p in (run.workdir / "compiled").iterdir()})
    run.stopped = str(stopped.value)
    return run


@contextlib.contextmanager
def no_compile_cache_but_ours():
    settings = {"jax_compilation_cache_dir": None, "jax_persistent_cache_min_compile_time_secs": 0.0}
    before = {name: jax.config.values[name] for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def test_a_trace_of_the_steps_lies_where_tensorboard_looks_for_it(watched):
    (trace,) = (watched.workdir / "tensorboard").glob("plugins/profile/*/*.trace.json.gz")
    names = [event.get("name", "") for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]]
    assert sum(name == "train" for name in names) == 2
    assert list(trace.parent.glob("*.xplane.pb"))


def test_a_run_past_the_steps_to_trace_says_that_it_traces_nothing(tmp_path):
    said = []
    with Tracer(range(2, 4), 4, tmp_path, said.append) as tracer:
        for done in range(4, 8):
            tracer.at(done, None)
    assert said == ["trace: none, as the run is at step 4, after the last step to trace (4)"]


def test_a_restart_finds_its_programs_compiled(watched):
    first, second = ({name for name in names if "step" in name} for names in watched.programs)
    assert sorted(name.partition("-")[0] for name in first) == ["jit_eval_step", "jit_train_step"]
    assert second == first


def test_programs_of_a_cpu_are_kept_for_all_runs_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "of-user"))

    def cache():
        with Workdir(tmp_path).keep_programs():
            return jax.config.values["jax_compilation_cache_dir"]

    with no_compile_cache_but_ours():
        assert cache() == str(tmp_path / "of-user" / "xlnet_jax" / "programs")
        monkeypatch.setattr(workdir, "PLATFORMS", ("cpu",))
        assert cache() == str(tmp_path / "compiled")
        jax.config.update("jax_compilation_cache_dir", "mine")
        assert cache() == "mine"


def test_a_resumed_run_is_the_same_run_at_wandb(watched):
    first, second = watched.wandb.started
    assert first["id"] == second["id"] == (watched.workdir / "wandb-id").read_text()
    assert (first["project"], second["resume"]) == ("novels", "allow")
    assert watched.wandb.finished == [first["id"]] * 2
    # What is not finite is not sent.
    assert [row["step"] for row in watched.wandb.logged if "train/loss" in row] == [1, 2, 3, 4, 5, 8, 9]


def test_trackio_gets_the_step_as_its_own(tmp_path, monkeypatch):
    sent = []
    package = SimpleNamespace(init=lambda **_: SimpleNamespace(log=lambda *row, step: sent.append((*row, step))))
    monkeypatch.setitem(sys.modules, "trackio", package)
    tracker = Trackio("p")
    times = SimpleNamespace(record=lambda step: {"step": step, "split": "time", "wall": 1.0})
    tracker.on_start(
        SimpleNamespace(step=4, times=times, run=SimpleNamespace(workdir=Workdir(tmp_path), config=Config()))
    )
    tracker.write({"step": 6, "split": "train", "loss": 2.0})
    assert sent == [({"time/wall": 1.0}, 4), ({"train/loss": 2.0}, 6)]


def test_a_missing_wandb_and_one_that_refuses_are_one_line(text, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match=r"--log\.wandb p: the package wandb is not installed: pip install -e '\.\["):
        train.main(arguments(text, tmp_path / "run", "--log.wandb", "p"))
    assert not (tmp_path / "run").exists()

    def refuse(**_):
        raise RuntimeError("api_key not configured\nTraceback of its own")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=refuse))
    with pytest.raises(InputError, match=r"did not start the run \(api_key not configured\): run wandb login, set "):
        Wandb("p").begin(SimpleNamespace(run=SimpleNamespace(workdir=Workdir(tmp_path), config=Config())))


def test_a_bad_batch_is_skipped_and_the_run_goes_on(watched):
    rows = {r["step"]: r for r in read_records(watched.workdir / "metrics.jsonl") if r["split"] == "train"}
    assert [rows[step]["skipped"] for step in range(1, 10)] == [0, 0, 0, 0, 0, 1, 2, 2, 2]
    assert np.isnan(rows[6]["loss"])
    assert np.isfinite(rows[8]["loss"])
    assert rows[7]["parameter_norm"] == rows[8]["parameter_norm"]
    assert '"loss": null' in (watched.workdir / "metrics.jsonl").read_text()


def test_the_batches_that_ended_a_run_can_be_looked_at_by_the_command_it_names(watched, tmp_path, capsys):
    assert "the last 3 steps were skipped, up to step 12 with a loss of nan" in watched.stopped
    assert f"The last good checkpoint is {watched.workdir / 'checkpoints' / '8'}" in watched.stopped
    command = watched.stopped.partition("python -m data_pipelines.inspect ")[2].partition(". ")[0]
    assert inspect.main([*shlex.split(command), "--out", str(tmp_path / "window.png")]) == 0
    assert "step 11" in capsys.readouterr().out


def test_utilisation_is_the_share_of_the_peak_that_the_model_needs(monkeypatch):
    monkeypatch.setattr(metrics, "peak_flops", lambda kind: 1e15)
    monkeypatch.setattr(metrics, "step_flops", lambda config: 4e15)
    numbers = metrics.speed(Config(), 2.0)
    assert numbers["mfu"] == pytest.approx(4 / (2 * jax.device_count()))
    assert numbers["tokens_per_second"] == 8192 * 512 / 2


@pytest.mark.parametrize("steps", ["10:10", "10"])
def test_a_range_of_steps_that_is_none_is_refused(steps):
    with pytest.raises(InputError, match=rf"`trace_steps` {steps} (is not a range|must be two increasing)"):
        presets.parse_config([f"--trace-steps={steps}"], "train", "")
