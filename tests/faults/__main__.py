"""python -m tests.faults: disturb tiny runs of the commands at every kind of call by which they change files.

Each distinct pair of (kind of call, kind of file) of a sound run is a point. At every point a run is killed before and
after the call, the disk is full from there on, or the call fails; then the same command runs again. It must end with
the bits of the sound run, or in one line that says what to do.
"""

import argparse
import contextlib
import fnmatch
import queue
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.faults import shim
from tests.faults.children import Children
from tests.faults.circumstances import circumstances, killed_at_random, lacking_mounts
from tests.faults.commands import COMMANDS, make_inputs
from tests.faults.memory_groups import lacking_groups
from tests.faults.power import LOSSES, Left, left_after, moments
from tests.faults.trials import ACTS, Undisturbed, Verdict, try_fault, try_power_loss, undisturbed

POWER, OTHERS = "power lost", "circumstances"
FAULTS = [*ACTS, POWER, OTHERS]


class Trial(NamedTuple):
    """One disturbance of one command."""

    command: str
    fault: str
    place: str
    run: Callable[[Path, Children], Verdict]


def main() -> int:
    """Run the trials; return 1 where one of them went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=(__doc__ or "").partition(": ")[2])
    parser.add_argument("--commands", nargs="*", default=list(COMMANDS), choices=list(COMMANDS))
    parser.add_argument("--faults", nargs="*", default=FAULTS, choices=FAULTS)
    parser.add_argument("--points", default="*", help="pattern of 'KIND PATH'")
    parser.add_argument("--kills", type=int, default=5, help="runs to be killed at random, each up to 20 times")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="take every n-th trial only")
    parser.add_argument("--first", type=int, default=0, help="number of the first trial taken")
    parser.add_argument("--scratch", help="folder of the runs; those that went wrong stay there")
    asked = parser.parse_args()
    if reason := shim.lacking():
        print(f"skipped: {reason}")
        return 0
    scratch = Path(tempfile.mkdtemp(prefix="faults-", dir=asked.scratch))
    with contextlib.ExitStack() as stack:
        library, given = shim.build(scratch), scratch / "given"
        given.mkdir()
        servers = [
            stack.enter_context(Children(library, scratch, scratch / "programs", number))
            for number in range(asked.jobs)
        ]
        make_inputs(given, servers[0])
        trials: list[Trial] = []
        for name in asked.commands:
            sound = undisturbed(COMMANDS[name], given, scratch, servers[0])
            print(f"{name}: {len(sound.calls)} calls, {len(sound.points)} points", flush=True)
            trials += _at_points(sound, [fault for fault in asked.faults if fault in ACTS], asked.points)
            trials += _power_losses(sound, asked.points) if POWER in asked.faults else ()
            trials += _circumstances(sound, asked.points, asked.kills) if OTHERS in asked.faults else ()
        random.Random(0).shuffle(trials)  # a part of them is one of every kind
        counts = run_trials(trials[asked.first :: asked.every], scratch, servers)
    print(table(counts))
    wrong = sum(number for (*_, kind), number in counts.items() if kind == "WRONG")
    print(f"{sum(counts.values())} trials, {wrong} wrong" + (f"; see {scratch}" if wrong else ""))
    if not wrong:
        shutil.rmtree(scratch)
    return 1 if wrong else 0


def _at_points(sound: Undisturbed, faults: Iterable[str], wanted: str) -> Iterable[Trial]:
    for point in sound.points:
        place = f"{point.kind} {point.pattern}"
        for name in faults:
            fault = point.fault(ACTS[name])
            if fault and fnmatch.fnmatch(place, wanted):

                def run(scratch: Path, children: Children, fault=fault) -> Verdict:
                    return try_fault(sound, fault, scratch, children)

                yield Trial(sound.command.name, name, place, run)


def _power_losses(sound: Undisturbed, wanted: str) -> Iterable[Trial]:
    seen: list[Left] = []
    for moment in moments(sound.calls):
        call = sound.calls[moment - 1]
        for loss in LOSSES:
            place = f"{call.kind} {call.pattern}"
            left = left_after(sound.calls[:moment], loss)
            if left in seen or not fnmatch.fnmatch(place, wanted):
                continue
            seen.append(left)

            def run(scratch: Path, children: Children, left=left) -> Verdict:
                return try_power_loss(sound, left, scratch, children)

            yield Trial(sound.command.name, f"{POWER}: {loss.name}", place, run)


def _circumstances(sound: Undisturbed, wanted: str, kills: int) -> Iterable[Trial]:
    for reason in filter(None, (lacking_mounts(), lacking_groups())):
        print(f"skipped: {reason}")
    for name, circumstance in circumstances().items():
        for _ in range(kills if circumstance is killed_at_random else 1):
            if fnmatch.fnmatch(name, wanted):

                def run(scratch: Path, children: Children, circumstance=circumstance) -> Verdict:
                    return circumstance(sound, scratch, children)

                yield Trial(sound.command.name, name, "the whole run", run)


def run_trials(trials: list[Trial], scratch: Path, servers: list[Children]) -> Counter[tuple[str, str, str]]:
    """Run trials, one on each server at a time; count (command, fault, kind of verdict)."""
    counts: Counter[tuple[str, str, str]] = Counter()
    free: queue.Queue[Children] = queue.Queue()
    for children in servers:
        free.put(children)
    began = time.monotonic()

    def one(number: int, trial: Trial) -> None:
        children = free.get()
        try:
            verdict = trial.run(scratch / f"trial-{number}", children)
        except Exception as error:  # of the judge itself: a result that cannot be read
            verdict = Verdict("WRONG", f"{type(error).__name__}: {error}")
        finally:
            free.put(children)
        counts[trial.command, trial.fault, verdict.kind] += 1
        if verdict.kind != "same bits" or verdict.detail:
            print(f"{number} {trial.command} {trial.fault} at {trial.place}: {verdict.kind}: {verdict.detail.rstrip()}")
        if sum(counts.values()) % 25 == 0:
            print(f"{sum(counts.values())} of {len(trials)}, {time.monotonic() - began:.0f} s", flush=True)

    with ThreadPoolExecutor(len(servers)) as pool:
        list(pool.map(one, range(len(trials)), trials))
    return counts


def table(counts: Counter[tuple[str, str, str]]) -> str:
    """Return the counts as a table in Markdown."""
    kinds = [kind for kind in ("same bits", "one line", "not reached", "WRONG") if any(k == kind for *_, k in counts)]
    rows = sorted({(command, fault) for command, fault, _ in counts})
    lines = [f"| command | fault | trials | {' | '.join(kinds)} |", "|---" * (3 + len(kinds)) + "|"]
    for command, fault in rows:
        numbers = [counts[command, fault, kind] for kind in kinds]
        lines.append(f"| {command} | {fault} | {sum(numbers)} | {' | '.join(map(str, numbers))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
