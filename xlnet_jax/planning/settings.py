"""Settings of the planner: those of a run, and the topologies to plan for. Imports no jax."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from xlnet_jax.errors import InputError
from xlnet_jax.objectives import presets
from xlnet_jax.objectives.registry import validate
from xlnet_jax.planning.topologies import ENVIRONMENT, find_topology
from xlnet_jax.printing import Console
from xlnet_jax.settings.config import Config
from xlnet_jax.settings.fields import above, at_least, between, operational, shared_with
from xlnet_jax.settings.resolution import Resolution

DOES_NOT_FIT = 1
REDIRECTED_WIDTH = 132


@dataclass(frozen=True)
class PlanConfig(Config):
    """Settings of a pretraining run, and the topologies to plan it for."""

    topology: tuple[str, ...] = operational((), "common")
    """TPU slices such as v3:16x32 (chips along each axis), v3-1024 or v5e-1, or GPUs such as h100-8; several names
    print a line each; with --mesh.dcn-data 2, two such slices"""
    batch_per_device: tuple[int, ...] = operational((), at_least(1), "common")
    """rows per device, instead of --data.batch-size, to compare topologies of different sizes; several numbers print a
    line each"""
    utilization: float = operational(0.4, between(0, 1, "(]"), "common")
    """share of the peak FLOPs per second that the run is assumed to reach"""
    breakdown: bool = operational(False, "common")
    """print the memory traffic and cycles of each part of the model"""
    search: bool = operational(False, "common")
    """try remat policies, accumulation and meshes, and list those that fit, the fastest first"""
    search_minutes: float = operational(10.0, above(0), "common")
    """minutes after which --search stops compiling and lists its results"""


def parse_plan(argv: Sequence[str], prog: str, description: str) -> PlanConfig:
    """Parse a command line. Raises InputError for settings that cannot be planned; prints and exits on --help."""
    settings = presets.parse_config_as(PlanConfig, argv, prog, description)
    check_plan(settings)
    return settings


def print_plans(settings: PlanConfig) -> int:
    """Compile the training step for each topology and print the plan; return 1 if one does not fit."""
    os.environ.update(ENVIRONMENT)
    # Import jax after the environment is set: it reads the environment once.
    from xlnet_jax.planning import report
    from xlnet_jax.planning.estimate import make_plan, search

    width = None if sys.stdout.isatty() else REDIRECTED_WIDTH
    console = Console(soft_wrap=True, highlight=False, markup=False, width=width)
    topologies = [find_topology(name, settings.mesh.dcn_data) for name in settings.topology]
    runs = [(run, topology) for topology in topologies for run in list_runs(settings, len(topology.devices))]
    if settings.search:
        plans = search(*runs[0], settings.search_minutes, console.print)
        if plans:
            report.compare(plans, settings.utilization, f"tried on {topologies[0].name}", console)
        plans = [plan for plan in plans if plan.fits][:1]
        for plan in plans:
            console.print(f"\n{report.flags(plan.config)}")
    else:
        plans = [make_plan(run, topology) for run, topology in runs]
        if len(plans) > 1:
            report.compare(plans, settings.utilization, f"{settings.preset}, the step of each topology", console)
    for plan in plans if len(plans) == 1 else ():
        report.show(plan, settings.utilization, console)
    for plan in plans if settings.breakdown else ():
        report.show_parts(plan, console)
    return 0 if plans and all(plan.fits for plan in plans) else DOES_NOT_FIT


def check_plan(settings: PlanConfig) -> None:
    """Raise InputError for the first setting that cannot be planned."""
    if not settings.topology:
        raise InputError(
            "topology", "", "is missing: give a TPU slice such as v3:16x32, v5e-1 or v2-8, or GPUs such as h100-8"
        )
    if settings.batch_per_device:
        only_one = "`batch_per_device` and `data.batch_size` both set the batch: give only one"
        Resolution.of(settings).refuse("data.batch_size", InputError(only_one))
    for name in ("topology", "batch_per_device"):
        if settings.search and len(getattr(settings, name)) > 1:
            raise InputError("search", "", f"accepts only one `{name}`")
    if settings.dial:
        raise InputError(settings.dial, "", "is for train, which measures a step; a plan needs the sizes and `steps`")
    for name in ("init", "tokenizer"):
        if getattr(settings, name):
            raise InputError(name, "", ": a plan reads no files; give the sizes with `preset` and `model` settings")


def list_runs(settings: PlanConfig, devices: int) -> list[Config]:
    """Return the settings of the run for each of `batch_per_device`, on this many devices.

    Raises InputError if settings contradict each other.
    """
    shared = settings.mesh.tensor * settings.mesh.context
    batches = [rows * devices // shared for rows in settings.batch_per_device]
    runs = []
    for rows in batches or [settings.data.batch_size]:
        run = Resolution(shared_with(Config, settings))
        run.set({"data.batch_size": rows})
        validate(run.config)
        runs.append(run.final())
    return runs
