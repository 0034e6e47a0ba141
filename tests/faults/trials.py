"""Disturb a run at one of its calls, run the same command again, and say how both ended."""

import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.faults.children import Children, Fault, Outcome
from tests.faults.commands import Command, Result
from tests.faults.shim import Call, read_calls

ENOSPC, EIO, EROFS = 28, 5, 30
ROOM = ("open", "write", "rename", "link", "mkdir", "sync", "truncate")
ACTS = {
    "killed before": "kill-before",
    "killed after": "kill-after",
    "killed within": "kill-within",
    "disk full": f"full:{ENOSPC}",
    "read-only": f"full:{EROFS}",
    "I/O error": f"errno:{EIO}",
    **{name: f"signal:{signal.Signals[name]:d}" for name in ("SIGINT", "SIGTERM", "SIGHUP")},
}
"""name of a fault at a point -> what shim.c does there"""


class Point(NamedTuple):
    kind: str
    pattern: str
    glob: str  # of the path seen first
    count: int  # of the calls that the glob matched in an undisturbed run

    def fault(self, act: str) -> Fault | None:
        """Return the fault at this point; None where the act has no place there. The first call fails, or is killed
        before it; the last one is killed after it."""
        possible = {"kill-within": self.kind == "write", f"full:{ENOSPC}": self.kind in ROOM}
        if not possible.get(act, True):
            return None
        return Fault(act, self.kind, self.glob, self.count if act in ("kill-after", "kill-within") else 1)


@dataclass(frozen=True)
class SoundRun:
    """Sound run of a command: its result, and the calls that it made."""

    command: Command
    given: Path
    folder: Path
    """where it ran"""
    result: Result
    calls: tuple[Call, ...]

    @property
    def points(self) -> list[Point]:
        return list(points_of(self.calls))


class Verdict(NamedTuple):
    kind: str  # "same bits", "one line" (it says what to do and ends), "not reached", or "WRONG"
    detail: str = ""  # of what is wrong, or the line


def run_undisturbed(command: Command, given: Path, scratch: Path, children: Children, times: int = 2) -> SoundRun:
    """Run a command `times` times, and demand equal results; record the calls of the last run."""
    results = []
    for _ in range(times):
        folder = scratch / f"{command.name}-sound"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        outcome = children.run(command.words(given), folder)
        assert outcome.code == 0, outcome
        results.append(command.result(folder))
        made = tuple(read_calls(children.log))
        assert not (differs := difference(results[0], results[-1])), differs
    return SoundRun(command, given, folder, results[0], made)


def points_of(made: tuple[Call, ...]) -> Iterator[Point]:
    first: dict[tuple[str, str], str] = {}
    for call in made:
        if not call.error:
            first.setdefault((call.kind, call.pattern), call.glob)
    for (kind, pattern), glob in first.items():
        yield Point(kind, pattern, glob, sum(call.kind == kind and call.glob == glob for call in made))


def try_fault(sound: SoundRun, fault: Fault, folder: Path, children: Children) -> Verdict:
    """Disturb a run in a new folder, then run the same command there again, without a fault."""
    folder.mkdir()
    words = sound.command.words(sound.given)
    first = children.run(words, folder, fault)
    if fault.kind and first.reached < fault.count:
        return Verdict("not reached" if first.code == 0 else "WRONG", str(first))
    if not ends_as_promised(first, fault):
        return Verdict("WRONG", f"disturbed: {first}")
    again = children.run(words, folder)
    refused = again.is_one_line and again.code == 2  # as where a complete result is there already
    if again.code != 0 and not refused:
        return Verdict("WRONG", f"again: {again}")
    try:
        differs = difference(sound.result, sound.command.result(folder))
    except (OSError, ValueError) as error:
        differs = f"no result: {error}"
    if not differs:
        return Verdict("same bits")
    if refused and first.code != 0:
        return Verdict("one line", again.error)
    return Verdict("WRONG", f"differs: {differs}; again: {again}")


def ends_as_promised(outcome: Outcome, fault: Fault) -> bool:
    """Return True if a command ends under a fault as docs/recovery.md says."""
    act, _, number = fault.act.partition(":")
    if act == "signal":
        stops = {130} if int(number) == signal.SIGINT else {143, -int(number)}
        return outcome.code in {0, *stops} and "Traceback" not in outcome.error
    return outcome.code == -9 if act.startswith("kill") else outcome.code == 0 or outcome.is_one_line


def difference(ours: Result, theirs: Result) -> str:
    return "; ".join(
        f"{name}: {str(ours[name])[:2000]} | {str(theirs[name])[:2000]}" for name in ours if ours[name] != theirs[name]
    )
