"""The memory that a training step needs, and whether the devices have it.

The step is compiled before training starts. If it needs more memory than a device has, the run ends with one line: the
need by kind, as the compiler counts it, and settings that should fit. With `auto_fit` the run uses those settings.
"""

import contextlib
import os
import re
import resource
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from xlnet_jax.costs import chip_of
from xlnet_jax.errors import InputError, first_line, is_out_of_memory
from xlnet_jax.settings.config import RunConfig
from xlnet_jax.settings.resolution import Resolution
from xlnet_jax.storage.files import write_durably
from xlnet_jax.training import sharding
from xlnet_jax.training.hosts import Process
from xlnet_jax.training.step import AbstractBatch, Program
from xlnet_jax.training.workdir import Workdir


@dataclass(frozen=True)
class Need:
    """Bytes that a step needs on each device."""

    inputs: dict[str, int]
    """parameters, optimizer, memory of text, batch, and the padding that the compiler adds to them"""
    temporaries: int | None
    """activations, gradients and everything else that a step allocates; None = unknown, because the step was not
    compiled, or the compiler refused it without a number"""
    program: int = 0
    """instructions of the program"""
    refused: str = ""
    """the compiler's message, if it found that the step does not fit"""

    @property
    def known(self) -> int:
        """Sum of what is known; if the step was compiled, this is the peak memory of a device."""
        return sum(self.inputs.values()) + (self.temporaries or 0) + self.program

    def fits(self, available: int | None) -> bool:
        """Return True if the step was compiled and needs at most these bytes; None = unknown."""
        return self.temporaries is not None and not self.refused and (available is None or self.known <= available)

    def in_words(self) -> str:
        """Return e.g. '21.40 GiB (parameters 0.36, optimizer 0.71, activations and gradients 20.33)'."""
        sizes = self.inputs | {"activations and gradients": self.temporaries or 0, "program": self.program}
        scale, unit = size_unit(self.known)
        shown = {kind: f"{size / scale:.2f}" for kind, size in sizes.items()}
        kinds = ", ".join(f"{kind} {number}" for kind, number in shown.items() if number != "0.00")
        if self.temporaries is None:
            return f"more than {self.known / scale:.2f} {unit} ({kinds}, and activations and gradients)"
        return f"{self.known / scale:.2f} {unit} ({kinds})"


def size_unit(size: int) -> tuple[int, str]:
    """Return a unit of memory, in bytes, and its name."""
    return (2**30, "GiB") if size >= 2**30 else (2**20, "MiB")


def input_bytes(program: Program[Any], batch: AbstractBatch) -> dict[str, int]:
    """Return the bytes of a step's inputs on each device, by kind; nothing is compiled."""
    state = program.plan
    kinds = {"parameters": state.params, "optimizer": state.opt_state, "memory of text": state.mems_ZBMD}
    return {kind: sharding.bytes_on_device(tree) for kind, tree in (kinds | {"batch": batch}).items()}


def compile_step(program: Program[Any], batch: AbstractBatch) -> tuple[Need, Any, float]:
    """Compile the train step. Return what it needs, the compiled step (None if the compiler refuses it for its memory),
    and the seconds that the compilation took.

    jax caches it: the first call of `program.train_step` on such a batch does not compile again.
    """
    inputs, start = input_bytes(program, batch), time.perf_counter()
    jitted: Any = program.train_step
    try:
        compiled = jitted.lower(program.plan, batch).compile()
    except Exception as error:
        return refused_need(error, inputs), None, time.perf_counter() - start
    return compiled_need(compiled, inputs), compiled, time.perf_counter() - start


def compiled_need(compiled: Any, inputs: dict[str, int]) -> Need:
    """Return what a compiled step needs. inputs: its `input_bytes`."""
    stats = compiled.memory_analysis()
    padding = max(stats.argument_size_in_bytes - sum(inputs.values()), 0)  # the compiler pads arrays to its layout
    temporaries = stats.temp_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    return Need(inputs | {"padding": padding}, temporaries, stats.generated_code_size_in_bytes)


_REFUSAL = re.compile(
    r"temporaries \((?P<needed>[\d.]+)(?P<unit>[KMG])\) exceeds available HBM"
    r"|Used (?P<used>[\d.]+)(?P<used_unit>[KMG]) of [\d.]+[KMG]"
)


def refused_need(error: Exception, inputs: dict[str, int]) -> Need:
    """Return what a step needs that the compiler refused for its memory, read from its message. Raises other errors."""
    match = _REFUSAL.search(str(error))
    if not match and not is_out_of_memory(error):
        raise error from None
    number, unit = (group for group in match.groups() if group) if match else ("", "")
    scale = {"K": 2**10, "M": 2**20, "G": 2**30}
    return Need(inputs, int(float(number) * scale[unit]) if match else None, refused=str(error))


C = TypeVar("C", bound=RunConfig)

PROPOSED = ("model.remat", "optimizer.accumulate", "mesh.fsdp")
HELD_BY_PROCESS = 5 << 28
"""Bytes that Python, jax, its compiler and the input pipeline need besides the step of a small network, as measured. It
is a constant, so that the same settings on the same machine always lead to the same choice."""
SPARE = 0.9
"""Share of the available memory that a proposal, which is an estimate, may fill"""
_ON_CHIP = re.compile(r"memory space [vcs]mem|scoped vmem|shared memory", re.IGNORECASE)
_CGROUPS, _OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def memory_of(device: jax.Device) -> int | None:
    """Return the bytes that programs can use on a device of this process; None if unknown.

    A GPU reports its share, after XLA_PYTHON_CLIENT_MEM_FRACTION. The devices of a CPU share the memory of the machine
    with the process. For a TPU it is the whole memory: the compiler refuses what exceeds the part for programs.
    """
    if device.platform == "cpu":
        whole = memory_of_machine()
        return max(whole - HELD_BY_PROCESS, whole // 8) // device.client.local_device_count()
    try:
        stats = device.memory_stats() or {}
    except jax.errors.JaxRuntimeError:  # some backends have none
        stats = {}
    chip = chip_of(device.device_kind)
    by_data_sheet = chip.memory // chip.devices if chip else None
    by_driver: int | None = stats.get("bytes_limit")
    return by_data_sheet or by_driver if device.platform == "tpu" else by_driver or by_data_sheet


def memory_of_machine() -> int:
    """Return the bytes of memory that this process may use: the least of the machine's memory and the limits of its
    container (control groups, either version) and of `ulimit -v`."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [physical, resource.getrlimit(resource.RLIMIT_AS)[0]]
    own = _OWN_CGROUPS.read_text() if _OWN_CGROUPS.exists() else ""
    for kinds, group in re.findall(r"^\d+:([^:]*):/?(.*)$", own, re.MULTILINE):
        top, name = (_CGROUPS / kinds, "memory.limit_in_bytes") if kinds else (_CGROUPS, "memory.max")
        # Inside a container, its own group is at the top, although the path differs.
        for folder in (top / group, *(top / group).parents):
            with contextlib.suppress(OSError, ValueError):  # no limit here
                limits.append(int((folder / name).read_text()))
    return min(limit for limit in limits if limit != resource.RLIM_INFINITY)


@dataclass(frozen=True)
class Memory:
    """The memory that a step needs, and that a device has; the same in all processes."""

    config: RunConfig
    mesh: Mesh
    need: Need
    available: int | None
    """bytes, the minimum over the devices of all processes; None = unknown"""
    fits: bool
    """on the devices of all processes"""
    seconds: float
    """spent on compiling"""

    @classmethod
    def of(
        cls, program: Program[Any], batch: AbstractBatch, config: RunConfig, workdir: Workdir, process: Process
    ) -> "Memory":
        """Compile the step of a run, unless the run is finished or the inputs alone exceed the available memory."""
        gather, need, seconds = process.gather, Need(input_bytes(program, batch), None), 0.0
        if gather("newest step", workdir.newest_step)[0] == config.steps:
            return cls(config, program.mesh, need, None, True, seconds)
        known = [size for size in gather("memory of devices", memory_of(jax.local_devices()[0])) if size]
        available = min(known, default=None)
        if available is None or need.known <= available:
            need, _, seconds = compile_step(program, batch)
        fits = all(gather("steps that fit", need.fits(available)))
        return cls(config, program.mesh, need, available, fits, seconds)

    def in_words(self) -> str:
        """Return the need and what is available."""
        device, has = jax.local_devices()[0].device_kind, ""
        if self.available is not None:
            scale, unit = size_unit(self.available)
            has = f", and {device} has {self.available / scale:.2f} {unit} for it"
        return f"a step needs {self.need.in_words()} on each device{has}"

    def propose(self) -> dict[str, str | int]:
        """Return the cheapest settings that should fit; {} if none do.

        Try full remat, then also more micro-batches, down to one row per device, then the same with parameters and
        optimizer state divided over more devices. The global batch does not change. Full remat keeps the inputs of the
        layers and the activations of one layer at a time. Activations shrink in proportion to the rows of a
        micro-batch. Gradients are as large as the parameters, and micro-batches accumulate them in a second copy.
        """
        config, inputs = self.config, self.need.inputs
        most = self.need.known if self.fits or self.available is None else self.available
        accumulate, layers = config.optimizer.accumulate, config.model.num_layers
        rows = config.data.batch_size // (sharding.batch_shards(self.mesh) * accumulate)
        state, gradients = inputs["parameters"] + inputs["optimizer"], inputs["parameters"]
        activations = kept = max((self.need.temporaries or 0) - gradients, 0)
        if config.model.remat != "full":
            of_layers = layers * rows * config.data.seq_len * config.model.d_model
            kept = min(activations, of_layers * jnp.dtype(config.model.dtype).itemsize + activations // layers)
        for fsdp in _divisors(self.mesh.shape["data"] // config.mesh.dcn_data):
            for parts in _divisors(rows) if config.model.d_model % (config.mesh.fsdp * fsdp) == 0 else ():
                sets = 2 if accumulate * parts > 1 else 1
                divided = (state + sets * gradients) // fsdp + kept // parts
                values: Any = zip(PROPOSED, ("full", accumulate * parts, config.mesh.fsdp * fsdp), strict=True)
                changed = {name: value for name, value in values if value != attrgetter(name)(config)}
                if changed and divided + sum(inputs.values()) - state + self.need.program <= SPARE * most:
                    return changed
        return {}

    def refusal(self, workdir: Workdir, error: Exception | None = None) -> InputError:
        """Return the error for a step that does not fit, or that should fit but raised this out-of-memory `error`. The
        backend's message is written to the workdir."""
        words = self.need.refused
        if _ON_CHIP.search(words):
            advice = "A kernel needs more memory than there is on the chip: give `model.attention` plain"
        elif values := self.propose():
            advice = f"{_in_words(values)} should fit, with the same batch"
            advice += "" if self.config.auto_fit else "; `auto_fit` applies that"
        else:
            advice = (
                "Neither `model.remat` full nor `optimizer.accumulate` or `mesh.fsdp` makes it fit: take devices with "
                "more memory, a smaller batch, or a smaller network or window"
            )
        happened = "out of memory"
        if error:
            words = "".join(traceback.format_exception(error))
            happened += f" while it ran ({first_line(error)})"
        kept = ""
        if words:
            file, process = workdir.out_of_memory, jax.process_index()
            file = file.with_name(f"{file.stem}-{process}{file.suffix}") if process else file
            write_durably(file, words.encode())
            kept = f". The backend's full message is in {file}"
        return InputError(f"{happened}: {self.in_words()}. {advice}{kept}")


def keep_fit(settings: Resolution[C], before: C | None) -> None:
    """Choose what `auto_fit` chose when the run began, if these devices allow it, so that a run that resumes computes
    the same numbers. before: its config.json; None = the run starts."""
    if settings.config.auto_fit and before and before.auto_fit:
        settings.choose_first(({name: attrgetter(name)(before) for name in PROPOSED}, {}), _has_mesh)


def _has_mesh(config: RunConfig) -> bool:
    """Return True if the devices can be arranged as the settings say."""
    with contextlib.suppress(InputError):
        sharding.make_mesh(config)
        return True
    return False


def build_fitting(
    settings: Resolution[C],
    build: Callable[[C], tuple[Program[Any], AbstractBatch]],
    workdir: Workdir,
    process: Process,
) -> tuple[Program[Any], Memory]:
    """Return the program of a run, with its step compiled, and the memory that the step needs. If the step of a new run
    does not fit and the settings have `auto_fit`, set what `Memory.propose` returns.

    build: makes a program from settings, and the shapes of its largest batch. Raises InputError if it does not fit.
    """

    def compiled() -> tuple[Program[Any], Memory]:
        config = settings.final()
        program, batch = build(config)
        return program, Memory.of(program, batch, config, workdir, process)

    program, memory = compiled()
    may_change = settings.config.auto_fit and not process.gather("checkpoints", workdir.has_checkpoints)[0]
    if not memory.fits and may_change and (values := memory.propose()):
        settings.set(values, memory.in_words())
        process.console.print(settings.log[-1])
        if process.first:
            workdir.write_settings(settings.config)
        program, memory = compiled()
    if not memory.fits:
        raise memory.refusal(workdir)
    return program, memory


def _in_words(values: dict[str, str | int]) -> str:
    return " and ".join(f"`{name}` {value}" for name, value in values.items())


def _divisors(number: int) -> list[int]:
    """Return divisors of a number from 1 to the number itself, each at least twice the previous one."""
    found = [1]
    for divisor in range(2, number + 1):
        if number % divisor == 0 and divisor >= 2 * found[-1] and (divisor == number or 2 * divisor <= number):
            found.append(divisor)
    return found
