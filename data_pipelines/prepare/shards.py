"""Write the shards of a corpus, each from the encoded parts that hold its blocks."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter
from etils import epath

from data_pipelines.corpus import Record, Shard, SplitName, Start
from data_pipelines.prepare.encoding import REMEDY, load
from data_pipelines.prepare.holdout import Place, Rule
from xlnet_jax.errors import InputError
from xlnet_jax.storage.files import complete_file, disk_errors_as_os_error
from xlnet_jax.storage.reading import Count, read_versioned, write_versioned

WRITER_OPTIONS = "group_size:1,zstd:1"  # one block a group, so that random access reads one block


@dataclass(frozen=True)
class Stretch:
    """Tokens [begin, end) of those that a part gives to a split. file, first_token: as in `Place`."""

    file: str
    first_token: int
    first_hash: int  # of the part's first document, the whole of it
    last_hash: int
    begin: int
    end: int


@dataclass(frozen=True)
class ShardJob:
    """Contents of one shard: the first `blocks` blocks of its stretches. Tokens after them are counted, not written."""

    folder: str
    name: str
    split: SplitName
    stretches: tuple[Stretch, ...]
    rule: Rule
    blocks: int
    vocab_size: int
    record: Record
    template: bytes  # a serialized record

    @property
    def key(self) -> str:
        """SHA-256 in hex: jobs with the same key write the same bytes."""
        identity = (self.name, self.split, self.stretches, self.rule, self.blocks, self.vocab_size, self.record)
        return hashlib.sha256(repr(identity).encode()).hexdigest()


@dataclass(frozen=True)
class Written:
    """Report of a shard on disk. The counts include the tokens after its last block."""

    key: str
    shard: Shard
    documents: Count
    lines: Count
    tokens: Count
    counts: tuple[Count, ...]  # [V], occurrences of each piece

    def save(self, file: epath.Path) -> None:
        write_versioned(file, "parts", dataclasses.asdict(self))

    @classmethod
    def load(cls, job: ShardJob) -> Written:
        """Read the report of a job. Raises InputError where it is damaged."""
        file = report_of(job)
        found = read_versioned(file, "parts", cls, REMEDY)
        if found.key == job.key and (len(found.counts), found.shard.name) != (job.vocab_size, job.name):
            raise InputError(f"{file} is damaged: it describes another shard; {REMEDY}")
        return found


def report_of(job: ShardJob) -> epath.Path:
    """Return the file of the job's report."""
    return epath.Path(job.folder) / f"{job.name}.json"


def write(job: ShardJob) -> None:
    """Write the shard and its report, unless an interrupted run wrote them. One part at a time is in memory."""
    report = report_of(job)
    if report.exists() and Written.load(job).key == job.key:
        return
    counted = _Counted(np.zeros(job.vocab_size, np.int64))
    with complete_file(epath.Path(job.folder) / job.name) as here:
        with disk_errors_as_os_error(here):
            writer = ArrayRecordWriter(str(here), WRITER_OPTIONS)
            try:
                for record in _records(job, counted):
                    writer.write(record.tobytes())
            finally:
                writer.close()
        with here.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        shard = Shard(job.name, job.blocks, here.stat().st_size, digest)
    Written(job.key, shard, counted.documents, counted.lines, counted.tokens, tuple(counted.pieces.tolist())).save(
        report
    )


@dataclass
class _Counted:
    """Counts of the text that was read for a shard."""

    pieces: np.ndarray  # int64 [V]
    documents: int = 0
    lines: int = 0
    tokens: int = 0


def _records(job: ShardJob, counted: _Counted) -> Iterator[np.ndarray]:
    """Yield the serialized blocks of a shard, uint8 [bytes] each."""
    template = np.frombuffer(job.template, np.uint8)
    block_len, left = job.record.block_len, job.blocks
    tokens, starts = np.zeros(0, np.int32), np.zeros(0, np.uint8)  # less than a block
    for stretch in job.stretches:
        more_tokens, more_starts, lines = _read(stretch, job)
        counted.pieces += np.bincount(more_tokens, minlength=job.vocab_size)
        counted.documents += int(np.count_nonzero(more_starts == Start.DOCUMENT))
        counted.lines += lines
        counted.tokens += len(more_tokens)
        tokens, starts = np.concatenate([tokens, more_tokens]), np.concatenate([starts, more_starts])
        blocks = min(len(tokens) // block_len, left)
        full = blocks * block_len
        raw = np.tile(template, (blocks, 1))
        records = raw.view(job.record.dtype)[:, 0]
        records["tokens"] = tokens[:full].reshape(blocks, block_len)
        records["starts"] = starts[:full].reshape(blocks, block_len)
        yield from raw
        tokens, starts, left = tokens[full:], starts[full:], left - blocks


def _read(stretch: Stretch, job: ShardJob) -> tuple[np.ndarray, np.ndarray, int]:
    """Return (tokens, starts, number of lines) of a stretch."""
    file = stretch.file
    tokens, starts, line_starts, documents, hashes, continues = load(
        file, "tokens", "starts", "line_starts", "document_tokens", "document_hashes", "continues"
    )
    ends = len(starts), int(documents.sum()), max(len(tokens), line_starts.max(initial=-1) + 1)
    differs = any(end != len(tokens) for end in ends) or not 0 < len(documents) == len(hashes)
    if tokens.max(initial=-1) >= job.vocab_size or differs:
        raise InputError(f"{file} is damaged: its arrays do not agree; {REMEDY}")
    hashes = hashes.copy()
    hashes[[0, -1]] = stretch.first_hash, stretch.last_hash
    place = Place(file, stretch.first_token, documents, hashes, bool(continues))
    wanted = job.rule.mask(place) == (job.split == "validation")
    where = np.flatnonzero(wanted)[stretch.begin : stretch.end]
    is_line = np.zeros(len(tokens), bool)
    is_line[line_starts] = True
    return tokens[where], starts[where], int(np.count_nonzero(is_line[where]))
