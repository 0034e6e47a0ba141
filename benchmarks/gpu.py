"""Time training steps on one GPU: plain and fused attention, and Hugging Face's PyTorch, eager and compiled, in turns.

    python -m benchmarks.gpu

Takes at most ten minutes (--minutes). Needs jax with CUDA (`pip install -e '.[cuda13]'`), and for the last two sides
PyTorch with CUDA and transformers; no TensorFlow is imported. Before it is timed, the fused kernel is compared with
plain attention, as at the start of a run (training/attention.py).

A step is one of benchmarks/train_step.py, in bfloat16 with dropout 0.1 and windows of 512 tokens. Every side is a
process of its own. Prints the median seconds of a step, tokens per second, MFU and peak memory of each side. MFU is the
same for all sides: the FLOPs of our network, without what remat repeats, over time and the data sheet's peak.

--device cpu interprets the kernel, which takes hours at these sizes: use --sizes tiny.
"""

import argparse
import contextlib
import dataclasses
import importlib.util
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version

from benchmarks.train_step import Worker, our_step, their_step, work
from xlnet_jax.costs import peak_flops
from xlnet_jax.objectives.presets import base, large
from xlnet_jax.objectives.registry import step_flops
from xlnet_jax.settings.config import Config, DataConfig, ModelConfig

PLAIN, FUSED, EAGER, COMPILED = SIDES = ("plain", "fused", "hf-eager", "hf-compile")
ROWS = {"tiny": 2, "base": 8, "large": 4}
"""Windows in a batch, few enough that all sides should fit into 80 GB together: an estimate"""
REMAT = "feed_forward"
"""The fastest for Large on an H200. PyTorch repeats nothing, but our scan over layers copies all that `none` saves."""
COMPILATION = 0.7
"""Share of the time for a size in which a side must have run its first step, or it is left out"""
STATE = "name,driver_version,clocks.sm,clocks.max.sm,power.draw,power.limit,temperature.gpu,utilization.gpu,memory.used"


def tiny() -> Config:
    return Config(
        model=ModelConfig(
            vocab_size=128, num_layers=1, d_model=16, num_heads=1, d_head=16, d_ff=32, mem_len=16, dtype="bfloat16"
        ),
        data=DataConfig(seq_len=32, reuse_len=16, perm_size=16, num_predict=6),
    )


def config_of(size: str, rows: int | None, remat: str = REMAT) -> Config:
    config = {"tiny": tiny, "base": base, "large": large}[size]()
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, dropout=0.1, attention_dropout=0.1, remat=remat),
        data=dataclasses.replace(config.data, batch_size=rows or ROWS[size]),
    )


# ---- one side, in its own process ------------------------------------------------------------------------------------


def step_of(side: str, config: Config, device: str) -> Callable[[], float]:
    """Build the training step of one side. For the fused kernel, print first how far it is from plain attention."""
    if side in (EAGER, COMPILED):
        return their_step(config, "cpu" if device == "cpu" else "cuda", side == COMPILED)
    step = our_step(dataclasses.replace(config, model=dataclasses.replace(config.model, attention=side)))
    return checked(config, device, step) if side == FUSED else step


def checked(config: Config, device: str, step: Callable[[], float]) -> Callable[[], float]:
    """Compare the fused kernel with plain attention. Return the step, on a CPU with an interpreted kernel."""
    from xlnet_jax.kernels.mesh import interpret_kernels
    from xlnet_jax.training.attention import TOLERANCE, difference

    def interpreted() -> contextlib.AbstractContextManager[None]:
        return interpret_kernels("gpu") if device == "cpu" else contextlib.nullcontext()

    def interpreted_step() -> float:
        with interpreted():
            return step()

    with interpreted():
        share, what = difference(config.model)
    accepted = TOLERANCE[config.model.dtype]
    print(f"check       {what}: {share:.2%} from plain attention, {accepted:.0%} are accepted", file=sys.stderr)
    if share > accepted:
        sys.exit("the fused kernel is wrong on this device: a run would use plain attention")
    return interpreted_step


# ---- the comparison --------------------------------------------------------------------------------------------------


def print_state() -> None:
    """Print what may make this machine slow: clocks, power, temperature, other processes."""
    cores = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    if shutil.which("nvidia-smi"):
        command = ["nvidia-smi", f"--query-gpu={STATE}", "--format=csv,noheader"]
        print("machine    ", subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip())
    print(f"machine     {cores}, jax {version('jax')}" + (f", torch {version('torch')}" if has_torch() else ""))


def has_torch() -> bool:
    return all(map(importlib.util.find_spec, ("torch", "transformers")))


def compare(sides: list[str], size: str, config: Config, device: str, end: float, steps: int) -> dict[str, Worker]:
    """Run turns of all sides until `end`, at least two; a side whose process ends is left out."""
    environment = {
        "JAX_PLATFORMS": device, "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0"),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }  # fmt: skip
    rows, remat = str(config.data.batch_size), config.model.remat
    options = ["--device", device, "--rows", rows, "--remat", remat]
    workers = {
        side: Worker(["-m", "benchmarks.gpu", "--side", side, "--sizes", size, *options], environment) for side in sides
    }

    def run(side: str, turn: Callable[[Worker], None]) -> None:
        try:
            turn(workers[side])
        except ChildProcessError:
            print(f"ended       {size}, {side}: its error is above, or it compiled too long", flush=True)
            workers.pop(side).close()

    begin = time.monotonic()
    compiled_by = begin + COMPILATION * (end - begin) if end > begin else math.inf
    for worker in workers.values():
        worker.begin()
    for side in sides:  # all of them compile at the same time
        run(side, lambda worker: worker.finish(counts=False, until=compiled_by))
    turns = 0
    while workers and (turns < 2 or time.monotonic() < end):
        for side in list(workers):
            run(side, lambda worker: worker.turn(steps))
        turns += 1
    for worker in workers.values():
        worker.close()
    return workers


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--sizes", nargs="+", choices=ROWS, default=["base", "large"], help="networks to compare")
    there = SIDES if has_torch() else (PLAIN, FUSED)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=there, help="what to time")
    parser.add_argument("--rows", type=int, help=f"windows in a batch (default: {ROWS})")
    parser.add_argument("--remat", default=REMAT, help="what our sides recompute (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=10, help="longest time, shared by the sizes (0: two turns)")
    parser.add_argument("--steps", type=int, default=5, help="measured steps in a turn of one side")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        return work(step_of(given.side, config_of(given.sizes[0], given.rows, given.remat), given.device))

    start = time.monotonic()
    print_state()
    print(f"{'size':8}{'rows':>5}  {'side':12}{'step, ms':>10}{'tokens/s':>12}{'MFU':>7}{'peak, MB':>10}{'steps':>7}")
    for number, size in enumerate(given.sizes, 1):
        config = config_of(size, given.rows, given.remat)
        # A turn that has begun is finished: leave time for it.
        end = start + 54 * given.minutes * number / len(given.sizes)
        for side, worker in compare(given.sides, size, config, given.device, end, given.steps).items():
            seconds = statistics.median(worker.seconds)
            peak = peak_flops(device_kind(given.device))
            mfu = f"{step_flops(config) / seconds / peak:.1%}" if peak else "-"
            rows = config.data.batch_size
            print(
                f"{size:8}{rows:5}  {side:12}{1e3 * seconds:10.1f}{rows * config.data.seq_len / seconds:12,.0f}"
                f"{mfu:>7}{worker.peak:10,.0f}{len(worker.seconds):7}",
                flush=True,
            )
    print_state()
    return None


def device_kind(device: str) -> str:
    """Return the name of the first GPU, as jax and nvidia-smi call it; this process leaves its memory to the others."""
    if device == "cpu" or not shutil.which("nvidia-smi"):
        return device
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", "--id=0"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
