"""Runs that their devices cannot hold: what is told, what is proposed, and what --auto-fit applies."""

import dataclasses
import json
import re
import shutil
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax.errors import JaxRuntimeError
from jax.sharding import NamedSharding, PartitionSpec
from rich.console import Console

from tests.xlnet_jax.training.tiny import CONFIG
from tests.xlnet_jax.training.tiny_run import arguments, assert_same, records_of, state_of
from xlnet_jax import train
from xlnet_jax.errors import OutOfMemory, exit_code
from xlnet_jax.settings.config import MeshConfig
from xlnet_jax.training import sharding
from xlnet_jax.training.fit import fit, need, search
from xlnet_jax.training.fit.fit import fitted
from xlnet_jax.training.fit.lighter import changed
from xlnet_jax.training.fit.need import AbstractStep
from xlnet_jax.training.loop import Loop
from xlnet_jax.training.run.hosts import Hosts
from xlnet_jax.training.run.workdir import Workdir
from xlnet_jax.training.state import TrainState

KIB = 2**10
RUN = dataclasses.replace(CONFIG, mesh=MeshConfig(), data=dataclasses.replace(CONFIG.data, batch_size=64))
ROW = {"none": 400, "dots": 200, "attention": 160, "full": 80}  # KiB of activations of a row, by remat
STATE = 300  # KiB of the parameters, over all fsdp
ADDED = {"accumulators": 0}  # KiB that micro-batches take
AUTO = dataclasses.replace(RUN, auto_fit=True)


@dataclasses.dataclass(frozen=True)
class Step(AbstractStep):
    remat: str


def step_of(config):
    """Return a step with the memory of a run: activations by rows and remat, and parameters that fsdp divides."""
    mesh = sharding.make_mesh(config)
    rows = config.data.batch_size // (sharding.batch_shards(mesh) * config.optimizer.accumulate)
    everywhere = NamedSharding(mesh, PartitionSpec())

    def shape(*sizes):
        return jax.ShapeDtypeStruct(sizes, jnp.float32, sharding=everywhere)

    activations = rows * ROW[config.model.remat] * KIB // 4
    activations += ADDED["accumulators"] * KIB // 4 * (config.optimizer.accumulate > 1)
    step = jax.jit(lambda state, batch: jnp.sort(jnp.arange(activations) * batch["scale"]).sum())
    state = TrainState(shape(), shape(STATE // config.mesh.fsdp, KIB // 4), (), shape(0), ())
    program = SimpleNamespace(mesh=mesh, plan=SimpleNamespace(abstract=state), train_step=step)
    return Step(program, {"scale": shape()}, config.model.remat)


@pytest.fixture
def limited(monkeypatch, tmp_path):
    """Return a function: fit a run to devices with this many KiB; the settings that were tried are in `tried`."""
    tried = []

    def run(kib, config=RUN, hosts=None):
        def counting(config):
            tried.append(config)
            return step_of(config)

        monkeypatch.setattr(search, "available_on", lambda device: kib and kib * KIB)
        process = SimpleNamespace(hosts=hosts or Hosts(), console=Console(quiet=True))
        workdir = Workdir(tmp_path / "run")
        workdir.make()
        return fitted(config, counting, workdir, process)

    run.tried, run.folder = tried, tmp_path / "run"
    return run


# The 8 devices of the tests have 8 rows each: 3,200 KiB of activations without remat, and 300 of parameters.
LADDER = [
    (3600, {}),
    (2000, {"model.remat": "dots"}),
    (1600, {"model.remat": "attention"}),
    (1000, {"model.remat": "full"}),
    (700, {"model.remat": "full", "optimizer.accumulate": 2}),
    (400, {"model.remat": "full", "optimizer.accumulate": 8}),
    (280, {"model.remat": "full", "optimizer.accumulate": 8, "mesh.fsdp": 2}),
]


@pytest.mark.parametrize(("kib", "chosen"), LADDER)
def test_auto_fit_applies_the_first_lighter_settings_that_fit_and_keeps_the_batch(limited, kib, chosen):
    found = limited(kib, AUTO)
    assert changed(found.config, AUTO) == chosen
    assert found.tried.need.known <= kib * KIB
    assert found.config.data == AUTO.data


@pytest.mark.parametrize(("kib", "chosen"), LADDER[1:])
def test_without_auto_fit_the_same_settings_are_proposed_in_one_line(limited, kib, chosen):
    with pytest.raises(OutOfMemory) as refused:
        limited(kib)
    line = str(refused.value)
    assert line.startswith("out of memory: a step needs ")
    assert f"and cpu has {kib / KIB:.2f} MiB for it" in line
    proposed = " and ".join(f"`{name}` {value}" for name, value in chosen.items())
    assert re.search(rf"\. {proposed} would fit, with \d\.\d\d MiB and the same batch; `auto_fit` applies that$", line)
    assert "\n" not in line
    assert exit_code(refused.value) == 2


def test_the_line_has_the_need_by_kind(limited):
    with pytest.raises(OutOfMemory, match=r"needs 3\.42 MiB \(parameters 0\.29, activations and gradients 3\.13\)"):
        limited(2000)


def test_settings_that_arithmetic_excludes_are_not_compiled(limited):
    """With full remat, 640 KiB of activations shrink to 80 with 8 micro-batches, to 320 and 160 before."""
    limited(400, AUTO)
    assert [c.optimizer.accumulate for c in limited.tried] == [1, 1, 1, 1, 8]


def test_a_smaller_batch_is_proposed_where_no_checkpoint_has_another(limited, monkeypatch):
    """The gradients that micro-batches add up take memory as well."""
    monkeypatch.setitem(ADDED, "accumulators", 1000)
    with pytest.raises(OutOfMemory, match=r"`model.remat` full and `data.batch_size` 8 would fit, with 0.37 MiB$"):
        limited(400)
    (limited.folder / "checkpoints" / "4").mkdir(parents=True)
    with pytest.raises(OutOfMemory, match=r"`mesh.fsdp`"):
        limited(400)


def test_nothing_fits(limited):
    for config in (RUN, AUTO):
        with pytest.raises(OutOfMemory, match=r"Nothing that was tried fits.* take devices with more memory"):
            limited(60, config)


def test_a_device_of_unknown_memory_holds_everything(limited):
    assert limited(None).config == RUN


def test_a_search_for_advice_ends_and_that_of_auto_fit_does_not(limited, monkeypatch):
    monkeypatch.setattr(fit, "PATIENCE", -1.0)
    with pytest.raises(OutOfMemory, match=r"The search for lighter settings ended after"):
        limited(700)
    assert changed(limited(700, AUTO).config, AUTO) == LADDER[4][1]


def test_the_choice_is_recorded_and_taken_again_without_a_search(limited):
    first = limited(400, AUTO)
    record = json.loads((limited.folder / "fit.json").read_text())
    assert record["chosen"] == changed(first.config, AUTO)
    assert Workdir(limited.folder).settings(type(AUTO)) == first.config
    limited.tried.clear()
    # More memory changes nothing: a run that resumes computes what it has computed.
    assert limited(3600, AUTO).config == first.config
    assert limited.tried == [first.config]
    # Other settings are another question.
    in_parts = dataclasses.replace(AUTO, optimizer=dataclasses.replace(AUTO.optimizer, accumulate=2))
    assert limited(3600, in_parts).config == in_parts


def test_less_memory_than_before_is_searched_anew(limited):
    limited(2000, AUTO)
    assert changed(limited(700, AUTO).config, AUTO) == LADDER[4][1]


def test_all_hosts_take_what_fits_the_smallest(limited):
    class Two(Hosts):
        def gather(self, name, value):
            return [value, 700 * KIB] if value == 3600 * KIB else [value, value]

    assert changed(limited(3600, AUTO, Two()).config, AUTO) == LADDER[4][1]


def test_what_the_compiler_refuses_is_told_and_kept(limited, monkeypatch):
    words = "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 17.5G of 15.5G hbm.\nTotal hbm usage"
    real = need.compile_step

    def compile_step(step):
        if step.remat == "none":
            raise need._read(JaxRuntimeError(words))
        return real(step)

    monkeypatch.setattr(need, "compile_step", compile_step)
    with pytest.raises(OutOfMemory, match=r"activations and gradients 17\.50.*`model.remat` dots would fit.*backend's"):
        limited(3600)
    assert (limited.folder / "out-of-memory.txt").read_text() == words
    words = "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem while allocating on stack"
    with pytest.raises(OutOfMemory, match=r"on the chip.*`model.attention` plain"):
        limited(3600)


# ---- the train command -----------------------------------------------------------------------------------------------


def test_a_run_that_was_fitted_learns_what_an_unlimited_one_learns_and_resumes(
    text, straight, tmp_path, monkeypatch, capsys
):
    needs = []

    def need_of(step, available):
        found = need.need_of(step, available)
        needs.append(found)
        # The first step, as it was asked for, is one byte larger than the device.
        return dataclasses.replace(found, temporaries=available) if len(needs) == 1 else found

    monkeypatch.setattr(search, "need_of", need_of)
    monkeypatch.setattr(search, "available_on", lambda device: 2**30)
    command = arguments(text, tmp_path, "--auto-fit")
    assert train.main(command) == 0
    assert "auto-fit    model.remat dots: a step needs" in capsys.readouterr().out
    assert json.loads((tmp_path / "config.json").read_text())["model"]["remat"] == "dots"
    for ours, theirs in zip(records_of(tmp_path), records_of(straight), strict=True):
        assert ours.pop("split") == theirs.pop("split")
        assert ours == pytest.approx(theirs, rel=1e-4)
    before = state_of(tmp_path)
    shutil.rmtree(tmp_path / "checkpoints" / "12")
    assert train.main(command) == 0
    assert len(needs) == 3
    assert_same(state_of(tmp_path), before)


def test_a_run_that_fails_after_all_ends_in_one_line_and_keeps_the_backends_words(
    text, straight, tmp_path, monkeypatch
):
    def too_much(self, state, start, evaluated):
        return jnp.ones(2**44).block_until_ready()  # 64 TiB: the allocation fails

    shutil.copytree(straight, tmp_path / "run")
    monkeypatch.setattr(Loop, "train", too_much)
    monkeypatch.setattr(fit, "PATIENCE", -1.0)
    with pytest.raises(OutOfMemory, match=r"out of memory while it ran \(RESOURCE_EXHAUSTED: Out of memory") as refused:
        train.main(arguments(text, tmp_path / "run"))
    assert exit_code(refused.value) == 2
    kept = (tmp_path / "run" / "out-of-memory.txt").read_text()
    assert "RESOURCE_EXHAUSTED" in kept
    assert "in too_much" in kept
