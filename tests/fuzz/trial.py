"""Try examples, each in a forked child (child.py), and judge them: a command ends in time and in its memory, with exit
code 0, or with 2 and one line; it opens, runs and writes nothing outside of what it was told."""

import json
import os
import random
import resource
import shutil
import signal
import struct
import time
from ctypes import CDLL, get_errno
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz import child
from tests.fuzz.inputs import Kind
from tests.fuzz.mutations import EVIL, SECRET
from xlnet_jax.printing import printable

IDLE_SECONDS = 8  # without work, after which a command hangs
WALL_SECONDS = 240
MORE_RESIDENT = 2 << 30  # bytes of memory that a command may use besides that of its parent
FAULT = 120
NOTES = ("note: ", "in/")  # begin lines about what was read before
_IN_OPEN = 0x20


@dataclass(frozen=True)
class Outcome:
    """End of one example."""

    done: str
    words: list[str]
    code: int
    seconds: float
    problems: list[str]
    """what is wrong with it; none = it is right"""
    stderr: str = field(repr=False)


class Trials:
    """Examples of one seed, over samples in a folder. `work` is a folder of its own for the files of each example."""

    def __init__(self, samples: Path, work: Path, seed: int):
        self._samples, self._work, self._seed = samples, work, seed

    def sound(self, kind: Kind) -> Outcome:
        """Run the command of a kind on its samples as they are."""
        return self._run(kind, lambda box: (kind.words(), "nothing"))

    def example(self, kind: Kind, number: int) -> Outcome:
        """Run an example; the same seed, kind and number make the same one."""
        rng = random.Random(f"{self._seed} {kind.name} {number}")
        return self._run(kind, lambda box: kind.damage(box / "in", rng))

    def _run(self, kind: Kind, damage: Any) -> Outcome:
        box = self._work / "box"
        shutil.rmtree(box, ignore_errors=True)
        child.furnish(box, self._samples, kind.samples)
        watch = _Watch(box)
        writable = ("out", *(f"in/{name}" for name in kind.writes.split()))
        anywhere = not kind.damaged  # a damaged command line may name another place, where nothing is yet
        report, stdout, stderr = (self._work / name for name in ("report", "stdout", "stderr"))
        begin = time.monotonic()
        pid = os.fork()
        if pid == 0:
            try:
                told = os.open(report, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                for number, file in ((0, "/dev/null"), (1, stdout), (2, stderr)):
                    os.dup2(os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC * (number > 0)), number)
                child.run(box, lambda: (kind.module, *damage(box)), writable, anywhere, told)
            finally:
                os._exit(FAULT)  # never on in the copy of what this process was doing
        status, usage, late = _wait(pid)
        lines = [json.loads(line) for line in report.read_text().splitlines()]
        said = stderr.read_text(errors="replace")
        if not lines or os.waitstatus_to_exitcode(status) == FAULT:
            raise RuntimeError(f"the fuzzer itself failed at {kind.name}:\n{said}")
        problems = _problems(status, usage, late, said)
        problems += sorted({line["offence"].replace(str(box), "BOX") for line in lines[1:]})
        problems += [f"opens {name}" for name in watch.opened()]
        after = child.census(box, writable)
        before = lines[0]["before"]
        places = before.keys() if anywhere else before.keys() | after.keys()
        changed = sorted(name for name in places if before.get(name) != after.get(name))
        problems += [f"changes {name}" for name in changed if name not in ("in", "out", "tmp")]
        seconds = time.monotonic() - begin
        return Outcome(lines[0]["done"], lines[0]["words"], os.waitstatus_to_exitcode(status), seconds, problems, said)


def _wait(pid: int) -> tuple[int, Any, str | None]:
    """Wait for a child, and kill it where it hangs or takes too long. Return its status, what it used, and why it was
    killed."""
    begin = idle_since = time.monotonic()
    worked, late, pause = 0, None, 0.005
    while True:
        ended, status, usage = os.wait4(pid, os.WNOHANG)
        if ended:
            _kill(pid)  # what it left running
            return status, usage, late
        now = time.monotonic()
        work, state = _work_of(pid)
        if work != worked or state == "R":
            worked, idle_since = work, now
        if late is None and (now - idle_since > IDLE_SECONDS or now - begin > WALL_SECONDS):
            late = "hangs" if now - idle_since > IDLE_SECONDS else "does not end"
            _kill(pid)
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def _kill(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def _work_of(pid: int) -> tuple[int, str]:
    """Return the clock ticks that a process has worked, and its state."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0, "R"
    return int(fields[11]) + int(fields[12]), fields[0]


def _problems(status: int, usage: resource.struct_rusage, late: str | None, said: str) -> list[str]:
    code, lines = os.waitstatus_to_exitcode(status), [line for line in said.splitlines() if line.strip()]
    if late:
        return [late]
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return ["does not end"]
    if code not in (0, 2):
        last = lines[-1][:300] if lines else ""
        return [f"exit code {code}: {_place(lines)}{last}"]
    found = []
    lines = [line for line in lines if not line.startswith(NOTES)]
    if code == 2 and (len(lines) != 1 or not lines[0].startswith("error: ")):
        found.append(f"{len(lines)} lines where one is due: {' / '.join(lines)[:300]}")
    if "Traceback" in said and not found:
        found.append(f"a traceback: {_place(lines)}")
    if (safe := printable(said)) != said:
        found.append(f"prints what a terminal obeys: {safe[:300]}")
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if (more := (usage.ru_maxrss - resident) << 10) > MORE_RESIDENT:
        found.append(f"takes {more >> 20:,} MiB of memory")
    return found


def _place(lines: list[str]) -> str:
    """Return the innermost line of this project in a traceback."""
    own = [line.strip() for line in lines if line.lstrip().startswith("File ") and str(child.ROOT) in line]
    own = [line for line in own if "/tests/" not in line]
    return own[-1].replace(str(child.ROOT) + "/", "") + ": " if own else ""


class _Watch:
    """Notice of who opens the secrets and the hostile modules, by libraries that no audit hook sees too (inotify)."""

    def __init__(self, box: Path):
        self._descriptor = CDLL(None, use_errno=True).inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._names = {}
        for file in (box / SECRET, box / "in" / SECRET, box / f"{EVIL}.py", box / "dataset" / f"{EVIL}.py"):
            watched = CDLL(None, use_errno=True).inotify_add_watch(self._descriptor, os.fsencode(file), _IN_OPEN)
            if watched < 0:
                raise OSError(get_errno(), "inotify")
            self._names[watched] = file.name

    def opened(self) -> list[str]:
        """Return the names of files that were opened, and end the watch."""
        try:
            events = os.read(self._descriptor, 1 << 16)
        except BlockingIOError:
            events = b""
        finally:
            os.close(self._descriptor)
        found, at = set(), 0
        while at < len(events):
            watched, _, _, length = struct.unpack_from("iIII", events, at)
            found.add(self._names.get(watched, "?"))
            at += 16 + length
        return sorted(found)
