"""Print plans."""

from collections import defaultdict
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from rich import box
from rich.console import Console
from rich.table import Table

from xlnet_jax.costs import GIB
from xlnet_jax.objectives.registry import needed_flops, recomputed_flops
from xlnet_jax.planning.estimate import Plan
from xlnet_jax.planning.scaling_law import predict_loss
from xlnet_jax.planning.step_cost import Cost
from xlnet_jax.planning.topologies import GPU_MEMORY_SIZES, memory_for_programs
from xlnet_jax.printing import counted
from xlnet_jax.settings.config import Config

DAY = 86_400  # seconds
PROVES = (
    "This shows that the step compiles for the topology and fits a device. It does not show speed: the times are "
    "bounds and the compiler's estimate, not measurements; no TPU has run this code yet. It does not show numerics: "
    "nothing was computed."
)
_BOUND = {"arithmetic": "compute-bound", "memory": "memory-bound", "links": "bound by the links"}
GPUS_LACK = (
    "A plan for GPUs has no compiler's estimate, because compiled programs state no cycles. The compiler of a run also "
    "chooses matrix-product algorithms by timing them on the GPU, so memory and traffic of the run can differ."
)


def show(plan: Plan, utilization: float, console: Console) -> None:
    """Print one plan in full."""
    c, there = plan.config, plan.topology
    where = f"{there.name}: {counted(there.chips, 'chip')}, {counted(len(there.devices), 'device')} as {_mesh(plan)}"
    console.print(f"{where}, batch {c.data.batch_size:,} x {c.data.seq_len}")
    console.print(
        f"{c.preset}, {c.objective}, {c.model.dtype}, remat {c.model.remat}, accumulate {c.optimizer.accumulate}, "
        f"attention {c.model.attention}, {_compiled(plan)}\n\n{_verdict(plan)}\n"
    )
    _memory(plan, console)
    if plan.parts:
        _collectives(plan, console)
        _time(plan, utilization, console)
    console.print(f"{predict_loss(c)}\n")
    console.print(PROVES)
    if not plan.chip.clock:
        console.print(GPUS_LACK)


def compare(plans: Sequence[Plan], utilization: float, title: str, console: Console) -> None:
    """Print a table with a line for each plan."""
    table = Table(
        "topology", "devices", "batch", "mesh", "remat", "accumulate", "fits", "state", "peak", "step at least",
        "estimate", "tokens/s", "days", title=title, box=box.SIMPLE,
    )  # fmt: skip
    for plan in plans:
        c = plan.config
        seconds = plan.step_seconds(utilization)
        timed = (
            _seconds(max(plan.at_least.values())),
            _estimate(plan),
            f"{plan.tokens / seconds:,.0f}",
            f"{c.steps * seconds / DAY:.1f}",
        )
        table.add_row(
            plan.topology.name, f"{len(plan.topology.devices):,}", f"{c.data.batch_size:,}", _mesh(plan), c.model.remat,
            str(c.optimizer.accumulate), "yes" if plan.fits else "no", _gib(sum(plan.need.inputs.values())),
            _gib(plan.peak), *(timed if plan.parts else len(timed) * ("",)),
        )  # fmt: skip
    console.print(table)
    console.print(
        "state, peak: GiB per device; estimate: the compiler's, of a step; tokens/s and days of "
        f"{plans[0].config.steps:,} steps at {utilization:.0%} of the peak FLOPs, or at bound or estimate if slower"
    )
    for name in dict.fromkeys(plan.topology.name for plan in plans if not plan.chip.clock):
        _cards([plan for plan in plans if plan.topology.name == name], console)


def _cards(plans: Sequence[Plan], console: Console) -> None:
    """Print how many rows per device GPUs of common sizes can hold, if the plans of a topology differ in their rows.

    A step needs the same memory on every GPU, and the need grows almost linearly with the rows: extrapolate the line
    through the fewest and the most rows.
    """
    compiled = [plan for plan in plans if plan.parts]
    peaks = {plan.config.data.batch_size // (plan.mesh["data"] * plan.mesh["fsdp"]): plan.peak for plan in compiled}
    fewest, most = min(peaks, default=0), max(peaks, default=0)
    if not peaks or peaks[most] <= peaks[fewest]:
        return
    of_a_row = (peaks[most] - peaks[fewest]) / (most - fewest)
    rows = {card: fewest + int((memory_for_programs(card) - peaks[fewest]) // of_a_row) for card in GPU_MEMORY_SIZES}
    listed = ", ".join(f"{card} GB {max(n, 0):,}" for card, n in rows.items())
    console.print(f"rows that fit on such a GPU, by a line through {fewest:,} and {most:,} rows per device: {listed}")


def _verdict(plan: Plan) -> str:
    needed, there = f"{_gib(plan.peak)} GiB per device", f"{_gib(plan.topology.available)} GiB that programs can have"
    card = next(
        (card for card in GPU_MEMORY_SIZES if not plan.chip.clock and plan.peak <= memory_for_programs(card)), None
    )
    if plan.fits:
        return f"FITS: {needed} of the {there}" + (f"; GPUs of {card} GB could hold it" if card else "")
    return f"DOES NOT FIT: {needed} of the {there}; --search tries remat, accumulation and meshes"


def _compiled(plan: Plan) -> str:
    if plan.parts:
        return f"compiled in {plan.compile_seconds:.0f} s"
    return "refused by the compiler" if plan.need.refused else "not compiled, because its inputs alone are too large"


def _memory(plan: Plan, console: Console) -> None:
    table = Table("memory of a device", "GiB", box=box.SIMPLE)
    table.columns[1].justify = "right"
    for kind, size in plan.need.inputs.items():
        table.add_row(kind, _gib(size))
    table.add_row("activations, gradients, temporaries", _gib(plan.need.temporaries or 0))
    table.add_row("program", _gib(plan.need.program))
    table.add_section()
    table.add_row("peak", _gib(plan.peak))
    table.add_row("what the device has", _gib(plan.chip.memory // plan.chip.devices))
    console.print(table)


def _collectives(plan: Plan, console: Console) -> None:
    by_kind: dict[tuple[str, int], list[float]] = defaultdict(lambda: [0, 0, 0.0])
    for c in plan.collectives:
        row = by_kind[c.kind, c.group]
        row[0], row[1], row[2] = row[0] + c.times, row[1] + c.times * c.bytes, row[2] + c.sent
    if not by_kind:
        return
    table = Table(
        "collectives of a step", "devices in a group", "times", "MB per device", "MB sent at least", box=box.SIMPLE
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for (kind, group), (times, size, sent) in sorted(by_kind.items(), key=lambda item: -item[1][1]):
        table.add_row(kind, f"{group:,}", f"{times:,.0f}", f"{size / 1e6:,.1f}", f"{sent / 1e6:,.1f}")
    console.print(table)


def _time(plan: Plan, utilization: float, console: Console) -> None:
    c, chip, cost = plan.config, plan.chip, plan.total
    bounds, seconds, needed = plan.at_least, plan.step_seconds(utilization), needed_flops(c)
    slowest, limit = (max(times, key=lambda name: times[name]) for times in (bounds, plan.seconds))
    reached = ""
    if seconds <= plan.seconds[limit]:
        reached = ", which is the compiler's estimate" if limit == "cycles" else ", which is the bound"
    days = c.steps * seconds / DAY
    memory = f"{cost.bytes / 1e9:,.1f} GB per device, at {chip.memory_bandwidth / 1e9:,.0f} GB/s per chip"
    links = f"{_seconds(bounds['links'])} at {chip.link_bandwidth / 1e9:,.0f} GB/s out of a chip"
    rows: list[tuple[str, str]] = [
        (
            "FLOPs of the model",
            f"{plan.flops / 1e12:,.1f} x 10^12 per step; {needed / 1e12:,.1f} that its result needs",
        ),
        (f"recomputed (remat {c.model.remat})", f"{recomputed_flops(c) / 1e12:,.1f} x 10^12"),
        ("arithmetic", f"{_seconds(bounds['arithmetic'])} at {chip.flops / 1e12:,.0f} x 10^12/s per chip"),
        ("memory traffic", f"{_seconds(bounds['memory'])}: {memory}"),
        ("links", links if chip.link_bandwidth else "PCIe, not counted"),
        *([("cycles", _cycles(cost))] if chip.clock else []),
        ("a step takes at least", f"{_seconds(bounds[slowest])}, {_BOUND[slowest]}"),
        *(_estimates(plan) if chip.clock else []),
        ("utilization (MFU)", _utilizations(plan, plan.flops)),
        ("by the FLOPs that are needed", _utilizations(plan, needed)),
        (
            f"at {utilization:.0%} utilization",
            f"{_seconds(seconds)} per step{reached}: {plan.tokens / seconds:,.0f} tokens/s",
        ),
        ("schedule", f"{c.steps:,} steps: {days:,.1f} days, {24 * days * plan.topology.chips:,.0f} chip-hours"),
    ]
    table = Table(box=box.SIMPLE, show_header=False)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _estimates(plan: Plan) -> list[tuple[str, str]]:
    """Return the compiler's estimate, and its bounds by how much of what it leaves out overlaps with the rest."""
    left_out, whole = plan.without_overlap, max(plan.seconds.values())
    most = plan.compilers_estimate + sum(left_out.values())
    listed = ", ".join(f"{name} {_seconds(seconds)}" for name, seconds in left_out.items() if seconds)
    at_most = "" if plan.has_floor else f", at most {_seconds(most)} if nothing does"
    return [
        ("the compiler's estimate", f"{_estimate(plan)} at {plan.chip.clock / 1e9:.2f} GHz, by libtpu {_libtpu()}"),
        ("not in the estimate", listed or "nothing"),
        ("a step takes", f"{_seconds(whole)} if all of that overlaps{at_most}"),
    ]


def _libtpu() -> str:
    """Return the version of the TPU compiler."""
    try:
        return version("libtpu")
    except PackageNotFoundError:
        return "of an unknown version"


def _utilizations(plan: Plan, flops: int) -> str:
    """Return the utilizations by a count of FLOPs, lowest first. A run cannot exceed those of a bound."""
    counted = flops / plan.flops
    names = {"memory": "memory traffic", "cycles": "the compiler's estimate"}
    shares = [
        ("" if name == "cycles" and not plan.has_floor else "at most ")
        + f"{share * counted:.1%} by {names.get(name, name)}"
        for name, share in sorted(plan.mfu.items(), key=lambda item: item[1])
        if share <= 1  # above the peak: links are not the limit
    ]
    return ", ".join(shares)


def _estimate(plan: Plan) -> str:
    if not plan.chip.clock:
        return "none"
    return f"{'at least ' if plan.has_floor else ''}{_seconds(plan.compilers_estimate)}"


def _cycles(cost: Cost) -> str:
    terms = [f"{cost.cycles / 1e6:,.1f} million by the compiler"]
    if cost.kernel_cycles:
        at_least = "at least " if cost.kernels_at_least else ""
        terms.append(f"{at_least}{cost.kernel_cycles / 1e6:,.1f} in kernels")
    if cost.traffic_cycles:
        terms.append(f"{cost.traffic_cycles / 1e6:,.1f} by the traffic of other instructions")
    return " + ".join(terms)


def show_parts(plan: Plan, console: Console) -> None:
    """Print memory traffic and cycles of a step by part of the model, sorted by cycles, or by traffic on GPUs."""
    if not plan.parts:
        return
    has_cycles = plan.chip.clock > 0
    cycles = ("million cycles", "in kernels", "by traffic") if has_cycles else ()
    table = Table("part of a step", "GB", *cycles, "share", title=plan.topology.name, box=box.SIMPLE)
    for column in table.columns[1:]:
        column.justify = "right"
    total = plan.total

    def add(name: str, cost: Cost) -> None:
        numbers = (cost.cycles, cost.kernel_cycles, cost.traffic_cycles) if has_cycles else ()
        share = cost.all_cycles / max(total.all_cycles, 1) if has_cycles else cost.bytes / max(total.bytes, 1)
        table.add_row(name, f"{cost.bytes / 1e9:,.1f}", *(f"{n / 1e6:,.1f}" for n in numbers), f"{share:.1%}")

    for name, cost in sorted(plan.parts.items(), key=lambda item: (-item[1].all_cycles, -item[1].bytes)):
        add(name, cost)
    table.add_section()
    add("all", total)
    console.print(table)
    console.print(_OF_CYCLES if has_cycles else "GB: memory traffic of a device. Share: of all traffic.")


_OF_CYCLES = (
    "GB: memory traffic of a device. Million cycles: the compiler's estimates. In kernels, by traffic: cycles of "
    "kernels and, at the memory bandwidth, of other instructions that it does not estimate. Share: of all cycles."
)


def _mesh(plan: Plan) -> str:
    return " x ".join(f"{axis} {size}" for axis, size in plan.mesh.items() if size > 1) or "one"


def _gib(size: float) -> str:
    return f"{size / GIB:,.2f}"


def _seconds(seconds: float) -> str:
    return f"{seconds:,.3f} s" if seconds >= 0.1 else f"{seconds * 1e3:,.2f} ms"


def flags(config: Config) -> str:
    """Return the settings that a search chose, as flags of `train`."""
    mesh = config.mesh
    context = f" --mesh.context {mesh.context}" if mesh.context > 1 else ""
    slices = f" --mesh.dcn-data {mesh.dcn_data}" if mesh.dcn_data > 1 else ""
    return (
        f"--model.remat {config.model.remat} --optimizer.accumulate {config.optimizer.accumulate} "
        f"--mesh.fsdp {mesh.fsdp} --mesh.tensor {mesh.tensor}{context}{slices}"
    )
