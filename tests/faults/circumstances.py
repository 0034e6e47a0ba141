"""Circumstances of a whole run, beside faults at single calls: kills at random, a clock that jumps, a slow, small or
read-only disk, limits of memory."""

import contextlib
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.faults.children import Children, Fault
from tests.faults.memory_groups import lacking_groups, memory_group, most_used
from tests.faults.trials import Undisturbed, Verdict, judge_again, judge_disturbed

Circumstance = Callable[[Undisturbed, Path, Children], Verdict]
DAY = 86_400
GIB = 1 << 30
LIVES = 20  # kills at random of one run before it may end
SHARES_OF_MEMORY = (0.5, 0.8, 1.5)  # of what a sound run uses at once
SMALL_DISKS = ("64k", "256k", "512k")


def under(fault: Fault) -> Circumstance:
    """Run a command under a fault that it must withstand, or end in one line."""

    def circumstance(sound: Undisturbed, scratch: Path, children: Children) -> Verdict:
        folder = _folder(scratch)
        ended = children.run(sound.command.words(sound.given), folder, fault)
        return judge_disturbed(ended, fault) or judge_again(sound, folder, children)

    return circumstance


def killed_at_random(sound: Undisturbed, scratch: Path, children: Children) -> Verdict:
    """Kill a run at a random moment, again and again in one folder, then let it end."""
    draw, folder = random.Random(scratch.name), _folder(scratch)
    kills = 0
    while kills < LIVES:
        ended = children.run(sound.command.words(sound.given), folder, Fault(seconds=draw.uniform(0.1, 5)))
        if ended.code == 0:
            break
        if ended.is_one_line and ended.code == 2:  # as where a complete result is there already
            break
        if ended.code != -9 or ended.left:
            return Verdict("WRONG", f"exit code {ended.code}, left over: {ended.left}: {ended.error}")
        kills += 1
    verdict = judge_again(sound, folder, children)
    return verdict._replace(detail=f"{kills} kills {verdict.detail}")


def on_a_small_disk(size: str) -> Circumstance:
    """Run a command on a disk that is full after `size`, then again when the disk has grown."""

    def circumstance(sound: Undisturbed, scratch: Path, children: Children) -> Verdict:
        folder = _folder(scratch)
        with _mounted(folder, f"size={size}"):
            fault = Fault()
            ended = children.run(sound.command.words(sound.given), folder, fault)
            if ended.code == 0:
                return Verdict("not reached", f"{size} suffice")
            _mount("-o", "remount,size=64m", str(folder))
            return judge_disturbed(ended, fault) or judge_again(sound, folder, children)

    return circumstance


def on_a_read_only_disk(sound: Undisturbed, scratch: Path, children: Children) -> Verdict:
    """Run a command on a read-only disk, then again when it may be written."""
    folder = _folder(scratch)
    with _mounted(folder, "size=64m"):
        _mount("-o", "remount,ro", str(folder))
        ended = children.run(sound.command.words(sound.given), folder)
        if not ended.is_one_line or ended.code != 2:
            return Verdict("WRONG", f"exit code {ended.code}: {ended.error}")
        _mount("-o", "remount,rw", str(folder))
        return judge_again(sound, folder, children)


def in_little_memory(sound: Undisturbed, scratch: Path, children: Children) -> Verdict:
    """Run a command where the kernel gives it shares of the memory that it needs, then again with all of it."""
    words, ends, free = sound.command.words(sound.given), [], scratch / "free"
    free.mkdir(parents=True)
    with memory_group() as group:
        children.run(words, free, Fault(group=str(group)))
        needed = most_used(group)
    for share in SHARES_OF_MEMORY:
        folder = _folder(scratch / f"{share:.0%}")
        with memory_group(int(share * needed)) as group:
            ended = children.run(words, folder, Fault(group=str(group)))
        ends.append(f"exit code {ended.code} in {share:.0%} of {needed >> 20} MiB {ended.error}".strip())
        if ended.left or (ended.code and share > 1) or not (ended.code in (0, -9) or ended.is_one_line):
            return Verdict("WRONG", f"{ends}, processes left over: {ended.left}")
        if (verdict := judge_again(sound, folder, children)).kind == "WRONG":
            return verdict._replace(detail=f"{ends}, {verdict.detail}")
    return Verdict("same bits", ", ".join(ends))


def circumstances() -> dict[str, Circumstance]:
    """Return the circumstances that can be made here, by name."""
    found = {
        "clock set back a day": under(Fault(clock=f"1.5:{-DAY}")),
        "clock set forward a year": under(Fault(clock=f"1.5:{365 * DAY}")),
        "disk slow by 5 ms a call": under(Fault("delay:5000", seconds=1200)),
        "3 GiB of address space": under(Fault(limits={"RLIMIT_AS": 3 * GIB})),
        "files of at most 20 kB": under(Fault(limits={"RLIMIT_FSIZE": 20_000})),
        "killed at random": killed_at_random,
    }
    if not lacking_groups():
        found["little memory"] = in_little_memory
    if lacking_mounts():
        return found
    small = {f"disk of {size}": on_a_small_disk(size) for size in SMALL_DISKS}
    return found | small | {"disk read-only": on_a_read_only_disk}


def lacking_mounts() -> str | None:
    """Return why no disk can be mounted here; None where one can."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return "only root can mount a small or a read-only disk"
    tried = subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True)
    return None if tried.returncode == 0 else "this machine does not allow to mount a disk"


def _folder(scratch: Path) -> Path:
    folder = scratch / "here"
    folder.mkdir(parents=True)
    return folder


@contextlib.contextmanager
def _mounted(folder: Path, options: str) -> Iterator[None]:
    _mount("-t", "tmpfs", "-o", options, "tmpfs", str(folder))
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)
