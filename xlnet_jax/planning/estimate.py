"""Compile the train step for devices that this machine lacks and estimate the run: memory, collectives, lower bounds
of the step time and the compiler's estimate. Also search for settings that fit.
"""

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from xlnet_jax.costs import Chip
from xlnet_jax.errors import InputError
from xlnet_jax.objectives.registry import recomputed_flops, step_flops
from xlnet_jax.planning import hlo
from xlnet_jax.planning.step_cost import Collective, Cost, StepPart, collectives, cost_by_part
from xlnet_jax.planning.topologies import Topology
from xlnet_jax.settings.config import Config
from xlnet_jax.settings.fields import with_values
from xlnet_jax.training import sharding
from xlnet_jax.training.attention import choose_attention
from xlnet_jax.training.fit import Need, compile_step, input_bytes
from xlnet_jax.training.step import AbstractBatch, Program, pretraining_program


def abstract_step(config: Config, devices: Sequence[Any]) -> tuple[Program[Any], AbstractBatch]:
    """Return the program that `train` would run on these devices, with the attention that it would choose, and the
    shapes of its batch.

    Raises InputError if the mesh does not divide the devices, the network or the batch, or if no attention kernel
    supports the settings.
    """
    attention, _ = choose_attention(config, sharding.make_mesh(config, devices))
    return pretraining_program(config, attention, devices)


@dataclass(frozen=True)
class Plan:
    """Train step on a topology."""

    config: Config
    topology: Topology
    mesh: dict[str, int]
    need: Need
    """bytes on each device"""
    parts: dict[StepPart, Cost] | None = None
    """memory traffic and cycles of a step on each device, by part of the model; None = it does not fit, so it was not
    compiled"""
    collectives: tuple[Collective, ...] = ()
    compile_seconds: float = 0.0

    @property
    def chip(self) -> Chip:
        return self.topology.chip

    @property
    def total(self) -> Cost:
        """Memory traffic and cycles of a step on each device."""
        return functools.reduce(Cost.plus, (self.parts or {}).values(), Cost())

    @property
    def peak(self) -> int:
        """Most bytes that a device holds at once; at least, if the compiler refused the step without a number."""
        has_no_number = self.need.refused and self.need.temporaries is None
        return self.need.known + (self.topology.available if has_no_number else 0)

    @property
    def fits(self) -> bool:
        """True if the step compiles, and a device can hold all of it."""
        return self.parts is not None and self.peak <= self.topology.available

    @property
    def flops(self) -> int:
        """FLOPs of one step, without those that remat recomputes."""
        return step_flops(self.config)

    @property
    def tokens(self) -> int:
        """Tokens in the windows of one step."""
        return self.config.data.batch_size * self.config.data.seq_len

    @property
    def peak_flops(self) -> float:
        """Peak FLOPs per second of all chips."""
        return self.topology.chips * self.chip.flops

    @property
    def has_floor(self) -> bool:
        """True if the compiler's estimate is a lower bound, because it counts some kernels at their peak FLOPs."""
        return self.total.kernels_at_least > 0

    @property
    def at_least(self) -> dict[str, float]:
        """Seconds of a step for arithmetic, memory traffic and links, each at its peak rate."""
        arithmetic = (self.flops + recomputed_flops(self.config)) / self.peak_flops
        if self.parts is None:
            return {"arithmetic": arithmetic}
        per_chip = self.chip.devices
        sent = sum(c.sent for c in self.collectives if c.group > per_chip)
        return {
            "arithmetic": arithmetic,
            "memory": self.total.bytes * per_chip / self.chip.memory_bandwidth,
            # Two devices on one chip need not send the same data twice.
            "links": sent / self.chip.link_bandwidth if self.chip.link_bandwidth else 0.0,
        }

    @property
    def compilers_estimate(self) -> float:
        """Seconds of a step by the cycles of all instructions but collectives; 0 if not compiled, and on GPUs, whose
        compiler gives no cycles."""
        return self._seconds_of(self.total.all_cycles)

    @property
    def without_overlap(self) -> dict[str, float]:
        """Seconds of a step that the compiler's estimate leaves out, because it takes them to overlap with other
        instructions: asynchronous copies, the memory traffic of kernels, and collectives."""
        return {
            "asynchronous copies": self._seconds_of(self.total.copy_cycles),
            "traffic of kernels": self._seconds_of(self.total.kernel_traffic_cycles),
            "collectives": self.at_least.get("links", 0.0),
        }

    def _seconds_of(self, cycles: int) -> float:
        return cycles / self.chip.clock if self.chip.clock else 0.0

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of a step by each bound, and by the compiler's estimate."""
        return self.at_least | ({"cycles": self.compilers_estimate} if self.compilers_estimate else {})

    @property
    def mfu(self) -> dict[str, float]:
        """Share of the peak FLOPs that the model reaches, for each of `seconds`."""
        at_peak = self.flops / self.peak_flops
        return {name: at_peak / seconds for name, seconds in self.seconds.items() if seconds}

    def step_seconds(self, utilization: float) -> float:
        """Return the seconds of a step at this share of the peak FLOPs, or the longest of `seconds` if longer."""
        return max(self.flops / (self.peak_flops * utilization), *self.seconds.values())


def make_plan(config: Config, topology: Topology) -> Plan:
    """Compile the step for the topology. Raises InputError if the mesh does not divide its devices."""
    program, batch = abstract_step(config, topology.devices)
    config = cast(Config, program.config)
    mesh, need = dict(program.mesh.shape), Need(input_bytes(program, batch), None)
    if need.known >= topology.available:
        return Plan(config, topology, mesh, need)
    need, compiled, seconds = compile_step(program, batch)
    if not compiled:
        return Plan(config, topology, mesh, need)
    parsed = hlo.parse(compiled.as_text())
    parts, found = cost_by_part(parsed, topology.chip), tuple(collectives(parsed, len(topology.devices)))
    return Plan(config, topology, mesh, need, parts, found, seconds)


# ---- search ----------------------------------------------------------------------------------------------------------

Remat: TypeAlias = Literal["none", "dots", "feed_forward", "attention", "full"]
REMATS: tuple[Remat, ...] = ("none", "dots", "feed_forward", "attention", "full")
"""remat policies, from none, which keeps the most in memory, to full, which recomputes the most"""


def search(config: Config, topology: Topology, minutes: float, report: Callable[[str], None]) -> list[Plan]:
    """Return a plan for each setting that was compiled: those that fit first, the fastest step first.

    No compilation begins after this many minutes. `report` is called with a line for each setting.

    Raises InputError if the batch cannot be divided over the devices.
    """
    deadline = time.monotonic() + 60 * minutes
    plans: list[Plan] = []
    candidates = list(list_candidates(config, len(topology.devices)))
    if not candidates:
        raise InputError(
            "data.batch_size",
            config.data.batch_size,
            f"cannot be divided over the {len(topology.devices)} devices: give a multiple",
        )
    for i, candidate in enumerate(candidates):
        if follows_from(plans, candidate):
            continue
        if time.monotonic() > deadline:
            left = sum(not follows_from(plans, other) for other in candidates[i:])
            report(f"stopped after {minutes:g} minutes with {left} settings left to try: raise --search-minutes")
            break
        fsdp = f", fsdp {candidate.mesh.fsdp}" if candidate.mesh.fsdp > 1 else ""
        report(f"trying remat {candidate.model.remat}, accumulate {candidate.optimizer.accumulate}{fsdp}")
        plans.append(make_plan(candidate, topology))
    return sorted(plans, key=lambda plan: (not plan.fits, max(plan.seconds.values())))


def list_candidates(config: Config, devices: int) -> Iterator[Config]:
    """Yield settings that divide the batch: small fsdp and accumulation first, and among them the remat that saves the
    most memory. So the search finds a setting that fits early, and then faster ones."""
    rows, mesh = config.data.batch_size, config.mesh
    sharing = mesh.tensor * mesh.context  # devices that share a row
    for fsdp in (1, 8, 32):
        for accumulate in (1, 2, 4, 8, 16, 32):
            for remat in reversed(REMATS):
                if (
                    devices % (fsdp * sharing * mesh.dcn_data) == 0
                    and rows % (devices // sharing * accumulate) == 0
                    and config.model.d_model % fsdp == 0
                ):
                    values = {"model.remat": remat, "optimizer.accumulate": accumulate, "mesh.fsdp": fsdp}
                    yield with_values(config, values)


def follows_from(plans: list[Plan], candidate: Config) -> bool:
    """Return True if a plan on the same mesh implies that the candidate does not fit, or that it fits and is slower."""
    remat, accumulate = REMATS.index(candidate.model.remat), candidate.optimizer.accumulate
    for plan in plans:
        if plan.config.mesh != candidate.mesh:
            continue
        other_remat, other_accumulate = REMATS.index(plan.config.model.remat), plan.config.optimizer.accumulate
        if plan.fits and remat >= other_remat and accumulate >= other_accumulate:
            return True
        if not plan.fits and remat <= other_remat and accumulate <= other_accumulate:
            return True
    return False
