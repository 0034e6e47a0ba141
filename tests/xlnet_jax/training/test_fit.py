"""Runs that their devices cannot hold: the refusal, what it proposes, and what --auto-fit applies."""

import dataclasses
import functools
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

from tests.xlnet_jax.training.tiny import CONFIG, changed
from tests.xlnet_jax.training.tiny_run import arguments, records_of
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.errors import InputError
from xlnet_jax.settings.resolution import Resolution
from xlnet_jax.training import fit, sharding
from xlnet_jax.training.hosts import Process
from xlnet_jax.training.loop import Loop
from xlnet_jax.training.step import TrainState
from xlnet_jax.training.workdir import Workdir

train = COMMANDS["train"]

KIB, GIB = 2**10, 2**30
RUN = changed(CONFIG, data={"batch_size": 64})
AUTO = dataclasses.replace(RUN, auto_fit=True)


def step_of(config):
    """Return a program with the memory of a run on 8 devices, and its batch: 300 KiB of parameters, and 3,200 of
    activations without remat, half of it with."""
    mesh = sharding.make_mesh(config)
    everywhere = NamedSharding(mesh, PartitionSpec())

    def shape(*sizes):
        return jax.ShapeDtypeStruct(sizes, jnp.float32, sharding=everywhere)

    size = (400 if config.model.remat == "full" else 800) * KIB
    step = jax.jit(lambda state, batch: jnp.sort(jnp.arange(size) * batch["scale"]).sum())
    state = TrainState(shape(), shape(300 // config.mesh.fsdp, KIB // 4), (), shape(0), ())
    return SimpleNamespace(mesh=mesh, plan=state, train_step=step), {"scale": shape()}


@functools.cache
def measured():
    """Return the memory of the run's step, compiled once."""
    return fit.Memory.of(*step_of(RUN), RUN, SimpleNamespace(newest_step=None), Process())


def on(kib):
    """Return the memory of the run's step on devices with this many KiB."""
    available = kib and kib * KIB
    return dataclasses.replace(measured(), available=available, fits=measured().need.fits(available))


@pytest.mark.parametrize(
    ("kib", "values"),
    [  # Of 3,500 KiB, 2,900 are activations without remat. Full remat leaves half of them in two layers, and inputs.
        (2600, {"model.remat": "full"}),
        (2000, {"model.remat": "full", "optimizer.accumulate": 2}),
        (1000, {"model.remat": "full", "optimizer.accumulate": 4, "mesh.fsdp": 2}),
    ],
)
def test_the_refusal_is_one_line_with_the_need_by_kind_and_one_proposal(tmp_path, kib, values):
    proposed = " and ".join(f"`{name}` {value}" for name, value in values.items())
    assert str(on(kib).refusal(Workdir(tmp_path))) == (
        "out of memory: a step needs 3.42 MiB (parameters 0.29, activations and gradients 3.13) on each device, and "
        f"cpu has {kib / KIB:.2f} MiB for it. {proposed} should fit, with the same batch; `auto_fit` applies that"
    )


def test_a_device_that_is_too_small_for_any_proposal_and_one_of_unknown_memory(tmp_path):
    assert "take devices with more memory, a smaller batch" in str(on(60).refusal(Workdir(tmp_path)))
    assert on(None).fits


@pytest.fixture
def capped(monkeypatch, tmp_path):
    """Return a function that returns the settings of a run that is fitted to devices with this many KiB."""

    def cap(kib, config=AUTO, process=None):
        monkeypatch.setattr(fit, "memory_of", lambda device: kib * KIB)
        settings = Resolution(config)
        fit.build_fitting(settings, step_of, Workdir(tmp_path), process or Process())
        return settings.final()

    return cap


def test_auto_fit_applies_the_proposal_and_a_run_that_resumes_keeps_it(capped, tmp_path):
    applied = capped(2600)
    assert applied == changed(AUTO, {"remat": "full"})
    (tmp_path / "checkpoints" / "4" / "params").mkdir(parents=True)
    before = Workdir(tmp_path).resumes(type(AUTO))
    resumed, given = Resolution(AUTO), Resolution(AUTO, ["model.remat"])
    for settings in (resumed, given):
        fit.keep_fit(settings, before)
    assert capped(9000, resumed.final()) == resumed.final() == applied  # more memory changes nothing
    assert given.final() == AUTO


def test_what_fits_the_smallest_host_is_left_as_it_was_asked_for_and_what_does_not_is_refused(capped):
    assert capped(3600) == AUTO
    with pytest.raises(InputError, match=r"a step needs more than 0\.29 MiB"):
        capped(60)
    process = Process()
    process.gather = lambda name, value: [value, 2600 * KIB if name == "memory of devices" else value]
    assert capped(3600, AUTO, process).model.remat == "full"


def test_the_compilers_refusal_is_read_and_kept(tmp_path):
    def refusal(need):
        return str(dataclasses.replace(on(None), need=need, available=10 * GIB, fits=False).refusal(Workdir(tmp_path)))

    words = "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 17.5G of 15.5G hbm.\nTotal hbm usage"
    line = refusal(fit.refused_need(JaxRuntimeError(words), on(None).need.inputs))
    assert re.search(
        r"activations and gradients 17\.50.*`model.remat` full should fit.*The backend's full message", line
    )
    assert (tmp_path / "out-of-memory.txt").read_text() == words
    on_chip = fit.Need({}, None, refused="Ran out of memory in memory space vmem while allocating on stack")
    assert "on the chip: give `model.attention` plain" in refusal(on_chip)


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
    assert (
        "chosen      --model.remat full (not none), --mesh.fsdp 4 (not 1), as a step needs" in capsys.readouterr().out
    )
    assert json.loads((tmp_path / "config.json").read_text())["model"]["remat"] == "full"
    for ours, theirs in zip(records_of(tmp_path), records_of(straight), strict=True):
        assert ours.pop("split") == theirs.pop("split")
        assert ours == pytest.approx(theirs, rel=1e-4)
    assert len(needs) == 2


def test_a_run_that_fails_after_all_ends_in_one_line_and_keeps_the_backends_words(
    text, straight, tmp_path, monkeypatch
):
    def too_much(*_):
        return jnp.ones(2**44).block_until_ready()  # 64 TiB: the allocation fails

    shutil.copytree(straight, tmp_path / "run")
    monkeypatch.setattr(Loop, "finish", too_much)
    with pytest.raises(InputError, match=r"out of memory while it ran \(RESOURCE_EXHAUSTED: Out of memory"):
        train.main(arguments(text, tmp_path / "run"))
    assert "in too_much" in (tmp_path / "run" / "out-of-memory.txt").read_text()


# ---- memory of devices -----------------------------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return a function: the memory of a machine of 8 GiB with these control groups, in GiB."""

    def of(own="", limits=None, ulimit=resource.RLIM_INFINITY):
        (tmp_path / "cgroup").write_text(own)
        for file, gib in (limits or {}).items():
            path = tmp_path / "groups" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("max\n" if gib == "max" else f"{gib * GIB}\n")
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
    # A CPU shares its memory with the process itself; a tiny network runs in any case.
    for gib, left in ((4, 2.75), (1, 0.125)):
        machine("0::/\n", {"memory.max": gib})
        assert fit.memory_of(jax.devices()[0]) * jax.local_device_count() / GIB == left


@pytest.mark.parametrize(
    ("platform", "kind", "limit", "found"),
    [
        ("gpu", "NVIDIA H100 80GB HBM3", 60, 60),
        ("gpu", "NVIDIA H100 80GB HBM3", None, 80),
        ("gpu", "another", None, None),
        ("tpu", "TPU v3", 15, 16),
        ("tpu", "another", 15, 15),
    ],
)
def test_an_accelerator_has_what_its_driver_says_or_its_data_sheet(platform, kind, limit, found):
    stats = {"bytes_limit": limit * GIB} if limit else None
    device = SimpleNamespace(platform=platform, device_kind=kind, memory_stats=lambda: stats)
    assert fit.memory_of(device) == (found and found * GIB)
