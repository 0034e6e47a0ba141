"""python -m xlnet_jax.plan: does a run fit TPUs or GPUs, and how long would it take? None of them is needed."""

import os
import sys
from collections.abc import Sequence

from xlnet_jax.api import command
from xlnet_jax.objectives import command_line
from xlnet_jax.planning.request import PlanConfig, check, run_configs
from xlnet_jax.planning.topologies import ENVIRONMENT, find_topology

DOES_NOT_FIT = 1
REDIRECTED_WIDTH = 132


@command.naming_flags
def main(argv: Sequence[str]) -> int:
    """Compile the training step for each topology and print the plan; return 1 where a topology does not fit."""
    request = command_line.parse_config_as(PlanConfig, argv, "python -m xlnet_jax.plan", __doc__ or "")
    check(request)
    os.environ.update(ENVIRONMENT)
    # Import jax after the environment is set: it reads the environment once.
    from xlnet_jax.planning import report
    from xlnet_jax.planning.estimate import make_plan
    from xlnet_jax.planning.search import search
    from xlnet_jax.printing import Console

    width = None if sys.stdout.isatty() else REDIRECTED_WIDTH
    console = Console(soft_wrap=True, highlight=False, markup=False, width=width)
    topologies = [find_topology(name, request.mesh.dcn_data) for name in request.topology]
    runs = [(run, topology) for topology in topologies for run in run_configs(request, len(topology.devices))]
    if request.search:
        devices = len(topologies[0].devices)
        plans = search(runs[0][0], request.topology[0], devices, request.search_minutes, console.print)
        if plans:
            report.compare(plans, request.utilization, f"tried on {topologies[0].name}", console)
        plans = [plan for plan in plans if plan.fits][:1]
        for plan in plans:
            console.print(f"\n{report.flags(plan.config)}")
    else:
        plans = [make_plan(run, topology) for run, topology in runs]
        if len(plans) > 1:
            report.compare(plans, request.utilization, f"{request.preset}, the step of each topology", console)
    for plan in plans if len(plans) == 1 else ():
        report.show(plan, request.utilization, console)
    for plan in plans if request.breakdown else ():
        report.show_parts(plan, console)
    return 0 if plans and all(plan.fits for plan in plans) else DOES_NOT_FIT


if __name__ == "__main__":
    command.run(main)
