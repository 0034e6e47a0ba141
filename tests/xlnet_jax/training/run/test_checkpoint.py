"""Checkpoints: exact, complete in themselves and small; a broken one costs no good one."""

import dataclasses
import json
import threading

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from tests.xlnet_jax.training.tiny import CONFIG, batch_at, changed, program_of, steps_of
from xlnet_jax.errors import InputError
from xlnet_jax.settings.config import CheckpointConfig, MeshConfig
from xlnet_jax.settings.fields import to_dict
from xlnet_jax.training import checkpoint, sharding
from xlnet_jax.training.checkpoint import Checkpoints
from xlnet_jax.training.hosts import Process

STEPS_PER_BLOCK = 4


class Run:
    """Training run over arrays, compiled once, with its checkpoints in `folder`."""

    def __init__(self, config=CONFIG):
        self.folder, self.config = None, config
        self.program = program_of(config)

    def open(self, config=None, corpus="abc"):
        config, folder, data = config or self.config, self.folder, {"manifest_sha256": corpus}
        return Checkpoints(folder / "checkpoints", config, folder / "tokenizer", STEPS_PER_BLOCK, data, Process())

    def train(self, state, start, stop, checkpoints=None, save_at=()):
        state = state or self.program.init_state({})
        for t in range(start, stop):
            batch = batch_at(t) | {"mem_filled": np.full(8, min(8, 8 * (t % STEPS_PER_BLOCK)), np.int32)}
            ((state, _),) = steps_of(self.program, [batch], state)
            if t + 1 in save_at:
                checkpoints.save(state, t + 1)
        return state

    def restore(self, checkpoints, said=None, plan=None):
        return checkpoints.restore(plan or self.program.plan, ([] if said is None else said).append)


@pytest.fixture(scope="module")
def compiled():
    return Run()


@pytest.fixture
def run(compiled, tmp_path):
    return in_folder(compiled, tmp_path)


def in_folder(run, folder):
    run.folder = folder
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "spiece.model").write_bytes(b"pieces")
    return run


def assert_same(ours, theirs):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(ours), jax.device_get(theirs))


@pytest.mark.contract
@pytest.mark.parametrize("saved_at", [4, 6])
def test_a_resumed_run_ends_with_the_bits_of_an_uninterrupted_one(run, saved_at):
    """Saved between blocks, without memory, and inside one, with it; the run goes on while it is being written."""
    with run.open() as checkpoints:
        straight = run.train(None, 0, 9, checkpoints, save_at=[saved_at])
    with run.open() as checkpoints:
        state = run.restore(checkpoints)
        assert int(state.step) == saved_at
        resumed = run.train(state, saved_at, 9)
    assert_same(resumed.params, straight.params)
    assert_same(resumed.opt_state, straight.opt_state)


@pytest.mark.contract
def test_a_run_with_muon_resumes_on_its_mesh_with_the_bits_of_an_uninterrupted_one(tmp_path):
    mesh = MeshConfig(fsdp=4, tensor=2)
    run = in_folder(Run(changed(CONFIG, optimizer={"method": "muon"}, mesh=mesh)), tmp_path)
    with run.open() as checkpoints:
        straight = run.train(None, 0, 6, checkpoints, save_at=[4])
    momentum = straight.opt_state[1][0]["muon"].mu["backbone/layers/attention/q"]
    assert momentum.sharding.spec == PartitionSpec(None, "fsdp", "tensor", None)
    with run.open() as checkpoints:
        resumed = run.train(run.restore(checkpoints), 4, 6)
    assert_same(resumed.params, straight.params)
    assert_same(resumed.opt_state, straight.opt_state)


@pytest.mark.parametrize(
    ("devices", "shape"),
    [(4, {"fsdp": 2, "tensor": 2}), (8, {"context": 2, "tensor": 2})],
)
def test_another_mesh_restores_what_eight_devices_saved(run, devices, shape):
    with run.open() as checkpoints:
        saved = run.train(None, 0, 6, checkpoints, save_at=[6])
    config = dataclasses.replace(CONFIG, mesh=MeshConfig(**shape))
    plan = program_of(config, devices).plan
    with run.open(config) as checkpoints:
        there = run.restore(checkpoints, plan=plan)
    assert jax.tree.map(lambda a: a.sharding, there) == sharding.shardings_of(plan)
    assert_same(there, saved)


def test_memory_is_kept_in_the_newest_checkpoint_only_and_an_older_one_is_better_than_none(run):
    """Rows see an empty memory until their next block, as after a skipped step."""
    with run.open() as checkpoints:
        run.train(None, 0, 7, checkpoints, save_at=[4, 6, 7])
    has_memory = {s: (run.folder / "checkpoints" / str(s) / "mems").exists() for s in (4, 6, 7)}
    assert has_memory == {4: False, 6: False, 7: True}
    flip_a_bit(next(p for p in (run.folder / "checkpoints" / "7" / "params").rglob("d/*")))
    with run.open() as checkpoints:
        said = []
        state = run.restore(checkpoints, said)
    assert int(state.step) == int(state.guard.mems_begin) == 6
    assert not np.asarray(state.mems_ZBMD).any()
    assert said[0].startswith("checkpoint 6 lost its memory to a newer one")
    run.train(state, 6, 8)


def truncate(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip_a_bit(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_where_no_checkpoint_can_be_read_nothing_is_moved_and_nothing_begun(run):
    with run.open() as checkpoints:
        run.train(None, 0, 8, checkpoints, save_at=[4, 8])
    for step in ("4", "8"):
        truncate(run.folder / "checkpoints" / step / "params" / "_METADATA")
    with run.open() as checkpoints, pytest.raises(InputError, match=r"no checkpoint in .* can be read \(8: .*; 4: .*"):
        run.restore(checkpoints)
    assert sorted(p.name for p in (run.folder / "checkpoints").iterdir()) == ["4", "8"]


@pytest.mark.parametrize(
    ("every", "keep", "keep_every", "due", "left"),
    [
        (1, 3, 0, [4, 8, 12, 16, 20], [12, 16, 20]),
        (5, 3, 0, [8, 16], [12, 16, 20]),  # rounded up to whole blocks
        (100, 1, 7, [8, 16], [8, 16, 20]),  # some are kept for ever, and made for that
    ],
)
def test_saves_are_due_as_the_settings_say_and_only_some_are_kept(run, every, keep, keep_every, due, left):
    saving = CheckpointConfig(every_steps=every, keep=keep, keep_every=keep_every)
    config = dataclasses.replace(CONFIG, checkpoint=saving)
    with run.open(config) as checkpoints:
        assert run.restore(checkpoints) is None
        assert [t for t in range(1, 21) if checkpoints.due(t)] == due
        run.train(None, 0, 20, checkpoints, save_at=range(4, 21, 4))
    folder = run.folder / "checkpoints"
    assert sorted(int(p.name) for p in folder.iterdir()) == left
    assert (folder / "20" / "tokenizer" / "spiece.model").read_bytes() == b"pieces"
    settings = json.loads((folder / "20" / "config" / "metadata").read_text())
    assert settings == {"format_version": 1, **to_dict(config)}


def test_the_memory_of_a_checkpoint_stays_until_the_next_one_is_complete(run, monkeypatch):
    write_checksums, go_on = checkpoint.write_checksums, threading.Event()
    with run.open() as checkpoints:
        state = run.train(None, 0, 6, checkpoints, save_at=[6])
        checkpoints.wait()
        monkeypatch.setattr(checkpoint, "write_checksums", lambda folder: go_on.wait(60) and write_checksums(folder))
        run.train(state, 6, 7, checkpoints, save_at=[7])
        checkpoints.check()
        assert (checkpoints.path(6) / "mems").is_dir()
        go_on.set()
        checkpoints.wait()
        assert not (checkpoints.path(6) / "mems").exists()
        assert (checkpoints.path(7) / "mems").is_dir()


@pytest.mark.parametrize(
    ("config", "corpus", "difference"),
    [
        (
            changed(CONFIG, {"d_ff": 64}),
            "abc",
            r"a different model or run \(`model\.d_ff`: 32 there, 64 here\): give its",
        ),
        (CONFIG, "def", "4 is of another text: give the same, or another"),
    ],
)
def test_a_checkpoint_of_another_model_or_corpus_is_refused_and_stays(run, config, corpus, difference):
    with run.open() as checkpoints:
        run.train(None, 0, 4, checkpoints, save_at=[4])
    with run.open(config, corpus) as checkpoints, pytest.raises(InputError, match=difference):
        run.restore(checkpoints)
    assert (run.folder / "checkpoints" / "4" / "params").is_dir()
