"""Time a training step of XLNet-Base here and in Hugging Face's PyTorch (eager), in turns.

    python benchmarks/train_step.py

Needs `pip install torch transformers`. A step is loss, gradients, clipping by the global norm and AdamW, in float32, on
one batch of windows in permuted order with a full memory. Each side is a separate process that computes only in its
turn, with the allocator settings its users have: ours are those of the train command, theirs are the defaults;
--same-allocator gives both sides ours. Prints the median seconds and peak memory of both sides, their multiply-adds
counted by hand, and the share of this machine's matmul rate that they reach.
"""

import argparse
import contextlib
import dataclasses
import math
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from xlnet_jax.objectives.registry import multiply_adds
from xlnet_jax.settings.config import Config, DataConfig, ModelConfig
from xlnet_jax.training.machine import HUGE_PAGES

ROWS, LAYERS, WIDTH, HEADS, HEAD_WIDTH, INNER, VOCABULARY = 2, 12, 768, 12, 64, 3072, 32_000
LENGTH, MEMORY, REUSED, TARGETS = 512, 384, 256, 85
KEYS, DISTANCES = MEMORY + LENGTH, MEMORY + 2 * LENGTH
OUR_CONFIG = Config(
    model=ModelConfig(num_layers=LAYERS, d_model=WIDTH, num_heads=HEADS, d_head=HEAD_WIDTH, d_ff=INNER, mem_len=MEMORY),
    data=DataConfig(batch_size=ROWS, seq_len=LENGTH, reuse_len=REUSED, perm_size=REUSED, num_predict=TARGETS),
)
MATMUL = 4096  # rows and columns of the matmul that measures the machine
OURS, THEIRS = "xlnet_jax", "Hugging Face"


# ---- multiply-adds, counted by hand ----------------------------------------------------------------------------------


def forward_multiply_adds() -> dict[str, tuple[int, int]]:
    """Return the multiply-adds of the matmuls of one forward pass, by part: (here, original and Hugging Face).

    The other side maps queries to all positions, and their outputs back, by matmuls with the one-hot target_mapping. It
    projects position keys for each example, and selects segment scores by a matmul with a one-hot [T, K, B, 2].
    """
    here = {part: count.forward for part, count in multiply_adds(OUR_CONFIG).items()}
    heads, rows = HEADS * HEAD_WIDTH, 2 * LENGTH
    of_layer = {
        "position keys": ROWS * DISTANCES * WIDTH * heads,
        "content scores": ROWS * rows * heads * KEYS,
        "position scores": ROWS * rows * heads * DISTANCES,
        "segment scores": ROWS * rows * 2 * (heads + HEADS * KEYS),
        "values": ROWS * rows * heads * KEYS,
        "target mapping": 2 * ROWS * TARGETS * LENGTH * heads,
    }
    there = here | {part: LAYERS * count for part, count in of_layer.items()}
    return {part: (here.get(part, 0), count) for part, count in there.items()}


# ---- both sides, each in its own process -----------------------------------------------------------------------------


def our_step(config: Config) -> Callable[[], float]:
    """Build the training step of this package, as the train command runs it."""
    import jax
    import numpy as np

    from xlnet_jax.objectives.language_model import LanguageModel
    from xlnet_jax.training.step import Program

    program = Program.of(config, LanguageModel(config))
    plan, state = program.plan, program.init_state({})
    mems = np.random.default_rng(1).normal(size=plan.mems_ZBMD.shape).astype(plan.mems_ZBMD.dtype)
    state = dataclasses.replace(state, mems_ZBMD=jax.device_put(mems, plan.mems_ZBMD.sharding))
    batch = program.put(windows(config))

    def step() -> float:
        nonlocal state
        state, metrics = program.train_step(state, batch)
        jax.block_until_ready(state)
        return float(metrics["loss"])

    return step


def their_step(config: Config, device: str = "cpu", is_compiled: bool = False) -> Callable[[], float]:
    """Build the training step in PyTorch. Half of the rows are reversed, and memory is passed from step to step."""
    import numpy as np
    import torch
    from transformers import XLNetConfig, XLNetLMHeadModel

    from data_pipelines.permutation import to_dense

    torch.set_num_threads(os.cpu_count() or 1)
    net, rows = config.model, config.data.batch_size
    theirs = XLNetConfig(
        vocab_size=net.vocab_size, d_model=net.d_model, n_layer=net.num_layers, n_head=net.num_heads, d_inner=net.d_ff,
        ff_activation="gelu_new", attn_type="bi", bi_data=True, dropout=net.dropout, mem_len=net.mem_len,
        reuse_len=config.data.reuse_len,
    )  # fmt: skip
    model = XLNetLMHeadModel(theirs).train().to(device)
    run = torch.compile(model) if is_compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, eps=1e-6, weight_decay=0.01)
    arrays = to_dense(windows(config)).items()
    dense = {name: torch.from_numpy(np.ascontiguousarray(value)).to(device) for name, value in arrays}
    memory = np.random.default_rng(1).normal(size=(net.num_layers, net.mem_len, rows, net.d_model)).astype(np.float32)
    mems = list(torch.from_numpy(memory).to(device))

    def step() -> float:
        nonlocal mems
        with torch.autocast(device, torch.bfloat16, enabled=net.dtype == "bfloat16"):
            outputs = run(
                input_ids=dense["input_ids"].long(),
                token_type_ids=dense["segment_ids"].long(),
                perm_mask=dense["perm_mask"].float(),
                target_mapping=dense["target_mapping"],
                labels=dense["target_ids"].long(),
                mems=mems,
                use_mems=True,
            )
        optimizer.zero_grad()
        outputs.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mems = list(outputs.mems)
        return outputs.loss.item()

    return step


def windows(config: Config) -> dict:
    """Return a batch of random pieces in compact form (xlnet_jax/dims.py). Every second row is reversed."""
    import numpy as np

    from data_pipelines.permutation import perm_rank, permuted_places, target_slots

    data, rows = config.data, config.data.batch_size
    shape, reused, targets = (rows, data.seq_len), data.reuse_len, data.num_predict
    rng = np.random.default_rng(0)
    ids = rng.integers(9, config.model.vocab_size, shape).astype(np.int32)
    functional = np.zeros(shape, bool)
    functional[:, [-data.seq_len // 5, -2, -1]] = True
    order = rng.random(shape) + functional
    first, second = (part.argsort(1).argsort(1) for part in np.split(order, [reused], axis=1))
    is_target = np.concatenate([first < targets - targets // 2, second < targets // 2], axis=1)
    places = (permuted_places(n, n, rng.random((rows, n))) for n in (reused, data.seq_len - reused))
    segments = np.repeat([0, 1, 2], [data.seq_len - data.seq_len // 5 + 1, data.seq_len // 5 - 2, 1])
    return {
        "input_ids": ids,
        "segment_ids": np.tile(segments, (rows, 1)).astype(np.int32),
        "perm_rank": perm_rank(is_target | functional, *places, data),
        **target_slots(is_target, ids, targets),
        "is_reversed": np.arange(rows) % 2 == 1,
        "mem_filled": np.full(rows, config.model.mem_len, np.int32),
    }


def matmul() -> Callable[[], float]:
    """Build a large float32 matmul that measures the rate of the machine."""
    import jax
    import jax.numpy as jnp

    a = jax.random.normal(jax.random.key(0), (MATMUL, MATMUL), jnp.float32)
    multiply = jax.jit(jnp.matmul)

    def step() -> float:
        return float(multiply(a, a).block_until_ready()[0, 0])

    return step


def with_dropout(dropout: float) -> Config:
    return dataclasses.replace(
        OUR_CONFIG, model=dataclasses.replace(OUR_CONFIG.model, dropout=dropout, attention_dropout=dropout)
    )


SIDES: dict[str, Callable[[float], Callable[[], float]]] = {
    OURS: lambda dropout: our_step(with_dropout(dropout)),
    THEIRS: lambda dropout: their_step(with_dropout(dropout)),
    "matmul": lambda _: matmul(),
}


def work(step: Callable[[], float]) -> None:
    """Run in the child process: for each line of input, run a step and print its seconds, result and peak memory."""
    for _ in sys.stdin:
        start = time.perf_counter()
        result = step()
        seconds = time.perf_counter() - start
        print(seconds, result, peak_megabytes(), flush=True)


def peak_megabytes() -> float:
    """Return the most memory that arrays took on the GPU; on a CPU VmHWM, the high-water mark of the resident set."""
    if (torch := sys.modules.get("torch")) and torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    if (jax := sys.modules.get("jax")) and (stats := jax.local_devices()[0].memory_stats()):
        return stats["peak_bytes_in_use"] / 2**20
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


class Worker:
    """Child process of one side, and its measurements."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *arguments], env=os.environ | environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.seconds: list[float] = []
        self.peak = 0.0

    def turn(self, steps: int) -> None:
        """Run steps, one by one. The first does not count: the kernel reclaimed pages while this side waited."""
        for i in range(1 + steps):
            self.step(counts=i > 0)

    def step(self, counts: bool) -> None:
        """Run one step. Raises ChildProcessError if the process has ended."""
        self.begin()
        self.finish(counts)

    def begin(self) -> None:
        """Let the process begin a step."""
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):
            print(file=self.process.stdin, flush=True)

    def finish(self, counts: bool, until: float = math.inf) -> None:
        """Wait for the end of the step, and end the process if it takes until later than `until` (time.monotonic)."""
        assert self.process.stdout
        wait = None if until == math.inf else max(until - time.monotonic(), 0)
        if not select.select([self.process.stdout], [], [], wait)[0]:
            self.process.kill()
        answer = self.process.stdout.readline().split()
        if not answer:
            raise ChildProcessError(f"{' '.join(self.process.args)} ended")  # type: ignore[arg-type]
        if counts:
            self.seconds.append(float(answer[0]))
        self.peak = float(answer[2])

    def close(self) -> None:
        """End the child process."""
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()


# ---- the comparison --------------------------------------------------------------------------------------------------


def compare(dropout: float, pairs: int, steps: int, same_allocator: bool) -> list[Worker]:
    """Run `pairs` turns of each side. Return the ended workers: ours, theirs and the matmul's."""
    workers = []
    for side in SIDES:
        allocator = HUGE_PAGES if same_allocator or side != THEIRS else ""
        environment = {"GLIBC_TUNABLES": allocator, "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
        workers.append(Worker([__file__, "--side", side, "--dropout", str(dropout)], environment))
    for worker in workers:
        worker.step(counts=False)  # compiles
    for _ in range(pairs):
        for worker in workers:
            worker.turn(steps)
    for worker in workers:
        worker.close()
    return workers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--pairs", type=int, default=5, help="turns of each side")
    parser.add_argument("--steps", type=int, default=2, help="measured steps per turn")
    parser.add_argument("--dropout", type=float, nargs="+", default=[0.0, 0.1], help="dropout rates, a row each")
    parser.add_argument("--same-allocator", action="store_true", help=f"run {THEIRS} with {HUGE_PAGES} too")
    parser.add_argument("--count", action="store_true", help="print the multiply-adds and exit")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        return work(SIDES[given.side](given.dropout[0]))

    counted = forward_multiply_adds()
    totals = [sum(counts) for counts in zip(*counted.values(), strict=True)]
    print(f"{'forward pass, 10^9 multiply-adds':34}{OURS:>14}{THEIRS:>14}")
    for part, counts in [*counted.items(), ("all", totals)]:
        print(f"{part:34}{counts[0] / 1e9:14.2f}{counts[1] / 1e9:14.2f}")
    if given.count:
        return None

    print(
        f"\n{'':14}{'median step, seconds':^28}{'':8}{'peak memory, MB':^28}{'share of matmul rate':^28}\n"
        f"{'dropout':14}{OURS:>14}{THEIRS:>14}{'ratio':>8}{OURS:>14}{THEIRS:>14}{OURS:>14}{THEIRS:>14}"
    )
    for dropout in given.dropout:
        workers = compare(dropout, given.pairs, given.steps, given.same_allocator)
        *medians, matmul_seconds = (statistics.median(worker.seconds) for worker in workers)
        rate = MATMUL**3 / matmul_seconds
        shares = [3 * total / seconds / rate for total, seconds in zip(totals, medians, strict=True)]
        print(
            f"{dropout:<14}{medians[0]:14.2f}{medians[1]:14.2f}{medians[1] / medians[0]:8.2f}"
            f"{workers[0].peak:14,.0f}{workers[1].peak:14,.0f}{shares[0]:14.0%}{shares[1]:14.0%}"
            f"   of {2 * rate / 1e9:.0f} GFLOP/s",
            flush=True,
        )
    return None


if __name__ == "__main__":
    main()
