"""Run with its workdir in a bucket, which has no locks, no appending and no renaming."""

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from etils import epath

import xlnet_jax
from data_pipelines import sources
from xlnet_jax.errors import InputError
from xlnet_jax.plots.curves import draw_curves
from xlnet_jax.settings.config import Config
from xlnet_jax.storage import files, lock
from xlnet_jax.storage.files import move_folder, name_on_disk
from xlnet_jax.storage.lock import Lock
from xlnet_jax.training import workdir as workdir_module
from xlnet_jax.training.initial import begin_from
from xlnet_jax.training.metrics import MetricsWriter, read_records
from xlnet_jax.training.workdir import Workdir

FOLDER = "gs://bucket/run"


@pytest.fixture
def quick(monkeypatch):
    """Make locks fast, and release them."""
    held, hold = [], lock._Object.hold
    monkeypatch.setattr(workdir_module, "demand_bucket_library", lambda: None)
    monkeypatch.setattr(lock, "SECONDS_BETWEEN_BEATS", 0.1)
    monkeypatch.setattr(lock._Object, "hold", lambda self: (hold(self), held.append(self)))
    yield
    for one in held:
        one.release()


def read(bucket):
    return (bucket / "run" / lock.NAME).read_text()


def test_a_workdir_holds_its_settings_and_knows_its_checkpoints(bucket, quick):
    workdir = Workdir(FOLDER)
    workdir.claim(Config())
    assert (bucket / "run" / "config.json").exists()
    assert str(workdir.checkpoints) == "gs://bucket/run/checkpoints"
    (bucket / "run" / "checkpoints" / "4").mkdir(parents=True)
    assert workdir.resumes(Config) is None  # it was never finished
    (bucket / "run" / "checkpoints" / "4" / "commit_success.txt").write_text("")
    assert workdir.resumes(Config) == Config()
    with pytest.raises(InputError, match=r"workdir gs://bucket/run holds another run \(seed: 0 there, 1 here\)"):
        Workdir(FOLDER)._refuse(["seed: 0 there, 1 here"])


def test_records_and_curves_are_in_the_bucket_when_they_are_flushed(bucket):
    workdir, record = Workdir(FOLDER), {"split": "train", "loss": 2.0}
    with MetricsWriter(workdir.metrics, workdir.tensorboard, resume_step=0) as writer:
        writer.write({"step": 1, **record})
        assert not workdir.metrics.exists()
        writer.flush()
        writer.write({"step": 2, **record})
        assert [r["step"] for r in read_records(workdir.metrics)] == [1]
    assert list((bucket / "run" / "tensorboard").glob("events.out.tfevents.*"))
    with MetricsWriter(workdir.metrics, workdir.tensorboard, resume_step=1) as writer:
        writer.write({"step": 3, **record})
    records = list(read_records(workdir.metrics))
    assert [r["step"] for r in records] == [1, 3]
    draw_curves(records, 3.0, workdir.curves, "plm", "a title")
    assert (bucket / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_checkpoint_is_set_aside_object_by_object(bucket):
    for name in ("params/data", "checksums.json"):
        (epath.Path(FOLDER) / "checkpoints" / "4" / name).write_text(name)
    move_folder(epath.Path(FOLDER) / "checkpoints" / "4", epath.Path(FOLDER) / "broken-checkpoints" / "4")
    assert (bucket / "run" / "broken-checkpoints" / "4" / "params" / "data").read_text() == "params/data"
    assert not (bucket / "run" / "checkpoints" / "4").exists()


def test_a_path_in_a_bucket_never_becomes_one_on_a_disk():
    assert str(files.absolute(FOLDER)) == FOLDER
    with pytest.raises(
        InputError, match=r"`init` gs://bucket/run: weights are read from a disk; copy them there first"
    ):
        begin_from(FOLDER, Config(), None, Config())


def test_weights_are_neither_read_from_a_bucket_nor_written_to_one(tmp_path):
    with pytest.raises(InputError, match=r"^gs://bucket/run: weights are read from a disk; copy them there first"):
        xlnet_jax.load("gs://bucket/run")
    with pytest.raises(InputError, match=r"^gs://bucket/hf: results are written to a disk; copy them from there"):
        xlnet_jax.save(xlnet_jax.load("tiny"), "gs://bucket/hf", "hf")
    assert name_on_disk("gs://bucket/my run/") == ("my run", "gcloud storage cp -r 'gs://bucket/my run/' .")
    assert name_on_disk("runs/one") == ("runs/one", None)


def test_a_missing_library_is_one_line_before_any_work(bucket, monkeypatch):
    monkeypatch.setitem(sys.modules, "google.cloud.storage", None)
    with pytest.raises(InputError, match=r"gs:// need google-cloud-storage: pip install 'xlnet_jax\[gcs\]'"):
        Workdir(FOLDER).claim(Config())
    assert not (bucket / "run").exists()


def test_a_bucket_without_permission_is_one_line(bucket, quick, monkeypatch):
    class PermissionDeniedError(Exception):
        """Error as TensorFlow raises it, which is not an OSError."""

    def refuse(self, path, mode):
        raise PermissionDeniedError("Error executing an HTTP request: HTTP response code 403 with body '{\n ...\n}'")

    monkeypatch.setattr(type(epath.Path(FOLDER)._backend), "open", refuse)
    with pytest.raises(
        InputError, match=r"workdir gs://bucket/run cannot be written \(.*403 with body '{\): check"
    ) as e:
        Workdir(FOLDER).claim(Config())
    assert "\n" not in str(e.value)


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
    with pytest.raises(InputError, match=r"run is in use by process 17 on elsewhere: wait, or name another folder"):
        Lock(epath.Path(FOLDER))
    over.set()
    thread.join()


def test_a_lock_whose_holder_fell_silent_is_taken_over_and_kept_fresh(bucket, quick):
    (epath.Path(FOLDER) / lock.NAME).write_text("process 17 on elsewhere\nid 1\n")
    held = Lock(epath.Path(FOLDER))
    first = read(bucket)
    assert first.startswith(f"process {os.getpid()} on {socket.gethostname()}\n")
    deadline = time.monotonic() + 30
    while read(bucket) == first:
        assert time.monotonic() < deadline
    held.release()
    assert not (bucket / "run" / lock.NAME).exists()


def test_a_run_whose_lock_was_taken_over_ends(bucket, quick, monkeypatch, capfd):
    class Ended(BaseException):
        """Raised in place of the end of this process."""

    codes = []

    def end(code):
        codes.append(code)
        raise Ended

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    held = Lock(epath.Path(FOLDER))
    deadline = time.monotonic() + 30
    while held._object._beating.is_alive():  # it may write between its look and ours
        (epath.Path(FOLDER) / lock.NAME).write_text("process 17 on elsewhere\nid 1\n")
        held._object._beating.join(0.02)
        assert time.monotonic() < deadline
    assert codes == [2]
    assert "run is in use by process 17 on elsewhere" in capfd.readouterr().err
    assert "process 17" in read(bucket)


def test_a_lock_of_a_process_of_this_host_that_died_is_taken_at_once(bucket, quick, monkeypatch):
    monkeypatch.setattr(lock, "SECONDS_BETWEEN_BEATS", 5.0)
    (epath.Path(FOLDER) / lock.NAME).write_text(f"process {2**22 + 1} on {socket.gethostname()}\nid 1\n")
    began = time.monotonic()
    Lock(epath.Path(FOLDER))
    assert time.monotonic() - began < 4 * 5.0 / 2


def test_a_run_in_a_bucket_goes_on_where_it_stopped(bucket, tmp_path, monkeypatch):
    """Run the whole way: the text and the workdir, with the corpus in it, are in the bucket, and Orbax writes to it."""
    pytest.importorskip("google.cloud.storage")
    (bucket / "text.txt").write_text(Path(sources.embedded()[1]).read_text()[:60_000])
    words = (
        "--corpus gs://bucket/text.txt --workdir gs://bucket/run --optimizer.decay-steps 4 --optimizer.warmup-steps 1 "
        "--model.vocab-size 300 --model.num-layers 1 --model.d-model 16 --model.num-heads 1 --model.d-head 16 "
        "--model.d-ff 32 --model.mem-len 16 --data.batch-size 8 --data.seq-len 32 --data.reuse-len 16 "
        "--data.perm-size 16 --data.num-predict 4 --data.windows-per-block 4 --eval.max-windows 4 --log.every-steps 1"
    )
    command = [sys.executable, "-m", "xlnet_jax.train", *words.split(), "--steps"]
    for steps in ("2", "4"):
        done = subprocess.run([*command, steps], capture_output=True, text=True, timeout=300, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert "gcloud storage cp -r gs://bucket/run ." in done.stdout
    assert (bucket / "run/checkpoints/4/commit_success.txt").exists()
    records = list(read_records(Workdir(FOLDER).metrics))
    assert [r["step"] for r in records if r["split"] == "train"] == [1, 2, 3, 4]
    assert not (tmp_path / "gs:").exists()
    monkeypatch.chdir(tmp_path)
    shutil.copytree(bucket / "run", "run")  # as gcloud does
    assert xlnet_jax.evaluate("run", max_windows=4).measured.loss > 0
    xlnet_jax.save(xlnet_jax.load("run"), "run-hf", "hf")
    assert xlnet_jax.load("run-hf").model.d_model == 16
