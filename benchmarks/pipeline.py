"""Compare windows of 512 tokens per second with Hugging Face's permutation collator: python benchmarks/pipeline.py

`--objective plm mlm clm` compares our objectives instead, and `--long` the windows of the presets base and long in
tokens per second. Otherwise the script needs `pip install torch transformers`. The sides take turns, each in a separate
process that works only in its turn. Both read blocks of one corpus from disk: copies of the novels of the package, or
--corpus. Our batches hold everything that training needs (A, B, segments, directions, orders, spans in context); the
collator gets consecutive tokens. The collator runs in one process, and in a DataLoader with one worker per core. The
script prints medians over the turns, and the time of the first batch from step 0 and from step 1,000,000.
"""

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

COPIES = 8  # of the novels: about as many blocks as four compact batches need
LATE = 1_000_000
WARM_UP = 4  # batches at the beginning of a turn that do not count
COMPACT, DENSE, FIRST, FIRST_LATE = "xlnet_jax, compact", "xlnet_jax, dense", "step 0", f"step {LATE:,}"
INLINE, WORKERS = "collator, dense", "collator, dense, worker per core"

Measure = Callable[[], float]


# ---- both sides, each in its own process -----------------------------------------------------------------------------


def ours(given: argparse.Namespace) -> dict[str, Measure]:
    """Measure the pipeline as the train command runs it, with the paper's settings."""
    from data_pipelines.batches import BatchSource
    from data_pipelines.corpus import Corpus
    from data_pipelines.objectives import plm
    from data_pipelines.tokenizer import Tokenizer
    from xlnet_jax.settings.config import DataConfig

    tokenizer = Tokenizer.load(given.corpus / "tokenizer")

    def source(**data: object) -> BatchSource:
        settings = DataConfig(**data)  # type: ignore[arg-type]
        return BatchSource(Corpus(given.corpus), "train", tokenizer.is_word_start, settings, 384, 0, plm.FILLING)

    compact = source(batch_size=given.batch_size)
    dense = source(batch_size=given.dense_batch_size, emit="dense")

    def first(step: int) -> float:
        start = time.perf_counter()
        next(compact.iterate(step, step + 1))
        return time.perf_counter() - start

    return {
        COMPACT: lambda: rate(compact.iterate(0, 10**9), given.batch_size, given.seconds),
        DENSE: lambda: rate(dense.iterate(0, 10**9), given.dense_batch_size, given.seconds),
        FIRST: lambda: first(0),
        FIRST_LATE: lambda: first(LATE),
    }


def objectives(given: argparse.Namespace) -> dict[str, Measure]:
    """Measure the pipeline as the train command runs it for each objective, with compact batches."""
    from data_pipelines.batches import BatchSource
    from data_pipelines.corpus import Corpus
    from data_pipelines.tokenizer import Tokenizer
    from xlnet_jax.objectives.presets import with_objective
    from xlnet_jax.objectives.registry import objective_named
    from xlnet_jax.settings.config import Config, DataConfig

    is_word_start = Tokenizer.load(given.corpus / "tokenizer").is_word_start

    def measure(objective: str) -> Measure:
        config = with_objective(Config(data=DataConfig(batch_size=given.batch_size)), objective)
        mem_len, filling = config.model.mem_len, objective_named(objective).filling
        source = BatchSource(Corpus(given.corpus), "train", is_word_start, config.data, mem_len, 0, filling)
        return lambda: rate(source.iterate(0, 10**9), given.batch_size, given.seconds)

    return {objective: measure(objective) for objective in given.objective}


def long_windows(given: argparse.Namespace) -> dict[str, Measure]:
    """Measure tokens per second of the presets base and long, each with its own batches from one corpus."""
    from data_pipelines.batches import BatchSource
    from data_pipelines.corpus import Corpus
    from data_pipelines.objectives import plm
    from data_pipelines.tokenizer import Tokenizer
    from xlnet_jax.objectives.presets import PRESETS

    corpus = Corpus(given.corpus)
    is_word_start = Tokenizer.load(given.corpus / "tokenizer").is_word_start

    def measure(preset: str) -> Measure:
        config = PRESETS[preset]()
        rows, length = config.data.batch_size, config.data.seq_len
        source = BatchSource(corpus, "train", is_word_start, config.data, config.model.mem_len, 0, plm.FILLING)
        return lambda: length * rate(source.iterate(0, 10**9), rows, given.seconds)

    return {preset: measure(preset) for preset in ("base", "long")}


def inline(given: argparse.Namespace) -> dict[str, Measure]:
    """Measure the collator in this process."""
    return {INLINE: lambda: rate(collated(given), given.dense_batch_size, given.seconds)}


def workers(given: argparse.Namespace) -> dict[str, Measure]:
    """Measure the collator in the workers of a DataLoader."""
    from torch.utils.data import DataLoader, IterableDataset

    class Batches(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[object]:
            return collated(given)

    def measure() -> float:
        loader = DataLoader(Batches(), batch_size=None, num_workers=os.cpu_count() or 1)
        return rate(iter(loader), given.dense_batch_size, given.seconds)

    return {WORKERS: measure}


def collated(given: argparse.Namespace) -> Iterator[object]:
    """Yield batches of the collator, from blocks read in random order."""
    import numpy as np
    from transformers import DataCollatorForPermutationLanguageModeling, XLNetTokenizer

    from data_pipelines.corpus import Corpus

    corpus = Corpus(given.corpus)
    # It only needs the ids of special symbols from the tokenizer. A sixth of the tokens are targets, as 85 of 512.
    collate = DataCollatorForPermutationLanguageModeling(XLNetTokenizer(), plm_probability=1 / 6, max_span_length=5)
    rng = np.random.default_rng(os.getpid())
    while True:
        blocks, _ = corpus.read("train", rng.integers(corpus.num_blocks("train"), size=given.dense_batch_size))
        windows = blocks[:, : blocks.shape[1] // 512 * 512].astype(np.int64).reshape(-1, 512)
        for batch in np.split(windows, len(windows) // given.dense_batch_size):
            yield collate(list(batch))


def rate(batches: Iterator[object], batch_size: int, seconds: float) -> float:
    """Return windows per second, after the first batches."""
    for _ in itertools.islice(batches, WARM_UP):
        pass
    start = time.perf_counter()
    count = 0
    while (elapsed := time.perf_counter() - start) < seconds:
        next(batches)
        count += 1
    return batch_size * count / elapsed


SIDES: dict[str, Callable[[argparse.Namespace], dict[str, Measure]]] = {
    f.__name__: f for f in (ours, inline, workers, objectives, long_windows)
}


def work(given: argparse.Namespace) -> None:
    """Run in the child process: print the names of its measurements, then measure each name that it reads."""
    measures = SIDES[given.side](given)
    print(*measures, sep="|", flush=True)
    for line in sys.stdin:
        print(measures[line.strip()](), flush=True)


class Worker:
    """Child process and its measurements."""

    def __init__(self, side: str, corpus: Path, arguments: list[str]) -> None:
        command = [sys.executable, __file__, *arguments, "--side", side, "--corpus", str(corpus)]
        # PyTorch's threads must not spin while they wait: next to other work that slows it down tenfold.
        environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
        self.process = subprocess.Popen(
            command,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.measured: dict[str, list[float]] = {name: [] for name in self._answer().split("|")}

    def turn(self, counts: bool) -> None:
        """Measure everything once."""
        assert self.process.stdin
        for name, values in self.measured.items():
            print(name, file=self.process.stdin, flush=True)
            value = float(self._answer())
            if counts:
                values.append(value)

    def _answer(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip() or sys.exit(f"{self.process.args} ended")  # type: ignore[str-bytes-safe]

    def close(self) -> None:
        """End the child."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


# ---- the comparison --------------------------------------------------------------------------------------------------


def novels(folder: Path, preset: str) -> Path:
    """Prepare a corpus of the novels, repeated, with the blocks of a preset."""
    from data_pipelines import sources, windows
    from data_pipelines.prepare.commands import prepare
    from data_pipelines.tokenizer import Tokenizer
    from xlnet_jax.objectives.presets import PRESETS

    text = folder / "novels.txt"
    text.write_text("\n\n".join(Path(novel).read_text() for novel in sources.embedded()) * COPIES)
    found = sources.find([str(text)])
    tokenizer = Tokenizer.train(sources.read_lines(found), 8_000, "english")
    block_len = windows.block_len(PRESETS[preset]().data)
    corpus = folder / "corpus"
    prepare(found, None, tokenizer, corpus, block_len=block_len, validation_fraction=0.05)
    return corpus


def compare(names: list[str], corpus: Path, pairs: int, arguments: list[str]) -> dict[str, float]:
    """Print the median of each measurement of these sides."""
    sides = [Worker(side, corpus, arguments) for side in names]
    for turn in range(1 + pairs):
        for side in sides:
            side.turn(counts=turn > 0)
    for side in sides:
        side.close()
    return {name: statistics.median(values) for side in sides for name, values in side.measured.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--corpus", type=Path, help="a prepared corpus; default: one of the novels of the package")
    parser.add_argument("--pairs", type=int, default=5, help="turns of each side")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds per measurement")
    parser.add_argument("--batch-size", type=int, default=256, help="rows of a compact batch")
    parser.add_argument("--dense-batch-size", type=int, default=16, help="rows of a dense batch, on both sides")
    parser.add_argument("--objective", nargs="+", choices=("plm", "mlm", "clm"), help="compare objectives instead")
    parser.add_argument("--long", action="store_true", help="compare windows of 512 and 16,384 instead")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        return work(given)

    with tempfile.TemporaryDirectory() as folder:
        corpus = given.corpus or novels(Path(folder), "long" if given.long else "base")
        names = ["ours", "inline", "workers"]
        if given.objective or given.long:
            names = ["long_windows" if given.long else "objectives"]
        medians = compare(names, corpus, given.pairs, sys.argv[1:])
    if given.objective or given.long:
        first, *_ = medians
        print(f"{'':12}{'tokens/s' if given.long else 'windows/s':>12}{f'of {first}':>12}")
        for name, median in medians.items():
            print(f"{name:12}{median:12,.0f}{median / medians[first]:12.2f}")
        return None
    collator = max(medians[INLINE], medians[WORKERS])
    print(f"{'':34}{'windows/s':>12}{'of the better collator':>26}")
    for name in (COMPACT, DENSE, INLINE, WORKERS):
        print(f"{name:34}{medians[name]:12,.0f}{medians[name] / collator:26.2f}")
    print(f"\nfirst batch from {FIRST}: {medians[FIRST]:.3f} s, from {FIRST_LATE}: {medians[FIRST_LATE]:.3f} s")
    return None


if __name__ == "__main__":
    main()
