"""Import everything, then fork a child for each command that is asked for: a start takes no time.

It has no jax backend and runs one command at a time. Requests and answers are lines of JSON on its standard streams.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import sys
import time
import warnings
from typing import Any

PRELOADED = (
    "xlnet_jax.__main__", "xlnet_jax.training.pretrain", "xlnet_jax.tasks.finetune",
    "xlnet_jax.checkpoints.formats", "xlnet_jax.objectives.presets", "data_pipelines.prepare", "tensorstore",
    "matplotlib.pyplot", "tensorflow",
)  # fmt: skip
LONGEST = 600.0  # seconds of a run; after them it hangs, and is killed
PATIENCE = 20.0  # seconds in which the workers of a process that has ended must end


def serve() -> None:
    """Answer requests until the standard input ends. One processor: the work of a run is not spread over processes."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
    for module in PRELOADED:
        importlib.import_module(module)
    gc.freeze()
    gc.disable()  # children live for seconds
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if not child:
            answers.close()
            _become(request)
            return
        print(json.dumps(_watch(child)), file=answers, flush=True)


def _become(request: dict[str, Any]) -> None:
    """Run a command in this process, as `python -m` does."""
    os.setpgid(0, 0)
    for stream, name in ((1, "out"), (2, "error")):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    ctypes.CDLL(os.environ["LD_PRELOAD"]).faults_begin()
    module, *argv = request["command"]
    sys.argv = [module, *argv]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _watch(child: int) -> dict[str, Any]:
    """Wait for a child, and kill its group when its time is over."""
    began = time.monotonic()
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return {"code": os.waitstatus_to_exitcode(status), "left": _left(child)}
        if time.monotonic() - began > LONGEST:
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.005)


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
