"""Call the roll of the processes of a run, before jax connects them: jax would end those that have arrived by SIGABRT,
and name none that is missing. They meet in the workdir, which they share anyway.

WORKDIR/.hosts/call.json              by process 0: the name of this start
WORKDIR/.hosts/START/1-TOKEN.json     by process 1, under the name that it has read there: host, settings, a token
WORKDIR/.hosts/START/result.json      by process 0: who takes part, or why the run does not begin

Files of an earlier start confuse nobody: process 0 reads answers to the name that it has just drawn, and a process
heeds a result that lists its own token.
"""

import contextlib
import errno
import json
import re
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from etils import epath

from xlnet_jax.errors import RESTART, InputError
from xlnet_jax.settings.config import DistributedConfig
from xlnet_jax.storage.files import in_bucket
from xlnet_jax.storage.lock import Lock
from xlnet_jax.storage.reading import decode_json
from xlnet_jax.training.run.presence import STATE, Beat, Presence, Roll, read, seconds_between_beats, write
from xlnet_jax.training.run.workdir import Workdir

FOLDER = ".hosts"
_CALL, _RESULT = "call.json", "result.json"
_START = re.compile(r"[0-9a-f]{32}")
_ANSWER = re.compile(r"(\d{1,9})-[0-9a-f]{32}\.json")
_SECONDS_TO_APPEAR = 60.0
"""time after which a host sees what another has written: NFS keeps an older look for a while"""
_BEATS = 4
_TRIES = 20

Answer = dict[str, Any]


class HostsMissing(InputError):
    """Not all processes of a run arrived. The launcher may start the missing ones later, so it should try again."""

    exit_code = RESTART


class Attendance(Presence):
    """Presence of this process at a run, for as long as its file is rewritten."""

    def __init__(self, roll: Roll, beat: Beat) -> None:
        super().__init__(roll)
        self._beat = beat

    def tell_status(self, status: str) -> None:
        """Tell whether this process is over or was aborted."""
        self._beat.change(status=status)


@contextmanager
def attended(
    place: DistributedConfig, folder: str, settings: dict[str, Any], names: Sequence[str] = ()
) -> Iterator[Attendance]:
    """Wait until all processes of the run have come to the workdir; go on telling that this one lives in the context.

    settings: settings that must be equal in all processes, by name. names: the host of each process, where known in
    advance. Raises HostsMissing with the processes that do not arrive in time; InputError with those that are one too
    many, and with the settings that differ.
    """
    workdir = Workdir(folder)
    workdir.make()
    here = workdir.folder / FOLDER
    here.mkdir(exist_ok=True)
    who = {
        "process_id": int(place.process_id or 0),
        "num_processes": place.num_processes,
        "host": socket.gethostname(),
        "settings": decode_json(json.dumps(settings), "settings"),  # lists in place of tuples, as the others read them
    }
    with contextlib.ExitStack() as stack:
        if place.process_id == 0:
            lock = _alone(here)
            stack.callback(lock.release)
            roll, beat = _Caller(place, here, who, names).call()
        else:
            roll, beat = _Answerer(place, here, who).answer()
        stack.callback(beat.stop)
        yield Attendance(roll, beat)


class _Caller:
    """Process 0: it calls, reads the answers and judges them."""

    def __init__(self, place: DistributedConfig, here: epath.Path, who: Answer, names: Sequence[str]) -> None:
        self._place, self._who, self._count = place, who, int(place.num_processes or 1)
        self._names = dict(enumerate(names)) | {0: str(who["host"])}
        self._call = here / _CALL
        self._call.unlink(missing_ok=True)
        for earlier in here.iterdir():
            if _START.fullmatch(earlier.name):
                _remove(earlier)
        self._start = uuid.uuid4().hex
        self._folder = here / self._start
        self._answers: dict[str, Answer] = {}  # by file
        self._read_at: dict[str, float] = {}  # by file: time.monotonic()
        self._dead: set[str] = set()

    def call(self) -> tuple[Roll, Beat]:
        self._folder.mkdir()
        write(self._folder / STATE, {})
        own = _file_of(0)
        beat = Beat(self._folder / own, self._who)
        calling = Beat(self._call, {"start": self._start, "host": self._who["host"]})
        try:
            self._await_answers()
            files = sorted(self._answers, key=lambda file: int(self._answers[file]["process_id"]))
            in_order = (own, *files)
            hosts = (str(self._who["host"]), *(str(self._answers[file]["host"]) for file in files))
            write(self._folder / _RESULT, {"files": in_order, "hosts": hosts})
        except BaseException as refusal:
            if isinstance(refusal, InputError):
                result = {"refused": str(refusal), "code": refusal.exit_code, "files": list(self._answers)}
                write(self._folder / _RESULT, result)
            beat.remove()
            raise
        finally:
            calling.remove()
        return Roll(str(self._folder), self._place, in_order, hosts), beat

    def _await_answers(self) -> None:
        until = time.monotonic() + self._place.initialization_timeout
        while len(self._answers) < self._count - 1:
            if time.monotonic() > until:
                raise HostsMissing(self._missing())
            time.sleep(_seconds_between_looks(self._folder))
            self._read_new()
            self._demand_one_each()
            if len(self._answers) == self._count - 1:
                self._drop_silent()
        for file in sorted(self._answers, key=lambda file: int(self._answers[file]["process_id"])):
            answer = self._answers[file]
            if differing := _difference(self._who["settings"], answer["settings"]):
                raise InputError(
                    f"{_name(answer)} was started with other settings than process 0 ({differing}): give the same "
                    "command everywhere"
                )

    def _read_new(self) -> None:
        for path in self._folder.iterdir():
            file = path.name
            if (found := _ANSWER.fullmatch(file)) and int(found[1]) and file not in self._dead | self._answers.keys():
                answer = read(path)
                if answer and _is_answer(answer, int(found[1])):
                    self._answers[file], self._read_at[file] = answer, time.monotonic()

    def _demand_one_each(self) -> None:
        """Raise InputError where a process is one too many. One that died here, and came again, is one."""
        for _, answer in sorted(self._answers.items()):
            if answer["num_processes"] != self._count or answer["process_id"] >= self._count:
                raise self._one_too_many(answer)
        by_process: dict[int, list[str]] = {}
        for file, answer in self._answers.items():
            by_process.setdefault(answer["process_id"], []).append(file)
        for files in by_process.values():
            if len(files) > 1:
                alive = self._alive(files)
                if len(alive) > 1:
                    raise self._one_too_many(self._answers[alive[-1]], self._answers[alive[0]])
                self._drop(set(files) - set(alive))

    def _drop_silent(self) -> None:
        """Forget processes that answered, and died while the others were awaited."""
        before = time.monotonic() - _BEATS * seconds_between_beats(self._folder)
        earlier = {file: answer for file, answer in self._answers.items() if self._read_at[file] < before}
        self._drop({file for file, answer in earlier.items() if read(self._folder / file) in (None, answer)})

    def _drop(self, files: set[str]) -> None:
        self._dead |= files
        for file in files:
            del self._answers[file]

    def _alive(self, files: Sequence[str]) -> list[str]:
        """Return those of the files that are being rewritten."""
        before = {file: read(self._folder / file) for file in files}
        time.sleep(_BEATS * seconds_between_beats(self._folder))
        return [file for file in files if (now := read(self._folder / file)) and now != before[file]]

    def _one_too_many(self, answer: Answer, first: Answer | None = None) -> InputError:
        there = f"process {answer['process_id']} is on {first['host']} and process 0" if first else "process 0"
        return InputError(
            f"{_name(answer)} is one too many in {self._folder.parent.parent}, where {there} on {self._who['host']} "
            f"has {self._count} processes: give each its own `distributed.process_id`, all the same "
            "`distributed.num_processes`, and each run its own workdir"
        )

    def _missing(self) -> str:
        there = {0} | {answer["process_id"] for answer in self._answers.values()}
        missing = ", ".join(
            f"process {p} on {self._names[p]}" if p in self._names else f"process {p}"
            for p in range(self._count)
            if p not in there
        )
        folder = self._folder.parent.parent
        return (
            f"{missing} did not arrive in {folder} within {self._place.initialization_timeout} s "
            f"(distributed.initialization-timeout); {len(there)} of {self._count} processes are there: start the same "
            "command on every host, with one workdir that all share"
        )


class _Answerer:
    """Any other process: it answers the newest call, until process 0 says who takes part."""

    def __init__(self, place: DistributedConfig, here: epath.Path, who: Answer) -> None:
        self._place, self._here, self._who = place, here, who
        self._own = _file_of(who["process_id"])
        self._beat: Beat | None = None

    def answer(self) -> tuple[Roll, Beat]:
        try:
            return self._answer()
        except BaseException:
            if self._beat:
                self._beat.remove()
            raise

    def _answer(self) -> tuple[Roll, Beat]:
        until = time.monotonic() + self._place.initialization_timeout
        call: Answer = {}
        while True:
            now = read(self._here / _CALL) or {}
            if now != call and _START.fullmatch(str(now.get("start"))):
                if call:  # process 0 lives: it will say when its own time is over
                    until = max(until, time.monotonic() + _SECONDS_TO_APPEAR)
                if now["start"] != call.get("start"):
                    self._answer_to(now["start"])
                call = now
            if self._beat and (result := self._result(call["start"])):
                return result, self._beat
            if time.monotonic() > until:
                raise HostsMissing(self._not_there())
            time.sleep(_seconds_between_looks(self._here))

    def _answer_to(self, start: str) -> None:
        if self._beat:
            self._beat.remove()
            self._beat = None
        with contextlib.suppress(OSError):  # a call of an earlier start, whose folder is gone
            self._beat = Beat(self._here / start / self._own, self._who)

    def _result(self, start: str) -> Roll | None:
        """Return the roll; None where there is no result, or none for this process."""
        result = read(self._here / start / _RESULT)
        if not result or self._own not in result["files"]:
            return None
        if why := result.get("refused"):
            raise (HostsMissing if result["code"] == RESTART else InputError)(why)
        return Roll(str(self._here / start), self._place, tuple(result["files"]), tuple(result["hosts"]))

    def _not_there(self) -> str:
        folder, host = self._here.parent, self._who["host"]
        within = f"within {self._place.initialization_timeout} s (distributed.initialization-timeout)"
        begun = [result for path in self._here.glob(f"*/{_RESULT}") if "hosts" in (result := read(path) or {})]
        if begun:
            return (
                f"process {self._who['process_id']} on {host} was not called in {folder} {within}: process 0 on "
                f"{begun[0]['hosts'][0]} has begun without it, or did not start again"
            )
        return (
            f"process 0 did not arrive in {folder} {within}: start the same command there; if it runs, {folder} on "
            f"{host} is not the folder that process 0 has by this name: all hosts need one folder that they share "
            "(NFS, Filestore, gs://BUCKET/FOLDER), as `workdir`"
        )


def _remove(earlier: epath.Path) -> None:
    """Remove the folder of an earlier start. A process that has read its call a moment ago may still write its answer
    there; what is left then confuses nobody."""
    for _ in range(_TRIES):
        try:
            earlier.rmtree(missing_ok=True)  # ends silently, too, where a file within was renamed meanwhile
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                raise
        if not earlier.exists():
            return
        time.sleep(0.05)


def _alone(here: epath.Path) -> Lock:
    """Lock the folder for process 0. Raises InputError where another process 0 has it."""
    try:
        return Lock(here)
    except InputError as taken:
        raise InputError(
            f"process 0 on {socket.gethostname()} is one too many: {taken}; give each process its own "
            "`distributed.process_id`, and each run its own workdir"
        ) from None


def _file_of(process: int) -> str:
    return f"{process}-{uuid.uuid4().hex}.json"


def _seconds_between_looks(folder: epath.Path) -> float:
    return 2.0 if in_bucket(folder) else 0.3


def _is_answer(answer: Answer, process: int) -> bool:
    return (
        answer.get("process_id") == process
        and isinstance(answer.get("num_processes"), int)
        and isinstance(answer.get("host"), str)
        and isinstance(answer.get("settings"), dict)
    )


def _name(answer: Answer) -> str:
    return f"process {answer['process_id']} on {answer['host']}"


def _difference(first: dict[str, Any], other: dict[str, Any]) -> str:
    return "; ".join(
        f"{name}: {first.get(name)!r} at process 0, {other.get(name)!r} there"
        for name in sorted(first | other)
        if first.get(name) != other.get(name)
    )
