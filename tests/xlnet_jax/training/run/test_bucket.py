"""Run with its workdir in a bucket, which has no locks, no appending and no renaming."""

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from etils import epath

import xlnet_jax
from data_pipelines import sources
from tests.xlnet_jax.training.tiny_run import arguments
from xlnet_jax.errors import InputError
from xlnet_jax.settings.config import Config
from xlnet_jax.settings.resolution import Resolution
from xlnet_jax.storage import lock
from xlnet_jax.storage.files import move_folder
from xlnet_jax.storage.lock import BucketLock
from xlnet_jax.training import workdir as workdir_module
from xlnet_jax.training.callbacks import MetricsFile, TensorBoard
from xlnet_jax.training.initial import begin_from
from xlnet_jax.training.metrics import read_records
from xlnet_jax.training.workdir import Workdir

FOLDER = "gs://bucket/run"


@pytest.fixture
def quick(monkeypatch):
    """Make locks fast."""
    monkeypatch.setattr(workdir_module, "require_bucket_library", lambda: None)
    monkeypatch.setattr(lock, "SECONDS_BETWEEN_BEATS", 0.1)


def test_a_workdir_holds_its_settings_and_knows_its_checkpoints(bucket, quick):
    workdir = Workdir(FOLDER)
    workdir.claim(Config())
    workdir.close()
    assert (bucket / "run" / "config.json").exists()
    (bucket / "run" / "checkpoints" / "4").mkdir(parents=True)
    assert workdir.resumes(Config) is None  # it was never finished
    (bucket / "run" / "checkpoints" / "4" / "commit_success.txt").write_text("")
    assert workdir.resumes(Config) == Config()
    with pytest.raises(InputError, match=r"workdir gs://bucket/run holds another run \(seed: 0 there, 1 here\)"):
        Workdir(FOLDER)._refuse(["seed: 0 there, 1 here"])
    move_folder(workdir.checkpoints / "4", workdir.folder / "broken-checkpoints" / "4")
    assert (bucket / "run" / "broken-checkpoints" / "4" / "commit_success.txt").exists()
    assert not workdir.has_checkpoints


def test_records_are_in_the_bucket_when_they_are_flushed(bucket):
    workdir, record = Workdir(FOLDER), {"split": "train", "loss": 2.0}
    times = SimpleNamespace(record=lambda step: {"step": step, "split": "time", "wall": 1.0})
    loop = SimpleNamespace(step=0, times=times)
    file, events = MetricsFile(workdir.metrics), TensorBoard(workdir.tensorboard)

    def steps_of():
        return [r["step"] for r in read_records(workdir.metrics) if r["split"] == "train"]

    for callback in (file, events):
        callback.on_start(loop)
        callback.write({"step": 1, **record})
    assert not workdir.metrics.exists()
    file.on_save(loop)
    file.write({"step": 2, **record})
    assert steps_of() == [1]
    for callback in (file, events):
        callback.on_end(loop, None)
    assert list((bucket / "run" / "tensorboard").glob("events.out.tfevents.*"))
    loop.step = 1
    file.on_start(loop)
    file.write({"step": 3, **record})
    file.on_end(loop, None)
    assert steps_of() == [1, 3]


def test_weights_are_neither_read_from_a_bucket_nor_written_to_one():
    with pytest.raises(
        InputError, match=r"`init` gs://bucket/run: weights are read only from a disk; copy them there f"
    ):
        begin_from(Resolution(Config(init=FOLDER)), None)
    with pytest.raises(InputError, match=r"^gs://bucket/run: weights are read only from a disk; copy them there first"):
        xlnet_jax.load("gs://bucket/run")
    with pytest.raises(InputError, match=r"^gs://bucket/hf: results are written only to a disk; give a local path"):
        xlnet_jax.save(xlnet_jax.load("tiny"), "gs://bucket/hf", "hf")


def test_a_missing_library_and_a_missing_permission_are_one_line(bucket, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "google.cloud.storage", None)
        with pytest.raises(InputError, match=r"gs:// need google-cloud-storage: pip install -e '\.\[gcs\]'"):
            Workdir(FOLDER).claim(Config())

    def refuse(self, path, mode):  # as TensorFlow does, whose error is no OSError
        raise ValueError("Error executing an HTTP request: HTTP response code 403 with body '{\n ...\n}'")

    monkeypatch.setattr(workdir_module, "require_bucket_library", lambda: None)
    monkeypatch.setattr(type(epath.Path(FOLDER)._backend), "open", refuse)
    with pytest.raises(InputError, match=r"run cannot be written \(.*403 with body '{\): check .*login`\)$"):
        Workdir(FOLDER).claim(Config())


def test_a_workdir_in_use_is_refused_and_its_host_and_process_named(bucket, quick):
    over = threading.Event()

    def another():
        path, number = epath.Path(FOLDER) / lock.NAME, 0
        while not over.wait(0.02):
            number += 1
            path.write_text(f"process 17 on elsewhere\nid {number}\n")

    thread = threading.Thread(target=another)
    thread.start()
    while not (bucket / "run" / lock.NAME).exists():
        time.sleep(0.01)
    with pytest.raises(InputError, match=r"run is in use by process 17 on elsewhere: wait, or give another path"):
        BucketLock(epath.Path(FOLDER), "workdir gs://bucket/run")
    over.set()
    thread.join()


def test_a_lock_whose_holder_fell_silent_is_taken_over_and_kept_fresh(bucket, quick):
    (epath.Path(FOLDER) / lock.NAME).write_text("process 17 on elsewhere\nid 1\n")
    held, path = BucketLock(epath.Path(FOLDER), "workdir gs://bucket/run"), bucket / "run" / lock.NAME
    first = path.read_text()
    assert first.startswith(f"process {os.getpid()} on {socket.gethostname()}\n")
    deadline = time.monotonic() + 30
    while path.read_text() == first:
        assert time.monotonic() < deadline
    held.release()
    assert not path.exists()


def test_a_run_whose_lock_was_taken_over_ends(bucket, quick, monkeypatch, capfd):
    def end(code):
        codes.append(code)
        raise SystemExit

    codes = []
    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    held = BucketLock(epath.Path(FOLDER), "workdir gs://bucket/run")
    deadline = time.monotonic() + 30
    while held._beating.is_alive():  # it may write between its look and ours
        (epath.Path(FOLDER) / lock.NAME).write_text("process 17 on elsewhere\nid 1\n")
        held._beating.join(0.02)
        assert time.monotonic() < deadline
    held.release()
    assert codes == [2]
    assert "run is in use by process 17 on elsewhere" in capfd.readouterr().err


def test_a_run_in_a_bucket_goes_on_where_it_stopped(bucket, tmp_path):
    """Run the whole way: the text and the workdir, with the corpus in it, are in the bucket, and Orbax writes to it."""
    pytest.importorskip("google.cloud.storage")
    (bucket / "text.txt").write_text(Path(sources.embedded()[1]).read_text()[:60_000])
    words = arguments("gs://bucket/text.txt", FOLDER, "--optimizer.decay-steps", "4", "--log.every-steps", "1")
    command = [sys.executable, "-m", "xlnet_jax.train", *words, "--steps"]
    for steps in ("2", "4"):
        done = subprocess.run([*command, steps], capture_output=True, text=True, timeout=300, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert "gcloud storage cp -r gs://bucket/run ." in done.stdout
    assert (bucket / "run/checkpoints/4/commit_success.txt").exists()
    assert (bucket / "run/curves.png").read_bytes().startswith(b"\x89PNG")
    records = list(read_records(Workdir(FOLDER).metrics))
    assert [r["step"] for r in records if r["split"] == "train"] == [1, 2, 3, 4]
    assert not (tmp_path / "gs:").exists()
    shutil.copytree(bucket / "run", tmp_path / "run")  # as gcloud does
    assert xlnet_jax.evaluate(tmp_path / "run", max_windows=4).measured.loss > 0
