"""Search for settings that fit: compile the step with several remat policies, micro-batches and meshes."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Literal

from xlnet_jax.errors import InputError
from xlnet_jax.planning.estimate import Plan, make_plan
from xlnet_jax.planning.topologies import Topology
from xlnet_jax.settings.config import Config

REMATS: tuple[Literal["none", "dots", "attention", "full"], ...] = ("none", "dots", "attention", "full")
"""remat policies, from the one that recomputes nothing and keeps the most in memory"""


def search(config: Config, topology: Topology, minutes: float, report: Callable[[str], None]) -> list[Plan]:
    """Return a plan for each setting that was compiled: those that fit first, the fastest step first.

    No compilation begins after this many minutes. `report` gets a line for each setting.

    Raises InputError where the batch cannot be divided over the devices.
    """
    deadline = time.monotonic() + 60 * minutes
    plans: list[Plan] = []
    candidates = list(list_candidates(config, len(topology.devices)))
    if not candidates:
        raise InputError(
            f"data.batch-size {config.data.batch_size} cannot be divided over the {len(topology.devices)} devices"
        )
    for i, candidate in enumerate(candidates):
        if follows_from(plans, candidate):
            continue
        if time.monotonic() > deadline:
            left = sum(not follows_from(plans, other) for other in candidates[i:])
            report(f"{minutes:g} minutes are over with {left} settings left to try: --search-minutes gives it more")
            break
        fsdp = f", fsdp {candidate.mesh.fsdp}" if candidate.mesh.fsdp > 1 else ""
        report(f"trying remat {candidate.model.remat}, accumulate {candidate.optimizer.accumulate}{fsdp}")
        plans.append(make_plan(candidate, topology))
    return sorted(plans, key=lambda plan: (not plan.fits, max(plan.seconds.values())))


def list_candidates(config: Config, devices: int) -> Iterator[Config]:
    """Yield settings that divide the batch: the smallest fsdp and accumulation first, then the remat that saves most
    memory, so that a setting that fits is found early and faster ones with the time that is left."""
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
                    yield dataclasses.replace(
                        config,
                        model=dataclasses.replace(config.model, remat=remat),
                        optimizer=dataclasses.replace(config.optimizer, accumulate=accumulate),
                        mesh=dataclasses.replace(mesh, fsdp=fsdp),
                    )


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
