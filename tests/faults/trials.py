"""Disturb a run at one of its calls, run the same command again, and say how both ended."""

import shutil
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
}
"""name of a fault at a point -> what shim.c does there"""


class Point(NamedTuple):
    """Kind of call at a kind of file."""

    kind: str
    pattern: str
    glob: str
    """of the path seen first"""
    count: int
    """number of calls that the glob matched in an undisturbed run"""

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
    result: Result
    calls: tuple[Call, ...]
    points: tuple[Point, ...]


class Verdict(NamedTuple):
    """End of a disturbed run, and of the same command after it."""

    kind: str
    """"same bits", "one line" (it says what to do and ends), "not reached", or "WRONG" """
    detail: str
    """of what is wrong, or the line"""


def run_undisturbed(command: Command, given: Path, scratch: Path, children: Children, times: int = 2) -> SoundRun:
    """Run a command `times` times, and demand equal results; record the calls of the last run."""
    results = []
    for number in range(times):
        folder = scratch / f"{command.name}-sound-{number}"
        folder.mkdir()
        outcome = children.run(command.words(given), folder)
        assert outcome.code == 0, outcome
        results.append(command.result(folder))
        made = tuple(read_calls(children.log))
        shutil.rmtree(folder)
    assert not any(difference(results[0], other) for other in results), [difference(results[0], r) for r in results]
    return SoundRun(command, given, results[0], made, tuple(points_of(made)))


def points_of(made: tuple[Call, ...]) -> Iterator[Point]:
    """Yield the distinct points of the calls that succeeded."""
    first: dict[tuple[str, str], str] = {}
    for call in made:
        if not call.error:
            first.setdefault((call.kind, call.pattern), call.glob)
    for (kind, pattern), glob in first.items():
        yield Point(kind, pattern, glob, sum(call.kind == kind and call.glob == glob for call in made))


def try_fault(sound: SoundRun, fault: Fault, scratch: Path, children: Children) -> Verdict:
    """Disturb a run in an empty folder below `scratch`, then run the same command again."""
    folder = scratch / "here"
    folder.mkdir(parents=True)
    words = sound.command.words(sound.given)
    first = children.run(words, folder, fault)
    verdict = judge_disturbed(first, fault) or judge_again(sound, folder, children)
    if verdict.kind == "one line" and first.code == 0:
        verdict = Verdict("WRONG", f"disturbed: exit code 0 without its result; again: {verdict.detail}")
    if verdict.kind != "WRONG":
        shutil.rmtree(scratch)
    return verdict


def judge_disturbed(ended: Outcome, fault: Fault) -> Verdict | None:
    """Return a verdict where the disturbed run itself ended wrongly, or was not disturbed."""
    if fault.kind and ended.reached < fault.count:
        return Verdict("not reached" if ended.code == 0 else "WRONG", str(ended))
    if ended.left:
        return Verdict("WRONG", f"processes are left over: {ended}")
    if fault.act.startswith("kill"):
        return None if ended.code == -9 else Verdict("WRONG", f"not killed: {ended}")
    if ended.code == 0 or ended.is_one_line:
        return None
    return Verdict("WRONG", f"disturbed: {ended}")


def judge_again(sound: SoundRun, folder: Path, children: Children) -> Verdict:
    """Run the command again, without a fault, and compare its result."""
    again = children.run(sound.command.words(sound.given), folder)
    refused = again.is_one_line and again.code == 2  # as where a complete result is there already
    if again.code != 0 and not refused:
        return Verdict("WRONG", f"again: {again}")
    if refused:
        return Verdict("same bits" if _is_complete(sound, folder) else "one line", again.error)
    differs = difference(sound.result, sound.command.result(folder))
    return Verdict("WRONG", f"differs: {differs}") if differs else Verdict("same bits", "")


def _is_complete(sound: SoundRun, folder: Path) -> bool:
    try:
        return not difference(sound.result, sound.command.result(folder))
    except (OSError, ValueError):  # there is no result
        return False


def difference(ours: Result, theirs: Result) -> str:
    """Return the parts of two results that differ, or an empty string."""
    return "; ".join(
        f"{name}: {str(ours[name])[:2000]} | {str(theirs[name])[:2000]}" for name in ours if ours[name] != theirs[name]
    )
