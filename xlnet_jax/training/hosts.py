"""The processes of a run, one on each host. jax connects them, and ends all of them if one is lost.

Processes exchange values through the key-value store of jax's coordinator in process 0, to which Orbax has the client.
Unlike collectives, it needs no devices and takes values of any length.
"""

import itertools
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import jax

from xlnet_jax.errors import CRASH, INTERRUPTED, RESTART, USER_ERROR, InputError, exit_code, first_line
from xlnet_jax.printing import Console, without_secrets
from xlnet_jax.settings.config import RunConfig
from xlnet_jax.settings.fields import flatten
from xlnet_jax.storage.reading import decode_json
from xlnet_jax.training.machine import HostPlace, initialize_jax, place_of, require_tpu
from xlnet_jax.training.metrics import require_wandb

_SECONDS = 2.0
"""time between two checks whether another process has ended the run"""
_BROKEN = re.compile(r"UNAVAILABLE|gloo|nccl|(closed|reset) by peer", re.IGNORECASE)
_runs = itertools.count()


class RunEnded(InputError):
    """Another process has ended the run. code: exit code of that process."""

    def __init__(self, why: str, code: Any) -> None:
        self.exit_code = code if code in (CRASH, USER_ERROR, INTERRUPTED) else RESTART
        super().__init__(why)


class Process:
    """This process of a run: one of those that jax connected, or the only one. Process 0 prints and writes files for
    all; the others write only their part of the checkpoints."""

    def __init__(self, is_command: bool = False, place: HostPlace | None = None) -> None:
        """is_command: the process does nothing besides this run, so a second signal ends it at once. place: where this
        process was connected; None = the caller has connected it, or it is the only one."""
        self._client: Any = None
        self.process_id, self.num_processes = 0, 1
        if jax.distributed.is_initialized():
            from orbax.checkpoint import multihost

            self._client = multihost.get_jax_distributed_client()
            self.process_id, self.num_processes = (
                (place.process_id, place.num_processes) if place else (jax.process_index(), jax.process_count())
            )
        self.is_command = is_command
        self.console = Console(soft_wrap=True, highlight=False, markup=False, quiet=not self.first)
        self.began = time.time()
        self._run, self._numbers = f"xlnet_jax/{next(_runs)}", itertools.count()

    @property
    def first(self) -> bool:
        """True in process 0."""
        return self.process_id == 0

    def find_devices(self, config: RunConfig) -> None:
        """Find the devices, together with all other processes.

        Raises InputError if the settings ask for a TPU that is not there, or for Weights & Biases without its package.
        """
        if config.log.wandb and self.first:
            require_wandb(config.log.wandb)
        jax.devices()  # all processes must ask at the same time
        if config.tpu:
            require_tpu()

    def gather(self, name: str, value: Any) -> list[Any]:
        """Wait until all processes have given a value (plain JSON) for this name. Return the values, by process.

        All processes must call this in the same order.
        """
        if self._client is None:
            return [value]
        key = f"{self._run}/{next(self._numbers)} {name}"
        self._client.key_value_set(f"{key}/{self.process_id}", json.dumps(value))
        if self.first:  # the others read one value each, not one of every process
            values = [self._get(f"{key}/{process}") for process in range(self.num_processes)]
            self._client.key_value_set(f"{key}/all", json.dumps(values))
        return list(self._get(f"{key}/all"))

    def require_same(self, what: str, values: Mapping[str, Any]) -> None:
        """Raise InputError in all processes if one has other values (plain JSON) than process 0. The message names the
        process and the difference. what: what differs, such as "other settings"."""
        own = decode_json(json.dumps(values), what)  # lists in place of tuples
        first = self.gather(what, own if self.first else None)[0]
        keys = [key for key in sorted(first | own) if first.get(key) != own.get(key)]
        difference = "; ".join(f"{key}: {first.get(key)!r} at process 0, {own.get(key)!r} there" for key in keys)
        for process, (host, found) in enumerate(self.gather(what, [socket.gethostname(), difference])):
            if found:
                raise InputError(f"process {process} on {host} has {what} than process 0 ({found})")

    def announce_end(self, error: BaseException) -> None:
        """Broadcast the reason why this process ends."""
        why = str(error).partition("\n")[0] if isinstance(error, InputError) else first_line(error)
        why = f"process {self.process_id} on {socket.gethostname()} ended: {why}"
        with suppress(RuntimeError):  # the coordinator is gone
            self._client.key_value_set(f"{self._run}/end/{self.process_id}", json.dumps([why, exit_code(error)]))

    def watch(self, over: threading.Event) -> None:
        """End this process if another one has ended the run while the main thread waits for the devices."""
        with suppress(RuntimeError):  # the coordinator is gone: jax ends this process
            while not over.wait(_SECONDS):
                if (end := self._end()) and not over.wait(2 * _SECONDS):  # time for the main thread to end by itself
                    print(f"error: {end}", file=sys.stderr, flush=True)
                    jax.distributed.shutdown()
                    os._exit(end.exit_code)

    def _get(self, key: str) -> Any:
        while True:
            try:
                return decode_json(self._client.blocking_key_value_get(key, int(1000 * _SECONDS)), key)
            except RuntimeError as error:
                if not str(error).startswith("DEADLINE_EXCEEDED"):
                    raise
            if end := self._end():
                raise end

    def _end(self) -> RunEnded | None:
        announced = self._client.key_value_dir_get(f"{self._run}/end/")
        return RunEnded(*decode_json(announced[0][1], announced[0][0])) if announced else None


@contextmanager
def connect(config: RunConfig, is_command: bool = False) -> Iterator[Process]:
    """Connect the processes of a run before anything uses a device, and find the devices. Leave when all processes are
    done.

    If jax.distributed is already initialized, its processes are those of the run. is_command: as for Process. Raises
    InputError if this process does not know its number, or if its settings differ from those of process 0 or ask for
    what is not here; RunEnded if another process ended the run. If a process is lost, jax ends this one (SIGABRT).
    """
    place = None if jax.distributed.is_initialized() else place_of(config.tpu)
    if place:
        initialize_jax(place)
    process, over = Process(is_command, place), threading.Event()
    if not jax.distributed.is_initialized():
        process.find_devices(config)
        yield process
        return
    threading.Thread(target=process.watch, args=(over,), daemon=True).start()
    try:
        settings = {setting.name: without_secrets(setting.value) for setting in flatten(config)}
        process.require_same("other settings", settings)
        process.find_devices(config)
        yield process
        process.gather("done", None)
    except BaseException as error:
        over.set()
        if isinstance(error, RuntimeError) and _BROKEN.search(str(error)):
            error = RunEnded(f"the connection to another process broke: {first_line(error)}", RESTART)
            print(f"{error}; jax ends this process and names the lost one", file=sys.stderr, flush=True)
        process.announce_end(error)
        jax.distributed.shutdown()  # while all answer: then each can exit with its own code
        raise error from None
    finally:
        over.set()
