"""Try examples, each in a forked child, and judge them.

A command ends in time and within its memory, with exit code 0, or with 2 and one line. It opens, runs and writes only
what its words name. The parent has imported everything and has no jax backend, so a fork is a fresh command at once.
"""

import hashlib
import json
import os
import random
import resource
import runpy
import shutil
import signal
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz.inputs import Kind
from tests.fuzz.mutations import EVIL, SECRET
from xlnet_jax.printing import printable

ROOT = Path(__file__).parents[2]
SECONDS = 240  # after which a command does not end
CPU_SECONDS = 60
MORE_MEMORY = 6 << 30  # bytes of address space that a command may take besides what it begins with
NOTES = ("note: ", "in/")  # begin lines about what was read before
READABLE = (
    str(ROOT), sys.prefix, sys.base_prefix, *filter(None, sys.path), *sysconfig.get_paths().values(), "/proc", "/sys",
    "/dev", "/lib", "/usr", "/etc",
)  # fmt: skip
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "pty.spawn")
CONNECTS = ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto")


@dataclass(frozen=True)
class Outcome:
    done: str
    code: int
    seconds: float  # of the CPU
    problems: list[str]  # none = it is right
    stderr: str = field(repr=False)


def try_example(kind: Kind, samples: Path, work: Path, rng: random.Random | None) -> Outcome:
    """Run the command of a kind on its samples, damaged by `rng`; None = as they are. work: folder of the example."""
    box, report, stderr = (work / name for name in ("box", "report", "stderr"))
    shutil.rmtree(box, ignore_errors=True)
    _furnish(box, samples, kind.samples)
    words, done = kind.damage(box / "in", rng) if rng else (kind.command.split()[1:], "nothing")
    before = _digests(box, kind.writes)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    pid = os.fork()
    if pid == 0:
        _become(box, kind, words, mapped + MORE_MEMORY, report, stderr)
    _, status, usage = os.wait4(pid, 0)
    code, printed = os.waitstatus_to_exitcode(status), stderr.read_text(errors="replace")
    if code == 120:
        raise RuntimeError(f"the fuzzer itself failed at {kind.name}:\n{printed}")
    problems = _problems(code, printed)
    problems += sorted({json.loads(line).replace(str(box), "BOX") for line in report.read_text().splitlines()})
    after = _digests(box, kind.writes)
    problems += [f"changes {name}" for name in before if before[name] != after.get(name)]
    return Outcome(done, code, usage.ru_utime + usage.ru_stime, problems, printed)


def _furnish(box: Path, samples: Path, names: list[str]) -> None:
    """Make the current folder of an example: in/ with its samples, out/, a hostile module, and a secret beside it."""
    for folder in ("in", "out", "tmp"):
        (box / folder).mkdir(parents=True)
    for name in names:
        copy = shutil.copytree if (samples / name).is_dir() else shutil.copy
        copy(samples / name, box / "in" / name)
    (box / SECRET).write_text("the secret\n")
    (box / f"{EVIL}.py").write_text("open('ran', 'w')\nclass F: pass\n")


def _digests(box: Path, writes: str) -> dict[str, str]:
    """Return a digest of each file of the samples but those that the command may change."""
    files = (path for path in (box / "in").rglob("*") if path.is_file() and not path.is_symlink())
    names = {str(path.relative_to(box)): path for path in files}
    may_change = f"in/{writes or '-'}/"
    return {n: hashlib.sha1(p.read_bytes()).hexdigest() for n, p in names.items() if not n.startswith(may_change)}


def _become(box: Path, kind: Kind, words: list[str], space: int, report: Path, stderr: Path) -> None:
    """Run the command in this process, in so much address space, and end with its exit code."""
    code = 120  # of a fault of the fuzzer itself
    try:
        os.setsid()
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # so that no pool of processes starts
        os.chdir(box)
        offences = os.open(report, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number, file in ((0, "/dev/null"), (1, "/dev/null"), (2, stderr)):
            os.dup2(os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC * (number == 2)), number)
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - pytest has put others into their place
        sys.stderr = open(2, "w", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
        signal.alarm(SECONDS)
        for limit, most in (("AS", space), ("CPU", CPU_SECONDS), ("CORE", 0)):
            resource.setrlimit(getattr(resource, f"RLIMIT_{limit}"), (most, most))
        os.environ["TMPDIR"] = str(box / "tmp")
        sys.path[:0] = [str(box)]  # the worst that a command could do
        sys.dont_write_bytecode = True  # of what is imported here first
        sys.argv = [kind.module, *words]
        warnings.filterwarnings("ignore", ".*found in sys.modules", RuntimeWarning)  # the parent has imported it
        # A damaged command line may name another place to write to.
        writable = [box / "out", box / "tmp", box / "in" / (kind.writes or "-")] if kind.damaged else [box]
        tell = lambda offence: os.write(offences, json.dumps(offence).encode() + b"\n")  # noqa: E731
        sys.addaudithook(_audit(box, tuple(map(str, writable)), tell))
        code = 1  # from here on, an exception is the command's
        runpy.run_module(kind.module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _audit(box: Path, writable: tuple[str, ...], tell: Callable[[str], None]) -> Callable[[str, tuple[Any, ...]], None]:
    """Return a hook that reports code from the box, files opened outside, programs started, and connections."""
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR") or "/nowhere"
    may_write = (*writable, cache, "/dev/null", "/dev/tty", "/dev/shm", "/proc/self")
    may_read = (*READABLE, str(box), cache, os.environ["HOME"])

    def is_below(path: str, folders: tuple[str, ...]) -> bool:
        return any(path == folder or path.startswith(folder + os.sep) for folder in folders)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes):
            where, flags = os.path.abspath(os.fsdecode(arguments[0])), arguments[2]
            if isinstance(flags, int) and flags & WRITES and not is_below(where, may_write):
                tell(f"opens {where} for writing")
            elif os.path.basename(where) in (SECRET, f"{EVIL}.py") or not is_below(where, may_read):
                tell(f"opens {where}")
        elif event == "exec":
            file = getattr(arguments[0], "co_filename", "")
            if not file.startswith("<") and is_below(os.path.abspath(file), (str(box),)):
                tell(f"runs code of {file}")
        elif event in STARTS:
            tell(f"starts a program: {str(arguments)[:200]}")
        elif event in CONNECTS and not str(arguments[1:]).startswith("('/"):
            tell(f"{event} {str(arguments[1:])[:200]}")

    return hook


def _problems(code: int, printed: str) -> list[str]:
    if code in (-signal.SIGXCPU, -signal.SIGKILL, -signal.SIGALRM):
        return ["does not end"]
    lines = [line for line in printed.splitlines() if line.strip() and not line.startswith(NOTES)]
    if code not in (0, 2):
        return [f"exit code {code}: {lines[-1][:300] if lines else ''}"]
    found = []
    if code == 2 and (len(lines) != 1 or not lines[0].startswith("error: ")):
        found.append(f"{len(lines)} lines where one is due: {' / '.join(lines)[:300]}")
    if (safe := printable(printed)) != printed:
        found.append(f"prints what a terminal obeys: {safe[:300]}")
    return found
