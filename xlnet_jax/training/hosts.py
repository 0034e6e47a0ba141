"""The processes of a run, one on each host. jax connects them, and ends the others when one is lost.

Values go through the key-value store of jax's coordinator, which runs in process 0: unlike collectives it needs no
devices, and takes values of any length. jax has no public functions for it; these are the same in jax 0.10 to 0.12.
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
from dataclasses import dataclass
from typing import Any

import jax
from jax._src.distributed import global_state

from xlnet_jax.costs import demand_address_space
from xlnet_jax.errors import CRASH, INTERRUPTED, RESTART, USER_ERROR, InputError, exit_code, first_line
from xlnet_jax.printing import Console, without_secrets
from xlnet_jax.settings.config import RunConfig
from xlnet_jax.settings.fields import flatten
from xlnet_jax.storage.reading import decode_json
from xlnet_jax.training.machine import demand_tpu, initialize_jax, place_of
from xlnet_jax.training.metrics import demand_wandb

_SECONDS = 2.0
"""time between two looks at whether another process has ended the run"""
_BROKEN = re.compile(r"UNAVAILABLE|gloo|nccl|(closed|reset) by peer", re.IGNORECASE)
_runs = itertools.count()


class RunEnded(InputError):
    """Another process has ended the run. code: exit code of that process; never that of a run that is done."""

    def __init__(self, why: str, code: Any) -> None:
        self.exit_code = code if code in (CRASH, USER_ERROR, INTERRUPTED) else RESTART
        super().__init__(why)


class Hosts:
    """Processes of a run: those that jax has connected, or this one alone."""

    def __init__(self) -> None:
        self.process_id = global_state.process_id
        self._client: Any = global_state.client
        self._run, self._numbers = f"xlnet_jax/{next(_runs)}", itertools.count()

    @property
    def first(self) -> bool:
        """True in process 0, which writes everything but the checkpoints alone."""
        return self.process_id == 0

    def gather(self, name: str, value: Any) -> list[Any]:
        """Wait for all processes; return the values (plain JSON) that they give under this name, by process.

        All processes call this in the same order.
        """
        if self._client is None:
            return [value]
        key = f"{self._run}/{next(self._numbers)} {name}"
        self._client.key_value_set(f"{key}/{self.process_id}", json.dumps(value))
        if self.first:  # the others read one value each, not one of every process
            values = [self._get(f"{key}/{process}") for process in range(global_state.num_processes)]
            self._client.key_value_set(f"{key}/all", json.dumps(values))
        return list(self._get(f"{key}/all"))

    def demand_same(self, what: str, values: Mapping[str, Any]) -> None:
        """Raise InputError in all processes if one has other values (plain JSON) than process 0; it names the process
        and the difference. what: as "other settings"."""
        own = decode_json(json.dumps(values), what)  # lists in place of tuples
        first = self.gather(what, own if self.first else None)[0]
        keys = [key for key in sorted(first | own) if first.get(key) != own.get(key)]
        difference = "; ".join(f"{key}: {first.get(key)!r} at process 0, {own.get(key)!r} there" for key in keys)
        for process, (host, found) in enumerate(self.gather(what, [socket.gethostname(), difference])):
            if found:
                raise InputError(f"process {process} on {host} has {what} than process 0 ({found})")

    def announce_end(self, error: BaseException) -> None:
        """Tell the other processes why this one ends."""
        why = str(error).partition("\n")[0] if isinstance(error, InputError) else first_line(error)
        why = f"process {self.process_id} on {socket.gethostname()} ended: {why}"
        with suppress(RuntimeError):  # the coordinator is gone
            self._client.key_value_set(f"{self._run}/end/{self.process_id}", json.dumps([why, exit_code(error)]))

    def watch(self, over: threading.Event) -> None:
        """End this process if another one has ended the run and the main thread waits for the devices in vain."""
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


ALONE = Hosts()


@contextmanager
def connect(config: RunConfig) -> Iterator[Hosts]:
    """Connect the processes of a run, before anything asks for a device; leave when all processes do.

    Where jax.distributed is initialized already, its processes make the run. Raises InputError if the place of this
    process is not known or the settings of a process differ, RunEnded if another process ended the run. If a process
    is lost, jax ends this one (SIGABRT).
    """
    if not jax.distributed.is_initialized():
        if not (place := place_of(config)):
            yield ALONE
            return
        initialize_jax(place)
    hosts, over = Hosts(), threading.Event()
    threading.Thread(target=hosts.watch, args=(over,), daemon=True).start()
    try:
        settings = {s.name: without_secrets(s.value) for s in flatten(config) if not s.name.startswith("distributed.")}
        hosts.demand_same("other settings", settings)
        yield hosts
        hosts.gather("done", None)
    except BaseException as error:
        over.set()
        if isinstance(error, RuntimeError) and _BROKEN.search(str(error)):
            error = RunEnded(f"the connection to another process broke: {first_line(error)}", RESTART)
            print(f"{error}; jax ends this process and names the lost one", file=sys.stderr, flush=True)
        hosts.announce_end(error)
        jax.distributed.shutdown()  # while all answer: then each can exit with its own code
        raise error from None
    finally:
        over.set()


@dataclass(frozen=True)
class Process:
    """Process 0 prints and writes files for all; the others write their part of the checkpoints only."""

    hosts: Hosts
    console: Console
    """silent in all processes but the first"""
    began: float
    """by time.time()"""
    is_command: bool = False
    """True where the process does nothing but this run: a second signal then ends it at once"""

    @classmethod
    def begin(cls, config: RunConfig, hosts: Hosts, is_command: bool = False) -> "Process":
        """Find the devices, together with all other processes.

        Raises InputError if the settings ask for a TPU that is not there, for Weights & Biases without its package, or
        if there is too little address space.
        """
        demand_address_space()
        began = time.time()
        if config.log.wandb and hosts.first:
            demand_wandb(config.log.wandb)
        jax.devices()  # all processes must ask at the same time
        if config.tpu:
            demand_tpu()
        console = Console(soft_wrap=True, highlight=False, markup=False, quiet=not hosts.first)
        return cls(hosts, console, began, is_command)
