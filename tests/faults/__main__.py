"""python -m tests.faults: disturb tiny runs of the commands at every kind of call by which they change files.

Each distinct pair of (kind of call, kind of file) of a sound run is a point. At every point a run is killed before and
after the call, the disk is full from there on, or the call fails; then the same command runs again. It must end with
the bits of the sound run, or in one line that says what to do.
"""

import argparse
import fnmatch
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.faults import shim
from tests.faults.children import Children, Fault
from tests.faults.commands import COMMANDS, make_inputs
from tests.faults.trials import ACTS, SoundRun, Verdict, run_undisturbed, try_fault


class Trial(NamedTuple):
    """One disturbance of one command."""

    sound: SoundRun
    name: str
    place: str
    fault: Fault


def main() -> int:
    """Run the trials; return 1 where one of them went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=(__doc__ or "").partition(": ")[2])
    parser.add_argument("--commands", nargs="*", default=list(COMMANDS), choices=list(COMMANDS))
    parser.add_argument("--faults", nargs="*", default=list(ACTS), choices=list(ACTS))
    parser.add_argument("--points", default="*", help="pattern of 'KIND PATH'")
    parser.add_argument("--every", type=int, default=1, help="take every n-th trial only")
    parser.add_argument("--scratch", help="folder of the runs; those that went wrong stay there")
    asked = parser.parse_args()
    if reason := shim.missing_requirement():
        print(f"skipped: {reason}")
        return 0
    scratch = Path(tempfile.mkdtemp(prefix="faults-", dir=asked.scratch))
    given = scratch / "given"
    given.mkdir()
    with Children(shim.build(scratch), scratch, scratch / "programs") as children:
        make_inputs(given, children)
        trials: list[Trial] = []
        for name in asked.commands:
            sound = run_undisturbed(COMMANDS[name], given, scratch, children)
            print(f"{name}: {len(sound.calls)} calls, {len(sound.points)} points", flush=True)
            trials += [trial for trial in trials_of(sound, asked.faults) if fnmatch.fnmatch(trial.place, asked.points)]
        random.Random(0).shuffle(trials)  # a part of them is one of every kind
        counts = run_trials(trials[:: asked.every], scratch, children)
    print(table(counts))
    wrong = sum(number for (*_, kind), number in counts.items() if kind == "WRONG")
    print(f"{sum(counts.values())} trials, {wrong} wrong" + (f"; see {scratch}" if wrong else ""))
    if not wrong:
        shutil.rmtree(scratch)
    return 1 if wrong else 0


def trials_of(sound: SoundRun, names: list[str]) -> Iterator[Trial]:
    """Yield the trials of a command at all its points."""
    for point in sound.points:
        for name in names:
            if fault := point.fault(ACTS[name]):
                yield Trial(sound, name, f"{point.kind} {point.pattern}", fault)


def run_trials(trials: list[Trial], scratch: Path, children: Children) -> Counter[tuple[str, str, str]]:
    """Run trials; count (command, fault, kind of verdict)."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for number, (sound, name, place, fault) in enumerate(trials, 1):
        try:
            verdict = try_fault(sound, fault, scratch / f"trial-{number}", children)
        except Exception as error:  # of the judge itself: a result that cannot be read
            verdict = Verdict("WRONG", f"{type(error).__name__}: {error}")
        counts[sound.command.name, name, verdict.kind] += 1
        if verdict.kind != "same bits":
            print(f"{number} {sound.command.name} {name} at {place}: {verdict.kind}: {verdict.detail.rstrip()}")
        if number % 25 == 0:
            print(f"{number} of {len(trials)}", flush=True)
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
