"""Process that has imported everything and forks a child for each command it is told to run: a start takes no time.

It has no jax backend and runs one command at a time. Requests and answers are lines of JSON on its standard streams.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

PRELOADED = (
    "xlnet_jax.train", "xlnet_jax.finetune", "xlnet_jax.compare", "xlnet_jax.convert",
    "data_pipelines.prepare.__main__", "tests.faults.in_processes",
    "xlnet_jax.training.pretrain", "xlnet_jax.training.loop", "xlnet_jax.tasks.run", "xlnet_jax.comparison.run",
    "xlnet_jax.checkpoints.formats", "xlnet_jax.objectives.command_line", "data_pipelines.prepare", "tensorstore",
    "matplotlib.pyplot", "tensorflow",
)  # fmt: skip
STOPPED_FOR = 1.0  # seconds between SIGSTOP and SIGCONT
PATIENCE = 20.0  # seconds in which the workers of a process that has ended must end


def serve() -> None:
    """Answer requests until the standard input ends. One processor: the work of a run is not spread over processes."""
    os.sched_setaffinity(0, {int(sys.argv[1])})
    warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
    for module in PRELOADED:
        importlib.import_module(module)
    gc.freeze()
    gc.disable()  # children live for seconds
    answers = os.fdopen(os.dup(1), "w")
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if not child:
            answers.close()
            _become(request)
            return
        print(json.dumps(_watch(child, request)), file=answers, flush=True)


def _become(request: dict[str, Any]) -> None:
    """Run a command in this process, as `python -m` does."""
    from xlnet_jax.api import command

    os.setpgid(0, 0)
    for stream, name in ((1, "out"), (2, "error")):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if request["group"]:
        Path(request["group"], "cgroup.procs").write_text(str(os.getpid()))
    os.environ.update(request["environment"])
    for name, value in request["limits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    os.chdir(request["folder"])
    ctypes.CDLL(os.environ["LD_PRELOAD"]).faults_begin()
    module, *argv = request["command"]
    sys.argv = [module, *argv]
    command.run(importlib.import_module(module).main)


def _watch(child: int, request: dict[str, Any]) -> dict[str, Any]:
    """Wait for a child: kill its group when its time is over, and let it go on a second after it was stopped."""
    began, stopped = time.monotonic(), 0
    while True:
        ended, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
        seconds = time.monotonic() - began
        if ended and os.WIFSTOPPED(status):
            stopped += 1
            time.sleep(STOPPED_FOR)
            os.killpg(child, signal.SIGCONT)
        elif ended:
            break
        if seconds > request["seconds"]:
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.005)
    left = _left(child)
    return {"code": os.waitstatus_to_exitcode(status), "seconds": seconds, "stopped": stopped, "left": left}


def _left(group: int) -> bool:
    """Wait for the other processes of a group; kill those that do not end by themselves, and return True."""
    end = time.monotonic() + PATIENCE
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < end:
            os.killpg(group, 0)
            time.sleep(0.02)
        os.killpg(group, signal.SIGKILL)
        return True
    return False


if __name__ == "__main__":
    serve()
