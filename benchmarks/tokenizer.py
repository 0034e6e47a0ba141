"""Measure time and memory of a tokenizer: python benchmarks/tokenizer.py TEXT [TOKENIZER]

First encoding on one core, in turns: SentencePiece alone on normalized lines, and `encode_flat` on the original lines.
Then SentencePiece's memory and time to train on 1/4, 1/2 and all of the text. TEXT is a UTF-8 file of several
megabytes. TOKENIZER is a folder or a model; without it one is trained on the first megabytes of the text.
"""

import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from data_pipelines.tokenizer import Tokenizer

ROUNDS = 5
ENCODED_BYTES, BATCH_BYTES, TRAINED_BYTES = 8 * 10**6, 2**20, 4 * 10**6
VOCAB_SIZE = 8000


def batches(lines: list[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line)
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    yield batch


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def encoding(lines: list[str], tokenizer: Tokenizer) -> None:
    given = list(batches(lines))
    clean = [tokenizer.settings.normalize(batch) for batch in given]
    tokens = sum(len(tokenizer.encode_flat(batch, threads=1)[0]) for batch in given)
    processor = tokenizer._processor
    sides: dict[str, Callable[[], object]] = {
        "SentencePiece": lambda: [processor.encode(b, num_threads=1, out_type="numpy") for b in clean],
        "encode_flat": lambda: [tokenizer.encode_flat(b, threads=1) for b in given],
    }
    speeds = [{name: tokens / seconds(run) for name, run in sides.items()} for _ in range(ROUNDS)]
    medians = {name: statistics.median(s[name] for s in speeds) for name in sides}
    for name, median in medians.items():
        print(f"{name:14}{median / 1e6:8.2f} M tokens/s/core")
    print(f"{'ratio':14}{medians['encode_flat'] / medians['SentencePiece']:8.2f}")


def training(lines: list[str]) -> None:
    """Measure each size in a separate process, because the peak memory of a process never falls."""
    for share in (4, 2, 1):
        if pid := os.fork():
            if os.waitpid(pid, 0)[1]:
                sys.exit(1)
            continue
        text = lines[: len(lines) // share]
        megabytes = sum(len(line.encode()) for line in text) / 1e6
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        taken = seconds(lambda text=text: Tokenizer.train(text, VOCAB_SIZE, "auto", sample_bytes=2**40))
        memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000
        print(f"training on {megabytes:6.1f} MB: {taken:5.1f} s, {memory:6,.0f} MB = {memory / megabytes:.0f} per MB")
        sys.stdout.flush()
        os._exit(0)


def main() -> None:
    lines = [line.strip() for line in Path(sys.argv[1]).read_text(errors="replace").splitlines()]
    # Train first: a forked process would count the memory of encoding as its own.
    training(lines)
    some, size = [], 0
    for line in lines:
        some.append(line)
        size += len(line.encode())
        if size > ENCODED_BYTES:
            break
    given = Tokenizer.load(Path(sys.argv[2])) if len(sys.argv) > 2 else None
    encoding(some, given or Tokenizer.train(some, VOCAB_SIZE, "auto", sample_bytes=TRAINED_BYTES))


if __name__ == "__main__":
    main()
