"""Join the processes of a run, one on each host; exchange values between them; report a process that is lost.

Process 0 listens on the coordinator address, and each process keeps a connection to it for as long as the run lasts:
JSON, one object a line. When a host does not arrive or is lost, jax's own coordination service aborts the process with
a stack trace that names no host; a broken connection shows at once which process is gone. When all are connected,
jax.distributed is started on a port of its own.
"""

import asyncio
import atexit
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import jax
from etils import epath

from xlnet_jax.errors import RESTART, USER_ERROR, InputError, exit_code
from xlnet_jax.settings.config import DistributedConfig
from xlnet_jax.training.run.runtime import address_of

Message = dict[str, Any]

_LONGEST_MESSAGE = 2**24  # bytes
_SECONDS_TO_LEAVE = 10.0
SECONDS_TO_APPEAR = 60.0
"""time for the other hosts to see a file that process 0 has written: NFS caches its absence for a while"""
_MARK = ".start"
_DONE = "all is done"


class HostsMissing(InputError):
    """Not all processes of a run arrived. The launcher may start the missing ones later, so it should try again."""

    exit_code = RESTART


class Hosts:
    """Processes of a run: here, this one alone."""

    process_id = 0

    @property
    def first(self) -> bool:
        """True in process 0, which writes everything but the checkpoints alone."""
        return self.process_id == 0

    def gather(self, name: str, value: Any) -> list[Any]:
        """Wait for all processes; return the values (plain JSON) that they give under this name, by process."""
        return [value]

    def demand_shared(self, folder: epath.PathLike) -> None:
        """Raise InputError on a host whose `folder` is another one than that of process 0."""


ALONE = Hosts()


@contextmanager
def joined(place: DistributedConfig | None, settings: dict[str, Any], names: Sequence[str] = ()) -> Iterator[Hosts]:
    """Start jax.distributed; call this before anything asks for a device. Until the context is left, this process ends
    when another one is lost or ends in an error.

    place: the result of `runtime.place_of`. settings: settings that must be equal in all processes, by name. names: the
    host of each process, where known in advance. Raises HostsMissing with the processes that do not arrive in time,
    InputError with the settings that differ.
    """
    if place is None:
        yield ALONE
        return
    settings = json.loads(json.dumps(settings))
    hub = _Hub(place, settings, names) if place.process_id == 0 else None
    team = _Team(place, settings, hub)
    try:
        yield team
        team.gather(_DONE, None)
    except BaseException as error:
        team.leave_in_error(error)
        raise


class _Team(Hosts):
    """One of several processes, connected to process 0."""

    def __init__(self, place: DistributedConfig, settings: dict[str, Any], hub: "_Hub | None"):
        self.process_id = int(place.process_id or 0)
        self._hub = hub
        self._gathered: dict[str, list[Any]] = {}
        self._news = threading.Condition()
        self._leaving = False
        hello = {
            "process_id": self.process_id,
            "num_processes": place.num_processes,
            "host": socket.gethostname(),
            "settings": settings,
        }
        self._line, self._messages, welcome = _enter(place, hello)
        self._silence_of_first = f"process 0 on {welcome['host']} was lost"
        threading.Thread(target=self._listen, daemon=True).start()
        _start_jax(place, welcome["coordinator_address"])

    def gather(self, name: str, value: Any) -> list[Any]:
        self._send({"kind": "gather", "name": name, "value": value})
        with self._news:
            self._news.wait_for(lambda: name in self._gathered)
            return self._gathered.pop(name)

    def demand_shared(self, folder: epath.PathLike) -> None:
        start, mark = uuid.uuid4().hex, epath.Path(folder) / _MARK
        if self.first:
            mark.write_text(start)
        start = self.gather("mark of this start", start)[0]
        until = time.monotonic() + SECONDS_TO_APPEAR
        while not mark.exists() or mark.read_text() != start:
            if time.monotonic() > until:
                raise InputError(
                    f"workdir {folder} on {socket.gethostname()} is not the folder that process 0 has by this name: "
                    "all hosts need one folder that they share (NFS, Filestore, gs://BUCKET/FOLDER), as `workdir`"
                )
            time.sleep(0.5)

    def leave_in_error(self, error: BaseException) -> None:
        """Tell the others, and let this process end without waiting for them."""
        if not isinstance(error, InputError | OSError | KeyboardInterrupt):
            # Collectives may fail before the broken connection tells which host is lost.
            time.sleep(_SECONDS_TO_LEAVE / 2)
        code = exit_code(error)
        with contextlib.suppress(OSError):
            self._send({"kind": "failed", "why": str(error) or type(error).__name__, "code": code})
        self._leaving = True
        # jax registered an exit handler that waits for the others. This one was registered later, so it runs first.
        atexit.register(self._end, code)
        # Threads that save must not keep the process alive.
        watchdog = threading.Timer(3 * _SECONDS_TO_LEAVE, self._end, [code])
        watchdog.daemon = True
        watchdog.start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            for line in self._messages:
                message = json.loads(line)
                if message["kind"] == "gathered":
                    self._leaving |= message["name"] == _DONE  # from now on a broken connection is expected
                    with self._news:
                        self._gathered[message["name"]] = message["values"]
                        self._news.notify_all()
                elif not self._leaving:
                    self._report(message["why"], message["code"])
        if not self._leaving:
            self._report(self._silence_of_first, RESTART)

    def _report(self, why: str, code: int) -> None:
        # Write through os: the main thread may hold the lock of the buffered streams.
        again = "; the same command on all hosts goes on from the last checkpoint" if code == RESTART else ""
        os.write(2, f"error: {why}{again}\n".encode())
        self._end(code)

    def _end(self, code: int) -> None:
        if self._hub:
            self._hub.await_others()
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os._exit(code)

    def _send(self, message: Message) -> None:
        self._line.sendall(_encoded(message))


class _Hub:
    """Server in process 0 that relays between all processes. Its fields belong to the thread of its event loop."""

    def __init__(self, place: DistributedConfig, settings: dict[str, Any], names: Sequence[str]):
        self._place, self._settings = place, settings
        self._count = int(place.num_processes or 1)
        self._names = dict(enumerate(names))
        self._lines: dict[int, asyncio.StreamWriter] = {}
        self._differing: dict[int, str] = {}  # by process: difference of its settings from those of process 0
        self._values: dict[str, dict[int, Any]] = {}
        self._open = False  # has everybody arrived?
        self._loop = asyncio.new_event_loop()
        _, port = address_of(place)
        try:
            server = asyncio.start_server(self._talk, None, port, limit=_LONGEST_MESSAGE, reuse_address=True)
            self._server = self._loop.run_until_complete(server)
        except OSError as error:
            raise InputError(
                f"distributed.coordinator-address {place.coordinator_address}: process 0 cannot listen there "
                f"({error.strerror}): give a port that is free on its host"
            ) from None
        self._patience = self._loop.call_later(place.initialization_timeout, self._refuse_incomplete)
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def await_others(self) -> None:
        """Wait until all others have left: jax aborts processes that are alive when process 0 ends."""
        until = time.monotonic() + _SECONDS_TO_LEAVE
        while len(self._lines) > 1 and time.monotonic() < until:
            time.sleep(0.05)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _notice_dead_peers(writer.get_extra_info("socket"), self._place.heartbeat_timeout_seconds)
        process = None
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # a port scanner may connect
            hello = json.loads(await reader.readline())
            process = hello["process_id"]
            self._arrive(hello, writer)
            while line := await reader.readline():
                self._hear(process, json.loads(line))
        if process is not None and self._lines.get(process) is writer:
            del self._lines[process]
            if self._open:
                self._tell_all("lost", f"{self._name(process)} was lost", RESTART)
        writer.close()

    def _arrive(self, hello: Message, writer: asyncio.StreamWriter) -> None:
        process, host = hello["process_id"], hello["host"]
        expected = hello["num_processes"] == self._count and process in range(self._count)
        if not expected or process in self._lines or self._open:
            why = (
                f"process {process} on {host} is one too many at {self._place.coordinator_address}, where process 0 "
                f"on {socket.gethostname()} has {self._count} processes: give each its own `distributed.process_id`, "
                "all the same `distributed.num_processes`, and each run its own port"
            )
            writer.write(_encoded({"kind": "refused", "why": why, "code": USER_ERROR}))
            return
        self._lines[process] = writer
        self._names[process] = host
        self._differing[process] = _difference(self._settings, hello["settings"])
        if len(self._lines) < self._count:
            return
        self._patience.cancel()
        if others := [p for p in range(self._count) if self._differing[p]]:
            why = (
                f"{self._name(others[0])} was started with other settings than process 0 "
                f"({self._differing[others[0]]}): give the same command everywhere"
            )
            self._tell_all("refused", why, USER_ERROR)
        else:
            self._open = True
            welcome = {
                "kind": "welcome",
                "host": self._names[0],
                "coordinator_address": f"{address_of(self._place)[0]}:{_free_port()}",
            }
            for line in self._lines.values():
                line.write(_encoded(welcome))

    def _hear(self, process: int, message: Message) -> None:
        if message["kind"] == "failed":
            first_line, *_ = message["why"].splitlines()
            self._tell_all("failed", f"{self._name(process)} ended: {first_line}", message["code"], but=process)
            return
        values = self._values.setdefault(message["name"], {})
        values[process] = message["value"]
        if len(values) == self._count:
            self._open &= message["name"] != _DONE
            del self._values[message["name"]]
            in_order = [values[p] for p in range(self._count)]
            for line in self._lines.values():
                line.write(_encoded({"kind": "gathered", "name": message["name"], "values": in_order}))

    def _tell_all(self, kind: str, why: str, code: int, but: int | None = None) -> None:
        """Tell all processes that the run is over. From now on a broken connection is expected."""
        self._open = False
        for process, line in self._lines.items():
            if process != but:
                line.write(_encoded({"kind": kind, "why": why, "code": code}))

    def _refuse_incomplete(self) -> None:
        missing = ", ".join(self._name(p) for p in range(self._count) if p not in self._lines)
        why = (
            f"{missing} did not arrive at {self._place.coordinator_address} within "
            f"{self._place.initialization_timeout} s (distributed.initialization-timeout); {len(self._lines)} of "
            f"{self._count} processes are there: start the same command on every host"
        )
        self._tell_all("refused", why, RESTART)

    def _name(self, process: int) -> str:
        return f"process {process} on {self._names[process]}" if process in self._names else f"process {process}"


def _enter(place: DistributedConfig, hello: Message) -> tuple[socket.socket, BinaryIO, Message]:
    """Connect to process 0; return the connection, its stream of messages, and the welcome sent when all are there."""
    host, port = address_of(place)
    until = time.monotonic() + place.initialization_timeout
    answer = None
    while answer is None and time.monotonic() < until:
        with contextlib.suppress(OSError, ValueError):  # process 0 does not listen yet, or another program does
            line = socket.create_connection(
                (host if place.process_id else "localhost", port), timeout=_SECONDS_TO_LEAVE
            )
            _notice_dead_peers(line, place.heartbeat_timeout_seconds)
            # Process 0 answers when its own time is over, and it may have started later than this process.
            line.settimeout(place.initialization_timeout + _SECONDS_TO_LEAVE)
            line.sendall(_encoded(hello))
            messages = line.makefile("rb")
            answer = json.loads(messages.readline())
        time.sleep(0 if answer else 0.2)
    if answer is None:
        raise HostsMissing(
            f"process 0 did not arrive at {place.coordinator_address} within {place.initialization_timeout} s "
            f"(distributed.initialization-timeout): start the same command there, and see that {socket.gethostname()} "
            "can reach that port"
        )
    if answer["kind"] == "refused":
        raise (HostsMissing if answer["code"] == RESTART else InputError)(answer["why"])
    line.settimeout(None)
    return line, messages, answer


def _start_jax(place: DistributedConfig, coordinator_address: str) -> None:
    # jax's own handler of SIGTERM would replace ours.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        coordinator_address,
        place.num_processes,
        place.process_id,
        cluster_detection_method="deactivate",  # the launcher decides which devices a process sees
        initialization_timeout=place.initialization_timeout,
        # The connection detects a lost host first, and names it. Only this heartbeat detects a process that hangs.
        heartbeat_timeout_seconds=2 * place.heartbeat_timeout_seconds,
    )
    # When process 0 is lost, jax aborts this process at the moment at which the connection breaks. With this C function
    # as its handler, the abort waits sleep(SIGABRT) seconds, time enough to report the loss and exit.
    libc = ctypes.CDLL(None)
    libc.signal(signal.SIGABRT, libc.sleep)


def _notice_dead_peers(line: socket.socket, seconds: int) -> None:
    """Let the kernel probe a silent peer: a host that loses power closes no connection."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        tcp = socket.IPPROTO_TCP
        line.setsockopt(tcp, socket.TCP_KEEPIDLE, max(seconds // 4, 1))
        line.setsockopt(tcp, socket.TCP_KEEPINTVL, max(seconds // 4, 1))
        line.setsockopt(tcp, socket.TCP_KEEPCNT, 3)
        line.setsockopt(tcp, socket.TCP_USER_TIMEOUT, 1000 * seconds)


def _free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return server.getsockname()[1]


def _difference(first: dict[str, Any], other: dict[str, Any]) -> str:
    return "; ".join(
        f"{name}: {first.get(name)!r} at process 0, {other.get(name)!r} there"
        for name in sorted(first | other)
        if first.get(name) != other.get(name)
    )


def _encoded(message: Message) -> bytes:
    return json.dumps(message).encode() + b"\n"
