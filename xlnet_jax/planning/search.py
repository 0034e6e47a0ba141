"""Search for settings that fit: remat, accumulation and mesh, each compiled in a process that can be killed.

The environment of the compiler (topologies.ENVIRONMENT) must be set, because these processes inherit it.
"""

import dataclasses
import multiprocessing
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Literal

from xlnet_jax.errors import InputError
from xlnet_jax.planning.estimate import Plan, make_plan
from xlnet_jax.planning.topologies import find_topology
from xlnet_jax.settings.config import Config

LIGHTEST_FIRST: tuple[Literal["none", "dots", "attention", "full"], ...] = ("none", "dots", "attention", "full")
"""Remat policies, from the one that recomputes nothing and keeps the most in memory."""


def search(config: Config, topology: str, devices: int, minutes: float, tell: Callable[[str], None]) -> list[Plan]:
    """Return the plans that were tried: those that fit first, the fastest step first. It is empty where time ran out.

    Raises InputError where the batch cannot be divided over the devices.
    """
    deadline = time.monotonic() + 60 * minutes
    tried: list[Plan] = []
    found = list(candidates(config, devices))
    if not found:
        raise InputError(f"data.batch-size {config.data.batch_size} cannot be divided over the {devices} devices")
    for i, candidate in enumerate(found):
        if _is_settled(candidate, tried):
            continue
        tell(f"trying {_name(candidate)}")
        plan = _plan_until(candidate, topology, deadline)
        if plan is None:
            left = sum(not _is_settled(other, tried) for other in found[i:])
            tell(f"{minutes:g} minutes are over with {left} settings left to try: --search-minutes gives it more")
            break
        tried.append(plan)
    return sorted(tried, key=lambda plan: (not plan.fits, max(plan.seconds.values())))


def candidates(config: Config, devices: int) -> Iterator[Config]:
    """Yield settings that divide the batch: the smallest fsdp and accumulation first, then the remat that saves most
    memory, so that a setting that fits is found early and faster ones with the time that is left."""
    rows, mesh = config.data.batch_size, config.mesh
    sharing = mesh.tensor * mesh.context  # devices that share the rows of one
    for fsdp in (1, 8, 32):
        for accumulate in (1, 2, 4, 8, 16, 32):
            for remat in reversed(LIGHTEST_FIRST):
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


def _is_settled(candidate: Config, tried: list[Plan]) -> bool:
    """Return True if a tried plan implies that this one does not fit, or that it fits and is slower."""

    def place(config: Config) -> tuple[int, int]:
        return LIGHTEST_FIRST.index(config.model.remat), config.optimizer.accumulate

    remat, accumulate = place(candidate)
    for plan in tried:
        if plan.config.mesh != candidate.mesh:
            continue
        its_remat, its_accumulate = place(plan.config)
        if plan.fits and remat >= its_remat and accumulate >= its_accumulate:
            return True
        if not plan.fits and remat <= its_remat and accumulate <= its_accumulate:
            return True
    return False


def _plan_until(config: Config, topology: str, deadline: float) -> Plan | None:
    """Return the plan, or None at the deadline."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    worker = context.Process(target=_send_plan, args=(sender, config, topology))
    worker.start()
    sender.close()
    try:
        if not receiver.poll(max(deadline - time.monotonic(), 0)):
            return None
        answer = receiver.recv()
    except EOFError:
        raise InputError(
            f"the process that compiled {_name(config)} was killed or crashed: compiling wants some GiB of memory"
        ) from None
    finally:
        worker.kill()  # terminate() would make the compiler print a stack trace
        worker.join()
    if isinstance(answer, Exception):
        raise answer
    return answer


def _send_plan(sender: Connection, config: Config, topology: str) -> None:
    try:
        sender.send(make_plan(config, find_topology(topology, config.mesh.dcn_data)))
    except InputError as mistake:
        sender.send(mistake)


def _name(config: Config) -> str:
    fsdp = f", fsdp {config.mesh.fsdp}" if config.mesh.fsdp > 1 else ""
    return f"remat {config.model.remat}, accumulate {config.optimizer.accumulate}{fsdp}"
