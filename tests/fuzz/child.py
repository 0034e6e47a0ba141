"""Run one example in a process of its own: under limits, and with an audit of what it imports, opens and starts.

The parent has imported everything and has no jax backend, so that a fork is a fresh command at once. This file is what
the child does; trial.py judges it.
"""

import contextlib
import faulthandler
import hashlib
import json
import os
import resource
import shutil
import stat
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from tests.fuzz.mutations import EVIL, SECRET

ROOT = Path(__file__).parents[2]
WATCHED = (SECRET, f"{EVIL}.py")
EVIL_SOURCE = "open('ran', 'w')\nclass F: pass\n"
MORE_MEMORY = 6 << 30  # bytes of address space that a command may take besides that of its parent
CPU_SECONDS = 60
READABLE = (
    str(ROOT), sys.prefix, sys.base_prefix, *filter(None, sys.path), *sysconfig.get_paths().values(), "/proc", "/sys",
    "/dev", "/lib", "/usr", "/etc",
)  # fmt: skip
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {
    "os.rename": 2, "os.remove": 1, "os.mkdir": 1, "os.rmdir": 1, "os.link": 2, "os.symlink": 2, "os.truncate": 1,
    "os.chmod": 1, "shutil.rmtree": 1, "os.chown": 1, "os.utime": 1,
}  # fmt: skip
STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "pty.spawn")
CONNECTS = ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto")


def furnish(box: Path, samples: Path, names: str) -> None:
    """Make the current folder of an example: in/ with its samples, out/, tmp/, hostile modules, and secrets beside."""
    for folder in ("in", "out", "tmp", "dataset"):
        (box / folder).mkdir(parents=True)
    for name in names.split():
        if (samples / name).is_dir():
            shutil.copytree(samples / name, box / "in" / name)
        else:
            shutil.copy(samples / name, box / "in" / name)
    for place in (box, box / "in"):
        (place / SECRET).write_text("the secret\n")
    for place in (box, box / "dataset"):
        (place / f"{EVIL}.py").write_text(EVIL_SOURCE)


def census(box: Path, unless: tuple[str, ...]) -> dict[str, str]:
    """Return what each file below a folder is: its kind, and the digest of what it holds. unless: folders that may
    change."""
    found = {}
    for root, folders, names in os.walk(box):
        here = Path(root)
        folders[:] = [name for name in folders if str((here / name).relative_to(box)) not in unless]
        for name in (*folders, *names):
            path = here / name
            kind = path.lstat().st_mode
            content = hashlib.sha1(path.read_bytes()).hexdigest() if stat.S_ISREG(kind) and name not in WATCHED else ""
            found[str(path.relative_to(box))] = f"{stat.S_IFMT(kind):o} {content}"
    return found


def run(
    box: Path,
    damage: Callable[[], tuple[str, list[str], str]],
    writable: tuple[str, ...],
    anywhere: bool,
    report: int,
) -> NoReturn:
    """Damage the samples, run the command, and end this process with its exit code.

    damage: returns module, words and what was done. writable: folders that may change, by their names in the box.
    anywhere: files may be made in the whole box. report: file descriptor for lines of JSON: what was done, then each
    offence.
    """
    code = 120  # of a fault of the fuzzer itself
    try:
        os.setsid()
        os.chdir(box)
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - pytest has put others into their place
        sys.stderr = open(2, "w", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
        faulthandler.disable()
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[os.getpid() % len(os.sched_getaffinity(0))]})
        module, words, done = damage()
        before = census(box, writable)
        tell = _teller(report)
        tell({"done": done, "words": [module, *words], "before": before})
        _limit()
        sys.path[:0] = [str(box)]  # the worst that a command could do
        sys.argv = [module, *words]
        os.environ["TMPDIR"] = str(box / "tmp")
        allowed = (str(box),) if anywhere else tuple(str(box / name) for name in (*writable, "tmp"))
        sys.addaudithook(_audit(box, allowed, lambda offence: tell({"offence": offence})))
        code = 1  # from here on, an exception is the command's
        code = _command(module)
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _command(module: str) -> int:
    from xlnet_jax.api import command

    warnings.filterwarnings("ignore", ".*found in sys.modules", RuntimeWarning)  # the parent has imported it
    names = (f"{module}.__main__", module) if find_spec(module).submodule_search_locations else (module,)  # type: ignore[union-attr]
    try:
        command.run(import_module(names[0]).main)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    return 0


def _limit() -> None:
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    space = pages * os.sysconf("SC_PAGE_SIZE") + MORE_MEMORY
    for limit, value in ((resource.RLIMIT_AS, space), (resource.RLIMIT_CPU, CPU_SECONDS), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(limit, (value, value))


def _teller(report: int) -> Callable[[dict[str, Any]], None]:
    def tell(what: dict[str, Any]) -> None:
        os.write(report, json.dumps(what).encode() + b"\n")

    return tell


def _audit(box: Path, writable: tuple[str, ...], tell: Callable[[str], None]) -> Callable[[str, tuple[Any, ...]], None]:
    """Return a hook that tells of code from the box, of files opened outside, of changes, programs and connections."""
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", "/nowhere")
    may_write = (*writable, cache, "/dev/null", "/dev/tty", "/dev/shm", "/proc/self")
    may_read = (*READABLE, str(box), cache, os.environ["HOME"])

    def path_of(name: Any) -> str | None:
        return None if isinstance(name, int) or name is None else os.path.abspath(os.fsdecode(name))

    def is_below(path: str, folders: tuple[str, ...]) -> bool:
        return any(path == folder or path.startswith(folder + os.sep) for folder in folders)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            where = path_of(path)
            if where is None:
                return
            if isinstance(flags, int) and flags & WRITES and not is_below(where, may_write):
                tell(f"opens {where} for writing")
            elif os.path.basename(where) in WATCHED or not is_below(where, may_read):
                tell(f"opens {where}")
        elif event in CHANGES:
            for name in arguments[: CHANGES[event]]:
                where = path_of(name)
                if where is not None and os.path.isabs(os.fsdecode(name)) and not is_below(where, may_write):
                    tell(f"{event} {where}")
        elif event == "exec":
            file = getattr(arguments[0], "co_filename", "")
            if not file.startswith("<") and is_below(os.path.abspath(file), (str(box),)):
                tell(f"runs code of {file}")
        elif event in STARTS:
            tell(f"starts a program: {str(arguments)[:200]}")
        elif event in CONNECTS and not str(arguments[1:]).startswith("('/"):
            tell(f"{event} {str(arguments[1:])[:200]}")

    return hook
