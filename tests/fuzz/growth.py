"""Feed each reader 1, 2 and 4 times the input: its memory and time may grow in proportion, but no faster.

A command runs as in trial.py, on one core. The first step of growth, from 1 to 2, measures what a unit of input costs,
whatever the command costs besides.
"""

import gzip
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.inputs import Kind
from tests.fuzz.samples import LINES, json_lines
from tests.fuzz.trial import Outcome, try_example

FACTORS = (1, 2, 4)
TOLERANCE = 1.4
"""Growth from 2 to 4, divided by what is in proportion: 1 for a straight line, 2 for a square"""
SECONDS, MEGABYTES = 1.0, 48
"""Growth that is never a fault: noise of the machine, and of the allocator"""


@dataclass(frozen=True)
class Growth:
    """An input that grows, and the command that reads it."""

    name: str
    command: str
    """module and its words; in/grown… is the input, and other names in in/ are samples"""
    write: Callable[[Path, int], None]
    """writes the input, of a size"""
    size: int
    """the smallest size"""

    @property
    def kind(self) -> Kind:
        return Kind(self.name, self.command)

    @property
    def input(self) -> str:
        (name,) = (name for name in self.kind.samples if name.startswith("grown"))
        return name


def faults_of(growth: Growth, samples: Path, work: Path) -> list[str]:
    """Run the command on inputs of three sizes, and return what is wrong with its growth. samples: a folder with the
    other samples, where the inputs are written."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})  # or a large text would start a pool of processes
    try:
        ended = list(_run(growth, samples, work))
    finally:
        os.sched_setaffinity(0, cores)
    for factor, outcome in zip(FACTORS, ended, strict=False):
        if outcome.code or outcome.problems:
            problems = outcome.problems or [f"exit code {outcome.code}: {outcome.stderr.strip()[:300]}"]
            return [f"{factor} x {growth.size}: {problem}" for problem in problems]
    measured = {
        "time": ([outcome.seconds for outcome in ended], "s", SECONDS),
        "memory": ([outcome.memory / 2**20 for outcome in ended], "MiB", MEGABYTES),
    }
    return [
        f"{what} grows faster than the input: {', '.join(f'{n:.1f}' for n in (one, two, four))} {unit}"
        for what, ((one, two, four), unit, noise) in measured.items()
        if four - two > 2 * TOLERANCE * max(two - one, 0) + noise
    ]


def _run(growth: Growth, samples: Path, work: Path) -> Iterator[Outcome]:
    for factor in FACTORS:
        file = samples / growth.input
        growth.write(file, factor * growth.size)
        outcome = try_example(growth.kind, samples, work, None)
        shutil.rmtree(file) if file.is_dir() else file.unlink()
        yield outcome
        if outcome.code or outcome.problems:
            return


def lines_of(size: int, end: str = "\n") -> str:
    """Return so many lines of words, each with its end."""
    rng = random.Random(0)
    return "".join(rng.choice(LINES) + end for _ in range(size))


def documents_of(size: int) -> list[str]:
    """Return so many documents of three lines, no two alike."""
    return [lines_of(3).replace("\n", f" {i}\n") for i in range(size)]


def written(make: Callable[[int], str]) -> Callable[[Path, int], None]:
    """Return a function that writes make(size) into a file, compressed if its name says so."""

    def write(file: Path, size: int) -> None:
        content = make(size).encode()
        file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)

    return write


def write_files(folder: Path, size: int) -> None:
    folder.mkdir()
    for i in range(size):
        (folder / f"{i}.txt").write_text(LINES[i % len(LINES)] + "\n")


def table(make: Callable[[int], list[str]]) -> Callable[[Path, int], None]:
    """Return a function that writes make(size) as the texts of a Parquet table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    return lambda file, size: pq.write_table(pa.table({"text": make(size)}), file)


def objects_of(size: int, faulty: int = 0) -> str:
    """Return so many objects, of which one in `faulty` has no text; 0 = none."""
    fields = ["body" if faulty and i % faulty == 1 else "text" for i in range(size)]
    return json_lines([{field: text} for field, text in zip(fields, documents_of(size), strict=True)])


def _growths() -> Iterator[Growth]:
    prepare = (
        "data_pipelines.prepare --tokenizer in/tokenizer --out out/corpus --block-len 48 --validation-fraction 0.2 "
        "--source in/grown"
    )
    encode = "data_pipelines.tokenizer encode in/tokenizer --file in/grown.txt"
    train = "data_pipelines.tokenizer train --source in/grown.txt --out out/new --vocab-size 50"
    yield Growth("documents", f"{prepare}.txt", written(lambda size: "\n".join(documents_of(size))), 8_000)
    yield Growth("one document", f"{prepare}.txt", written(lines_of), 30_000)
    yield Growth("one line", f"{prepare}.txt", written(lambda size: lines_of(size, " ")), 30_000)
    yield Growth("one word", encode, written(lambda size: "sea" * size), 200_000)
    yield Growth("blank lines", f"{prepare}.txt", written(lambda size: "\n" * size + lines_of(500)), 2_000_000)
    yield Growth("gzip", f"{prepare}.txt.gz", written(lines_of), 30_000)
    yield Growth("files", prepare, write_files, 1_000)
    yield Growth("JSON Lines", f"{prepare}.jsonl", written(objects_of), 8_000)
    yield Growth("JSON Lines: faults", f"{prepare}.jsonl", written(lambda size: objects_of(size, 30)), 8_000)
    one = written(lambda size: json_lines([{"text": lines_of(size)}]))
    yield Growth("JSON Lines: one text", f"{prepare}.jsonl", one, 30_000)
    yield Growth("Parquet", f"{prepare}.parquet", table(documents_of), 8_000)
    yield Growth("Parquet: one text", f"{prepare}.parquet", table(lambda size: [lines_of(size)]), 30_000)
    yield Growth("tokenizer", train, written(lines_of), 30_000)
    embed = "xlnet_jax.embed in/native --out out/vectors.npy --seq-len 16 --unit document --text in/grown.txt"
    score = "xlnet_jax.score in/native --out out/scores.jsonl --max-len 24 --texts in/grown.txt"
    for name, command in (("embed", embed), ("score", score)):
        yield Growth(f"{name}: one text", command, written(lambda size: lines_of(size, " ")), 300)
        yield Growth(f"{name}: blank lines", command, written(lambda size: "\n" * size + lines_of(5)), 20_000)


GROWTHS = {growth.name: growth for growth in _growths()}
"""All inputs that grow, by their names"""
