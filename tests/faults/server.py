"""Import everything, then fork a child for each command that is asked for: a start takes no time.

It has no jax backend. Requests are lines of JSON on its standard input, each a list of commands to run at the same
time; the answer to each is the list of their exit codes.
"""

import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import sys
import warnings
from typing import Any

from xlnet_jax.training import machine

PRELOADED = (
    "xlnet_jax.__main__", "xlnet_jax.training.pretrain", "xlnet_jax.tasks.finetune",
    "xlnet_jax.checkpoints.formats", "xlnet_jax.objectives.presets", "data_pipelines.prepare", "tensorstore",
    "matplotlib.pyplot", "tensorflow",
)  # fmt: skip
LONGEST = 300  # seconds of a run; after them it hangs, and is killed


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
        children = []
        for request in json.loads(line):
            child = os.fork()
            if not child:
                answers.close()
                _become(request)
                return
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(codes), file=answers, flush=True)


def _become(request: dict[str, Any]) -> None:
    os.setpgid(0, 0)
    signal.alarm(LONGEST)
    for stream, name in ((1, "out"), (2, "error")):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(request["environment"])
    for name in ("INITIALIZATION_SECONDS", "HEARTBEAT_SECONDS"):  # a minute and more in a run of a user
        setattr(machine, name, int(os.environ.get(name) or getattr(machine, name)))
    os.chdir(request["folder"])
    ctypes.CDLL(os.environ["LD_PRELOAD"]).faults_begin()
    module, *argv = request["command"]
    sys.argv = [module, *argv]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve()
