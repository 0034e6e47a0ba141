"""Compare preparing a corpus with the original's tokenization alone: python benchmarks/prepare.py

The text is the novels of the package, repeated, or --corpus. The original's tokenization is reimplemented here: it
encodes one line at a time and checks each piece. Each measurement is a separate process, without its imports, and the
sides take turns. Two more measurements call prepare when the corpus already exists, and after a kill halfway.

Prints medians. Busy seconds are CPU seconds of all processes, including the start of workers. Speeds are compared by
busy seconds, which depend little on other load. Memory is the sum over all processes, measured in a separate turn
because measuring takes time. Both need Linux.
"""

import argparse
import contextlib
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import unicodedata
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

COPIES = 16  # of the novels: enough parts to keep several cores busy
ORIGINAL_CHARS = 8 * 10**6  # number of characters that the original's side reads
TRAINED_LINES = 20_000
BLOCK_LEN = 4350  # 16 windows of the paper's setting
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
ALL, ONE, ORIGINAL = f"prepare, cores: {CORES}", "prepare, cores: 1", "original, tokenizing alone"

Result = tuple[float, float, int]  # seconds, busy seconds, tokens


# ---- both sides, each in a process of its own ------------------------------------------------------------------------


def ours(given: argparse.Namespace, processes: int) -> Callable[[], int]:
    """Return a function that prepares a corpus and returns its number of tokens."""
    from data_pipelines import sources
    from data_pipelines.prepare.commands import prepare
    from data_pipelines.prepare.runners import run_here
    from data_pipelines.tokenizer import Tokenizer

    def run() -> int:
        corpus = prepare(
            sources.find([given.corpus]),
            None,
            Tokenizer.load(given.tokenizer),
            given.out,
            block_len=BLOCK_LEN,
            validation_fraction=0.05,
            runner=partial(run_here, processes=processes),
        )
        return sum(split.tokens for split in corpus.manifest.splits.values())

    return run


def original(given: argparse.Namespace) -> Callable[[], int]:
    """Return a function that tokenizes the text as encode_ids of prepro_utils.py does, and returns the id count."""
    from data_pipelines import sources
    from data_pipelines.tokenizer import Tokenizer

    processor = Tokenizer.load(given.tokenizer)._processor

    def without_accents(line: str) -> str:
        text = " ".join(line.split()).replace("``", '"').replace("''", '"')
        return "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))

    def split_digit_comma(piece: str) -> Iterator[str]:
        digits = processor.encode(piece[:-1].replace("▁", ""), out_type=str)
        if not piece.startswith("▁"):
            digits[0] = digits[0].removeprefix("▁")
        yield from filter(None, digits)
        yield ","

    def encode(line: str) -> list[int]:
        pieces: list[str] = []
        for piece in processor.encode(without_accents(line), out_type=str):
            if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
                pieces.extend(split_digit_comma(piece))
            else:
                pieces.append(piece)
        return [processor.piece_to_id(piece) for piece in pieces]

    def run() -> int:
        tokens = chars = 0
        for line in sources.read_lines(sources.find([given.corpus])):
            tokens += len(encode(line))
            if (chars := chars + len(line)) > ORIGINAL_CHARS:
                break
        return tokens

    return run


SIDES: dict[str, Callable[[argparse.Namespace], Callable[[], int]]] = {
    ORIGINAL: original,
    ONE: lambda given: ours(given, 1),
    ALL: lambda given: ours(given, CORES),
}


def work(given: argparse.Namespace) -> None:
    """Run in the child process: print a line when the work begins, then its seconds, busy seconds and tokens."""
    run = SIDES[given.side](given)
    print("begins", flush=True)
    start, busy = time.perf_counter(), busy_seconds()
    tokens = run()
    print(time.perf_counter() - start, busy_seconds() - busy, tokens)


def busy_seconds() -> float:
    """Return the CPU seconds of this process and of all its descendants that have ended."""
    started = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    ticks = 0
    for pid in ("self", *started):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    return ticks / os.sysconf("SC_CLK_TCK")


# ---- the comparison --------------------------------------------------------------------------------------------------


class Child:
    """Process that measures one side, and the processes that it starts."""

    def __init__(self, side: str, given: argparse.Namespace, out: Path) -> None:
        arguments = ["--side", side, "--corpus", given.corpus, "--tokenizer", given.tokenizer, "--out", str(out)]
        command = [sys.executable, __file__, *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self.process.stdout
        self.process.stdout.readline()

    def result(self) -> Result:
        printed, _ = self.process.communicate()
        if self.process.returncode:
            sys.exit(self.process.returncode)
        seconds, busy, tokens = printed.split()
        return float(seconds), float(busy), int(tokens)

    def peak(self) -> int:
        """Return the peak of the total memory of its processes, in bytes."""
        peak = 0
        while self.process.poll() is None:
            peak = max(peak, sum(map(proportional_set_size, self._pids())))
            time.sleep(0.02)
        self.result()
        return peak

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _pids(self) -> Iterator[int]:
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.getsid(int(folder.name)) == self.process.pid:
                    yield int(folder.name)


def proportional_set_size(pid: int) -> int:
    """Return the memory of a process in bytes, with its share of shared memory; 0 = the process has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    return 0


def compare(given: argparse.Namespace, folder: Path) -> None:
    out = folder / "out"
    peaks = {}
    for side in SIDES:
        peaks[side] = Child(side, given, out).peak()
        shutil.rmtree(out, ignore_errors=True)

    measured: dict[str, list[Result]] = {side: [] for side in SIDES}
    again, after_kill = [], []
    for _ in range(given.pairs):
        for side, results in measured.items():
            results.append(Child(side, given, out).result())
            if side == ALL:
                again.append(Child(side, given, out).result()[0])
            shutil.rmtree(out, ignore_errors=True)
        killed = Child(ALL, given, out)
        time.sleep(measured[ALL][-1][0] / 2)
        killed.kill()
        after_kill.append(Child(ALL, given, out).result()[0])
        shutil.rmtree(out)
    report(measured, peaks)
    print(f"\nprepare again, the corpus is there: {statistics.median(again):.2f} s")
    print(f"prepare again, after a kill halfway: {statistics.median(after_kill):.2f} s")


def report(measured: dict[str, list[Result]], peaks: dict[str, int]) -> None:
    medians = {
        side: [statistics.median(column) for column in zip(*results, strict=True)] for side, results in measured.items()
    }
    speeds = {side: tokens / busy for side, (_, busy, tokens) in medians.items()}
    print(f"{'':28}{'seconds':>9}{'tokens/s':>12}{'busy':>8}{'tokens/busy s':>15}{'of the original':>17}{'memory':>10}")
    for side, (seconds, busy, tokens) in medians.items():
        share = speeds[side] / speeds[ORIGINAL]
        print(
            f"{side:28}{seconds:9.2f}{tokens / seconds:12,.0f}{busy:8.2f}{speeds[side]:15,.0f}{share:17.2f}"
            f"{peaks[side] / 1e6:7,.0f} MB"
        )


def novels(folder: Path) -> str:
    """Write the novels of the package, repeated. Return the path."""
    from data_pipelines import sources

    text = folder / "novels.txt"
    text.write_text("\n\n".join(Path(novel).read_text() for novel in sources.embedded()) * COPIES)
    return str(text)


def trained(corpus: str, folder: Path) -> str:
    """Train a tokenizer on the beginning of the text. Return its folder."""
    from data_pipelines import sources
    from data_pipelines.tokenizer import Tokenizer

    lines = islice(sources.read_lines(sources.find([corpus])), TRAINED_LINES)
    Tokenizer.train(lines, 8_000, "english").save(folder / "tokenizer")
    return str(folder / "tokenizer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--corpus", help="text: a file, a glob, a folder or tfds:NAME; default: the package's novels")
    parser.add_argument("--tokenizer", help="a folder or a model; default: one trained on the text")
    parser.add_argument("--pairs", type=int, default=3, help="turns of each side")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        return work(given)

    with tempfile.TemporaryDirectory() as name:
        given.corpus = given.corpus or novels(Path(name))
        given.tokenizer = given.tokenizer or trained(given.corpus, Path(name))
        compare(given, Path(name))
    return None


if __name__ == "__main__":
    main()
