"""What a compiled step tells of a run: memory of a device, exchanges, and the time that a step takes at least."""

from dataclasses import dataclass

from xlnet_jax.costs.chips import GIB, Chip
from xlnet_jax.costs.flops import recomputed_operations, step_operations
from xlnet_jax.planning import hlo
from xlnet_jax.planning.compiler import Abstract, DoesNotFit, abstract_step, compile_step
from xlnet_jax.planning.topologies import Topology
from xlnet_jax.planning.traffic import Collective, collectives, memory_bytes
from xlnet_jax.settings.config import Config
from xlnet_jax.training.sharding import bytes_on_device

RESERVED = int(0.52 * GIB)
"""Bytes of a device that programs cannot have: the compiler names 15.48 GiB as available of 16, and 7.48 of 8."""


@dataclass(frozen=True)
class Traffic:
    """What the compiled step moves, on each device."""

    memory: int
    """bytes between device and memory"""
    collectives: tuple[Collective, ...]


@dataclass(frozen=True)
class Plan:
    """A training step on a topology. Plain numbers: it can be sent between processes."""

    config: Config
    topology: str
    chip: Chip
    chips: int
    devices: int
    mesh: dict[str, int]
    state: dict[str, int]
    """bytes on each device of what a step is given, by kind"""
    temporaries: int
    """bytes on each device of activations, gradients and all else that a step makes and drops"""
    program: int
    """bytes on each device of the instructions themselves"""
    available: int
    """bytes on each device that programs can have"""
    traffic: Traffic | None
    """None = the compiler refused it, as it does not fit"""
    compile_seconds: float

    @property
    def peak(self) -> int:
        """Bytes that a device must hold."""
        return sum(self.state.values()) + self.temporaries + self.program

    @property
    def fits(self) -> bool:
        """Whether the compiler took it, and a device can hold all of it."""
        return self.traffic is not None and self.peak <= self.available

    @property
    def operations(self) -> int:
        """Of one update, as the model demands."""
        return step_operations(self.config)

    @property
    def recomputed(self) -> int:
        """Operations that remat adds."""
        return recomputed_operations(self.config)

    @property
    def at_least(self) -> dict[str, float]:
        """Seconds of a step that its arithmetic, its memory traffic and its links take, each by itself at its peak."""
        arithmetic = (self.operations + self.recomputed) / (self.chips * self.chip.operations)
        if self.traffic is None:
            return {"arithmetic": arithmetic}
        per_chip = self.chip.devices
        sent = sum(c.sent for c in self.traffic.collectives if c.group > per_chip)
        return {
            "arithmetic": arithmetic,
            "memory": self.traffic.memory * per_chip / self.chip.memory_bandwidth,
            # Devices of one chip need not send the same twice.
            "links": sent / self.chip.link_bandwidth,
        }

    def step_seconds(self, utilization: float) -> float:
        """Seconds of a step whose operations run at this share of the peak, but never below what it takes at least."""
        return max(self.operations / (self.chips * self.chip.operations * utilization), *self.at_least.values())


def make_plan(config: Config, topology: Topology) -> Plan:
    """Compiles the step for the topology. InputError where the mesh does not divide it."""
    abstract = abstract_step(config, topology.devices)
    state = state_bytes(abstract)
    temporaries = program = 0
    traffic, seconds = None, 0.0
    available = topology.chip.memory // topology.chip.devices - RESERVED
    if sum(state.values()) < available:
        try:
            compiled, seconds = compile_step(abstract)
        except DoesNotFit as refused:
            temporaries = refused.needed
        else:
            stats = compiled.memory_analysis()
            given = sum(state.values())
            # Arrays of the compiler's layout are larger than their elements.
            state["padding"] = max(stats.argument_size_in_bytes - given, 0)
            temporaries = stats.temp_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
            program = stats.generated_code_size_in_bytes
            parsed = hlo.parse(compiled.as_text())
            devices = len(topology.devices)
            traffic = Traffic(memory_bytes(parsed), tuple(collectives(parsed, devices)))
    mesh = dict(abstract.program.mesh.shape)
    return Plan(
        config, topology.name, topology.chip, topology.chips, len(topology.devices), mesh, state,
        temporaries, program, available, traffic, seconds,
    )  # fmt: skip


def state_bytes(abstract: Abstract) -> dict[str, int]:
    """Bytes that a device holds of what a step is given, by kind."""
    state = abstract.program.plan.abstract
    kinds = {"parameters": state.params, "optimizer": state.opt_state, "memory of text": state.mems_ZBMD}
    kinds["batch"] = abstract.batch
    return {kind: bytes_on_device(tree) for kind, tree in kinds.items()}
