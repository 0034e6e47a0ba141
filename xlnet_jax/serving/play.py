"""A local page on which a model fills, scores and predicts; the same as JSON."""

import contextlib
import os
import signal
import sys
import threading
import time
import webbrowser
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xlnet_jax.errors import INTERRUPTED, RESTART
from xlnet_jax.settings.common import CheckpointSettings
from xlnet_jax.settings.fields import between, check_bounds, setting

SECONDS_OF_A_SIGNAL = 1.0


@dataclass(frozen=True)
class PlaySettings(CheckpointSettings):
    """A page on this machine to try a model, and a server of JSON."""

    port: int = setting(8000, between(0, 65535))
    """port on 127.0.0.1; 0 = any that is free"""
    open: bool = False
    """open the page in a browser"""


def serve(settings: PlaySettings) -> int:
    """Load a checkpoint and serve it until a signal. Return the exit code. Raises InputError if there is no checkpoint,
    or another program has the port."""
    check_bounds(settings)
    from xlnet_jax.serving.batching import Work
    from xlnet_jax.serving.server import Server
    from xlnet_jax.serving.service import Service

    with contextlib.closing(Server(settings.port)) as server:
        service = Service(settings.checkpoint, settings.tokenizer)
        about = {"checkpoint": Path(settings.checkpoint).name, **service.about()}
        with _until_signal() as (stopped, reasons):
            server.start(service, about)
            print(f"{server.address}  {_describe(about)}; Ctrl-C stops it", flush=True)
            server.batcher.ask(Work(service.warm_up, (), 1), None)
            if settings.open:
                webbrowser.open(server.address)
            stopped.wait()
            server.close()
    print("stopped", file=sys.stderr)
    return INTERRUPTED if reasons[0] == signal.SIGINT else RESTART


def _describe(about: dict[str, Any]) -> str:
    kinds = ", ".join(kind for kind, why in about["can"].items() if why is None)
    size = f"{about['layers']} layers x {about['width']:,}, {about['pieces']:,} pieces"
    return f"{about['checkpoint']}: {about['objective']}, {size}; answers {kinds}"


@contextlib.contextmanager
def _until_signal() -> Iterator[tuple[threading.Event, list[int]]]:
    """Yield an event that Ctrl-C or SIGTERM sets, and the list to which the signal is added. A later one ends the
    process at once, unless it comes with the first: shells and `timeout` send two."""
    stopped, reasons, begun = threading.Event(), list[int](), [0.0]

    def stop(number: int, _: Any) -> None:
        if not reasons:
            begun[0] = time.monotonic()
        elif time.monotonic() > begun[0] + SECONDS_OF_A_SIGNAL:
            os._exit(INTERRUPTED if number == signal.SIGINT else RESTART)
        reasons.append(number)
        stopped.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped, reasons
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
