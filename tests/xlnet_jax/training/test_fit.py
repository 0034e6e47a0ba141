"""Runs that their devices cannot hold: the refusal, what it proposes, and what --auto-fit applies."""

import dataclasses
import json
import re
import resource
import shutil
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax.errors import JaxRuntimeError
from jax.sharding import NamedSharding, PartitionSpec
from rich.console import Console

from tests.xlnet_jax.training.tiny import CONFIG, changed
from tests.xlnet_jax.training.tiny_run import arguments, records_of
from xlnet_jax import train
from xlnet_jax.errors import OutOfMemory, exit_code
from xlnet_jax.settings.config import MeshConfig
from xlnet_jax.training import fit, sharding
from xlnet_jax.training.hosts import Hosts
from xlnet_jax.training.loop import Loop
from xlnet_jax.training.step import TrainState
from xlnet_jax.training.workdir import Workdir

KIB, GIB = 2**10, 2**30
RUN = dataclasses.replace(CONFIG, mesh=MeshConfig(), data=dataclasses.replace(CONFIG.data, batch_size=64))
AUTO = dataclasses.replace(RUN, auto_fit=True)
STATE = 300  # KiB of the parameters, over all fsdp


def step_of(config):
    """Return a program with the memory of a run on 8 devices, and its batch: 300 KiB of parameters, and 3,200 of
    activations without remat, half of it with."""
    mesh = sharding.make_mesh(config)
    everywhere = NamedSharding(mesh, PartitionSpec())

    def shape(*sizes):
        return jax.ShapeDtypeStruct(sizes, jnp.float32, sharding=everywhere)

    size = (400 if config.model.remat == "full" else 800) * KIB
    step = jax.jit(lambda state, batch: jnp.sort(jnp.arange(size) * batch["scale"]).sum())
    state = TrainState(shape(), shape(STATE // config.mesh.fsdp, KIB // 4), (), shape(0), ())
    return SimpleNamespace(mesh=mesh, plan=state, train_step=step), {"scale": shape()}


@pytest.fixture(scope="module")
def measured():
    """Return the memory of the run's step, compiled once."""
    process = SimpleNamespace(hosts=Hosts(), console=Console(quiet=True))
    workdir = SimpleNamespace(newest_step=None)
    return fit.Memory.of(*step_of(RUN), RUN, workdir, process)


@pytest.fixture
def on(measured, tmp_path):
    """Return a function: the memory of the run's step on devices with this many KiB."""

    def devices(kib):
        available = kib and kib * KIB
        return dataclasses.replace(measured, available=available, fits=measured.need.fits(available))

    return devices


# Of 3,500 KiB, 2,900 are activations without remat. Full remat leaves half of them in two layers, and their inputs.
PROPOSALS = [
    (2600, {"model.remat": "full"}),
    (2000, {"model.remat": "full", "optimizer.accumulate": 2}),
    (1250, {"model.remat": "full", "optimizer.accumulate": 8}),
    (1000, {"model.remat": "full", "optimizer.accumulate": 4, "mesh.fsdp": 2}),
]


@pytest.mark.parametrize(("kib", "values"), PROPOSALS)
def test_the_refusal_is_one_line_with_the_need_by_kind_and_one_proposal(on, tmp_path, kib, values):
    refused = on(kib).refusal(Workdir(tmp_path))
    proposed = " and ".join(f"`{name}` {value}" for name, value in values.items())
    assert str(refused) == (
        "out of memory: a step needs 3.42 MiB (parameters 0.29, activations and gradients 3.13) on each device, and "
        f"cpu has {kib / KIB:.2f} MiB for it. {proposed} should fit, with the same batch; `auto_fit` applies that"
    )
    assert exit_code(refused) == 2
    assert on(kib).propose() == values


def test_nothing_fits(on, tmp_path):
    assert on(60).propose() == {}
    assert "take devices with more memory, a smaller batch" in str(on(60).refusal(Workdir(tmp_path)))


def test_a_device_of_unknown_memory_holds_everything(on):
    assert on(None).fits


@pytest.fixture
def capped(monkeypatch, tmp_path):
    """Return a function: cap the memory of a run on devices with this many KiB; `built` lists what was compiled."""
    built = []

    def cap(kib, config=AUTO, hosts=None):
        monkeypatch.setattr(fit, "memory_of", lambda device: kib * KIB)
        process = SimpleNamespace(hosts=hosts or Hosts(), console=Console(quiet=True))
        cap.workdir.make()
        return fit.build_fitting(config, lambda config: built.append(config) or step_of(config), cap.workdir, process)[
            0
        ]

    cap.built, cap.workdir = built, Workdir(tmp_path / "run")
    return cap


def test_auto_fit_applies_the_proposal_and_a_run_that_resumes_keeps_it(capped):
    applied = capped(2600)
    assert applied == changed(AUTO, {"remat": "full"})
    assert capped.workdir.settings(type(AUTO)) == applied
    assert capped.built == [AUTO, applied]
    (capped.workdir.folder / "checkpoints" / "4").mkdir(parents=True)
    before = capped.workdir.resumes(type(AUTO))
    kept = fit.keep_fit(AUTO, before)
    assert capped(9000, kept) == kept == applied  # more memory changes nothing
    asked = dataclasses.replace(AUTO, given=frozenset({"model.remat"}))
    assert fit.keep_fit(asked, before) == AUTO
    assert fit.keep_fit(RUN, before) == RUN


def test_what_fits_is_left_as_it_was_asked_for_and_what_does_not_is_refused(capped):
    assert capped(3600) == AUTO
    for config in (RUN, AUTO):
        with pytest.raises(OutOfMemory, match=r"a step needs more than 0\.29 MiB"):
            capped(60, config)


def test_all_hosts_take_what_fits_the_smallest(capped):
    class Two(Hosts):
        def gather(self, name, value):
            return [value, 2600 * KIB] if value == 3600 * KIB else [value, value]

    assert capped(3600, AUTO, Two()).model.remat == "full"


def test_the_compilers_refusal_is_read_and_kept(measured, tmp_path, monkeypatch):
    words = "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 17.5G of 15.5G hbm.\nTotal hbm usage"
    error = fit._refusal_of_compiler(JaxRuntimeError(words))
    asked = fit.Need(measured.need.inputs, error.needed, refused=str(error))
    line = str(dataclasses.replace(measured, need=asked, available=10 * GIB, fits=False).refusal(Workdir(tmp_path)))
    assert re.search(r"activations and gradients 17\.50.*`model.remat` full should fit.*The backend's own words", line)
    assert (tmp_path / "out-of-memory.txt").read_text() == words
    on_chip = fit.Need({}, None, refused="Ran out of memory in memory space vmem while allocating on stack")
    line = str(dataclasses.replace(measured, need=on_chip, fits=False).refusal(Workdir(tmp_path)))
    assert re.search("on the chip: give `model.attention` plain", line)


# ---- the train command -----------------------------------------------------------------------------------------------


def test_a_run_that_was_fitted_learns_what_an_unlimited_one_learns(text, straight, tmp_path, monkeypatch, capsys):
    needs, real = [], fit.compiled_need

    def compiled_need(compiled, inputs):
        needs.append(real(compiled, inputs))
        # The first step, as it was asked for, is larger than the device.
        large = inputs | {"parameters": GIB}
        return dataclasses.replace(needs[-1], inputs=large) if len(needs) == 1 else needs[-1]

    monkeypatch.setattr(fit, "compiled_need", compiled_need)
    monkeypatch.setattr(fit, "memory_of", lambda device: GIB)
    assert train.main(arguments(text, tmp_path, "--auto-fit")) == 0
    assert "auto-fit    model.remat full and mesh.fsdp 4: as asked, a step needs" in capsys.readouterr().out
    assert json.loads((tmp_path / "config.json").read_text())["model"]["remat"] == "full"
    for ours, theirs in zip(records_of(tmp_path), records_of(straight), strict=True):
        assert ours.pop("split") == theirs.pop("split")
        assert ours == pytest.approx(theirs, rel=1e-4)
    assert len(needs) == 2


def test_a_run_that_fails_after_all_ends_in_one_line_and_keeps_the_backends_words(
    text, straight, tmp_path, monkeypatch
):
    def too_much(self, state, start, evaluated):
        return jnp.ones(2**44).block_until_ready()  # 64 TiB: the allocation fails

    shutil.copytree(straight, tmp_path / "run")
    monkeypatch.setattr(Loop, "train", too_much)
    with pytest.raises(OutOfMemory, match=r"out of memory while it ran \(RESOURCE_EXHAUSTED: Out of memory") as refused:
        train.main(arguments(text, tmp_path / "run"))
    assert exit_code(refused.value) == 2
    kept = (tmp_path / "run" / "out-of-memory.txt").read_text()
    assert "RESOURCE_EXHAUSTED" in kept
    assert "in too_much" in kept


# ---- memory of devices -----------------------------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return a function: the memory of a machine of 8 GiB with these control groups, in GiB."""

    def of(own="", limits=(), ulimit=resource.RLIM_INFINITY):
        (tmp_path / "cgroup").write_text(own)
        for file, gib in dict(limits).items():
            path = tmp_path / "groups" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{gib if gib == 'max' else int(gib * GIB)}\n")
        monkeypatch.setattr(fit, "_OWN_CGROUPS", tmp_path / "cgroup")
        monkeypatch.setattr(fit, "_CGROUPS", tmp_path / "groups")
        monkeypatch.setattr(fit.os, "sysconf", {"SC_PAGE_SIZE": GIB, "SC_PHYS_PAGES": 8}.__getitem__)
        monkeypatch.setattr(fit.resource, "getrlimit", lambda _: (ulimit, ulimit))
        return fit.memory_of_machine() / GIB

    return of


def test_a_machine_has_its_memory_or_what_its_container_and_ulimit_leave(machine):
    assert machine() == 8
    assert machine(ulimit=GIB) == 1
    assert machine("5:memory:/docker/x\n", {"memory/memory.limit_in_bytes": 2}) == 2
    assert machine("0::/job/step\n", {"job/step/memory.max": "max", "job/memory.max": 4}) == 4
    assert machine("0::/\n", {"memory.max": 3}) == 3


def test_a_cpu_shares_its_memory_with_the_process_itself(machine):
    def left(gib):
        machine("0::/\n", {"memory.max": gib})
        return fit.memory_of(jax.devices()[0]) * jax.local_device_count() / GIB

    assert left(4) == 2.75
    assert left(1) == 0.125  # a tiny network still runs


def test_an_accelerator_has_what_its_driver_says_or_its_data_sheet():
    def on(platform, kind, limit=None):
        stats = {"bytes_limit": limit * GIB} if limit else None
        found = fit.memory_of(SimpleNamespace(platform=platform, device_kind=kind, memory_stats=lambda: stats))
        return found and found / GIB

    assert on("gpu", "NVIDIA H100 80GB HBM3", 60) == 60
    assert on("gpu", "NVIDIA H100 80GB HBM3") == 80
    assert on("gpu", "another") is None
    assert on("tpu", "TPU v5 lite", 15) == 16
    assert on("tpu", "TPU v3", 15) == 16
    assert on("tpu", "another", 15) == 15
