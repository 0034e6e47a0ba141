"""Disturb a run at one of its calls, run the same command again, and say how both ended."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.faults.children import Children, Fault, Outcome
from tests.faults.commands import Command, Result
from tests.faults.power import Left, restore, unseen
from tests.faults.shim import Call, calls

ENOSPC, EIO, EROFS, ESTALE, EDQUOT = 28, 5, 30, 116, 122
ROOM = ("open", "write", "rename", "link", "mkdir", "sync", "truncate")
ACTS = {
    "killed before": "kill-before",
    "killed after": "kill-after",
    "killed within": "kill-within",
    "killed alone": "kill-alone",
    "disk full": f"full:{ENOSPC}",
    "read-only": f"full:{EROFS}",
    "I/O error": f"errno:{EIO}",
    "stale": f"errno:{ESTALE}",
    "refused late": f"lost:{EDQUOT}",
    "lost late": f"lost:{EIO}",
    "stopped": "stop",
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
    flushing: int = 0
    """number of the first of these calls by which a file server takes what was written: of a sync or a close after a
    write; 0 = there is none"""

    def fault(self, act: str) -> Fault | None:
        """Return the fault at this point; None where the act has no place there. The first call fails, or is killed
        before it; the last one is killed after it."""
        changes = self.kind not in ("close", "read")
        possible = {
            "kill-before": changes,
            "kill-after": changes,
            "kill-within": self.kind == "write",
            "kill-alone": changes,
            f"full:{ENOSPC}": self.kind in ROOM,
            f"full:{EROFS}": changes,
            f"errno:{ESTALE}": self.kind != "close",
            f"lost:{EDQUOT}": self.flushing,
            f"lost:{EIO}": self.flushing,
            "stop": self.kind in ("rename", "sync", "unlink"),
        }
        if not possible.get(act, True):
            return None
        last, late = act in ("kill-after", "kill-within"), act.startswith("lost:")
        return Fault(act, self.kind, self.glob, self.count if last else self.flushing if late else 1)


@dataclass(frozen=True)
class Undisturbed:
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


def undisturbed(command: Command, given: Path, scratch: Path, children: Children, times: int = 2) -> Undisturbed:
    """Run a command `times` times, and demand equal results; record the calls of the last run."""
    results = []
    for number in range(times):
        folder = scratch / f"{command.name}-sound-{number}"
        folder.mkdir()
        outcome = children.run(command.words(given), folder, record=True)
        assert outcome.code == 0, outcome
        results.append(command.result(folder))
        made = tuple(calls(children.log))
        assert not (missed := unseen(made, folder)), f"written past the shim: {missed}"
        shutil.rmtree(folder)
    assert not any(difference(results[0], other) for other in results), [difference(results[0], r) for r in results]
    return Undisturbed(command, given, results[0], made, tuple(points_of(made)))


def points_of(made: tuple[Call, ...]) -> Iterator[Point]:
    """Yield the distinct points of the calls that succeeded."""
    first: dict[tuple[str, str], str] = {}
    for call in made:
        if not call.error:
            first.setdefault((call.kind, call.pattern), call.glob)
    flushes = _flushes(made)
    for (kind, pattern), glob in first.items():
        alike = [flushes[n] for n, call in enumerate(made) if call.kind == kind and call.glob == glob]
        yield Point(kind, pattern, glob, len(alike), alike.index(True) + 1 if any(alike) else 0)


def _flushes(made: tuple[Call, ...]) -> list[bool]:
    """Say of each call whether it is a sync or a close of a file that was written since the one before."""
    found: list[bool] = []
    written: set[int] = set()
    for call in made:
        if call.kind == "write":
            written.add(call.inode)
        found.append(call.kind in ("sync", "close") and call.inode in written)
        if found[-1]:
            written.remove(call.inode)
    return found


def try_fault(sound: Undisturbed, fault: Fault, scratch: Path, children: Children) -> Verdict:
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


def try_power_loss(sound: Undisturbed, left: Left, scratch: Path, children: Children) -> Verdict:
    """Run the command in what is left of a folder after the loss of power."""
    folder = scratch / "here"
    folder.mkdir(parents=True)
    restore(left, folder)
    verdict = judge_again(sound, folder, children)
    if verdict.kind != "WRONG":
        shutil.rmtree(scratch)
    return verdict


def judge_disturbed(ended: Outcome, fault: Fault) -> Verdict | None:
    """Return a verdict where the disturbed run itself ended wrongly, or was not disturbed."""
    if fault.kind and ended.reached < fault.count:
        return Verdict("not reached" if ended.code == 0 else "WRONG", _shown(ended))
    if ended.left:
        return Verdict("WRONG", f"processes are left over: {_shown(ended)}")
    if fault.act == "kill-alone" and ended.is_one_line:  # of a process that works for another
        return None
    if fault.act.startswith("kill"):
        return None if ended.code == -9 else Verdict("WRONG", f"not killed: {_shown(ended)}")
    if ended.code == 0 or ended.is_one_line:
        return None
    return Verdict("WRONG", f"disturbed: {_shown(ended)}")


def judge_again(sound: Undisturbed, folder: Path, children: Children) -> Verdict:
    """Run the command again, without a fault, and compare its result."""
    again = children.run(sound.command.words(sound.given), folder)
    refused = again.is_one_line and again.code == 2  # as where a complete result is there already
    if again.code != 0 and not refused:
        return Verdict("WRONG", f"again: {_shown(again)}")
    if refused:
        return Verdict("same bits" if _is_complete(sound, folder) else "one line", again.error)
    differs = difference(sound.result, sound.command.result(folder))
    return Verdict("WRONG", f"differs: {differs}") if differs else Verdict("same bits", "")


def _is_complete(sound: Undisturbed, folder: Path) -> bool:
    try:
        return not difference(sound.result, sound.command.result(folder))
    except (OSError, ValueError):  # there is no result
        return False


def difference(ours: Result, theirs: Result) -> str:
    """Return the parts of two results that differ, or an empty string."""
    found = []
    for name in ours:
        if ours[name] != theirs[name]:
            whole = f"{ours[name]} | {theirs[name]}"
            shown = whole if len(whole) < 2000 else _parts(ours[name], theirs[name])
            found.append(f"{name}: {shown}")
    return "; ".join(found)


def _parts(ours: object, theirs: object) -> str:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ", ".join(str(key) for key in sorted(ours.keys() | theirs.keys()) if ours.get(key) != theirs.get(key))
    return "…"


def _shown(outcome: Outcome) -> str:
    return f"exit code {outcome.code} after {outcome.seconds:.0f} s: {outcome.error[-3000:] or outcome.out[-300:]}"
