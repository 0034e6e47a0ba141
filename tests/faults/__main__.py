"""python -m tests.faults: disturb tiny runs of the commands at every kind of call by which they change files.

Each distinct pair of (kind of call, kind of file) of a sound run is a point. At every point a run is killed before and
after the call, gets a signal, the disk is full from there on, or the call fails; then the same command runs again. It
must end with the bits of the sound run, or in one line that says what to do.
"""

import argparse
import fnmatch
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.faults import shim
from tests.faults.children import Children
from tests.faults.commands import COMMANDS, make_inputs
from tests.faults.trials import ACTS, Verdict, run_undisturbed, try_fault


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=(__doc__ or "").partition(": ")[2])
    parser.add_argument("--commands", nargs="*", default=list(COMMANDS), choices=list(COMMANDS))
    parser.add_argument("--faults", nargs="*", default=list(ACTS), choices=list(ACTS))
    parser.add_argument("--points", default="*", help="pattern of 'KIND PATH'")
    parser.add_argument("--every", type=int, default=1, help="take every n-th trial only")
    parser.add_argument("--scratch", help="folder of the runs; those that went wrong stay there")
    asked = parser.parse_args()
    if reason := shim.missing_requirement():
        print(f"python -m tests.faults: {reason}", file=sys.stderr)
        return 2
    scratch = Path(tempfile.mkdtemp(prefix="faults-", dir=asked.scratch))
    given = scratch / "given"
    given.mkdir()
    with Children(shim.build(scratch), scratch, scratch / "programs") as children:
        make_inputs(given, children.run)
        trials = []
        for command in asked.commands:
            sound = run_undisturbed(COMMANDS[command], given, scratch, children)
            print(f"{command}: {len(sound.calls)} calls, {len(sound.points)} points", flush=True)
            for point in sound.points:
                if fnmatch.fnmatch(place := f"{point.kind} {point.pattern}", asked.points):
                    for name in asked.faults:
                        if fault := point.fault(ACTS[name]):
                            trials.append((sound, f"{command} {name}", place, fault))
        random.Random(0).shuffle(trials)  # a part of them is one of every kind
        counts = Counter[tuple[str, str]]()
        for number, (sound, name, place, fault) in enumerate(trials[:: asked.every], 1):
            folder = scratch / f"trial-{number}"
            try:
                verdict = try_fault(sound, fault, folder, children)
            except Exception as error:  # of the judge itself: a result that cannot be read
                verdict = Verdict("WRONG", f"{type(error).__name__}: {error}")
            counts[name, verdict.kind] += 1
            if verdict.kind != "WRONG":
                shutil.rmtree(folder)
            if verdict.kind != "same bits":
                print(f"{number} {name} at {place}: {verdict.kind}: {verdict.detail.rstrip()}", flush=True)
    print("| command and fault | end | trials |\n|---|---|---|")
    for (name, kind), number in sorted(counts.items()):
        print(f"| {name} | {kind} | {number} |")
    wrong = sum(number for (_, kind), number in counts.items() if kind == "WRONG")
    print(f"{counts.total()} trials, {wrong} wrong" + (f"; see {scratch}" if wrong else ""))
    if not wrong:
        shutil.rmtree(scratch)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
