"""Write a corpus folder: plan the shards from the sizes and hashes of documents, cut each from the encoded parts, and
write the files beside them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter
from etils import epath

from data_pipelines.corpus import COUNTS_FILE, TOKENIZER_FOLDER, Manifest, Record, Shard, Split, SplitName, Start
from data_pipelines.prepare.encoding import REMEDY, EncodedSource, load
from data_pipelines.prepare.holdout import LastTokens, Rule
from data_pipelines.prepare.runners import Runner
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.storage.files import complete_file, disk_errors_as_os_error
from xlnet_jax.storage.reading import Count, read_versioned, write_versioned

MIN_SHARD_BYTES, MAX_SHARD_BYTES, SHARDS = 2**23, 2**27, 64  # before compression
WRITER_OPTIONS = "group_size:1,zstd:1"  # one block a group, so that random access reads one block


@dataclass(frozen=True)
class Stretch:
    """Tokens of a part that a shard takes."""

    file: str
    ranges: np.ndarray  # int64 [ranges, 2], begin and end of each range in the part


@dataclass(frozen=True)
class Content:
    """Text that a source gives to a split: the tokens [begin, end) of those in its `kept` pieces."""

    source: EncodedSource
    kept: np.ndarray  # bool [pieces]
    begin: int
    end: int

    @classmethod
    def of(cls, source: EncodedSource, rule: Rule, split: SplitName) -> Content:
        """Return what the rule for held-out text leaves to a split."""
        held_out = split == "validation"
        if isinstance(rule, LastTokens):
            ends = (rule.first, source.tokens) if held_out else (0, rule.first)
            return cls(source, np.ones(len(source.part), bool), *ends)
        kept = rule.holds_out(source.hashes)[source.document] == held_out
        return cls(source, kept, 0, int(source.piece_tokens[kept].sum()))

    @property
    def tokens(self) -> int:
        return self.end - self.begin

    def cut(self, sizes: Sequence[int]) -> list[tuple[Stretch, ...]]:
        """Cut the text into consecutive stretches of these numbers of tokens."""
        source = self.source
        before = np.cumsum(source.piece_tokens) - source.piece_tokens  # tokens of the source before each piece
        index = np.flatnonzero(self.kept & (source.piece_tokens > 0))
        part, tokens = source.part[index], source.piece_tokens[index]
        begin = before[index] - before[np.searchsorted(source.part, part)]  # of each kept piece, in its part
        end = np.cumsum(tokens)  # of each kept piece, among all of them
        found = []
        for low, high in itertools.pairwise(itertools.accumulate(sizes, initial=self.begin)):
            here = slice(np.searchsorted(end, low, "right"), np.searchsorted(end - tokens, high, "left"))
            first = begin[here] + np.maximum(low - (end - tokens)[here], 0)
            last = begin[here] + np.minimum(high - (end - tokens)[here], tokens[here])
            parts = part[here]
            new = np.append(True, (first[1:] != last[:-1]) | (parts[1:] != parts[:-1]))  # does not go on a range
            ranges = np.stack([first[new], last[np.append(new[1:], True)]], axis=1)
            edges = np.flatnonzero(np.diff(parts[new], prepend=-1))
            files = (source.files[number] for number in parts[new][edges])
            found.append(tuple(map(Stretch, files, np.split(ranges, edges[1:]))))
        return found


@dataclass(frozen=True)
class ShardJob:
    """Contents of one shard: the first `blocks` blocks of its stretches. Tokens after them are counted, not written."""

    folder: str
    name: str
    stretches: tuple[Stretch, ...]
    blocks: int
    vocab_size: int
    record: Record
    template: bytes  # a serialized record

    @property
    def key(self) -> str:
        """SHA-256 in hex: jobs with the same key write the same bytes."""
        identity = self.name, self.blocks, self.vocab_size, self.record
        whole = hashlib.sha256(repr(identity).encode())
        for stretch in self.stretches:
            whole.update(stretch.file.encode() + stretch.ranges.tobytes())
        return whole.hexdigest()

    @property
    def report(self) -> epath.Path:
        """The file with the report of the shard."""
        return epath.Path(self.folder) / f"{self.name}.json"


def plan_shards(
    folder: epath.Path, split: SplitName, contents: Sequence[Content], record: Record, template: bytes, vocab_size: int
) -> list[list[ShardJob]]:
    """Plan the shards of a split, of each source. The last one of a source also reads the tokens that are dropped."""
    split_bytes = sum(content.tokens for content in contents) // record.block_len * record.num_bytes
    per_shard = blocks_per_shard(split_bytes, record.num_bytes)
    plans: list[list[tuple[int, tuple[Stretch, ...]]]] = []
    for content in contents:
        blocks, rest = divmod(content.tokens, record.block_len)
        in_shards = [min(per_shard, blocks - begin) for begin in range(0, blocks, per_shard)]
        sizes = [number * record.block_len for number in in_shards]
        sizes[-1] += rest
        plans.append(list(zip(in_shards, content.cut(sizes), strict=True)))
    number = sum(map(len, plans))
    names = (f"corpus-{split}.array_record-{i:05d}-of-{number:05d}" for i in range(number))
    return [
        [
            ShardJob(str(folder), next(names), stretches, blocks, vocab_size, record, template)
            for blocks, stretches in of_source
        ]
        for of_source in plans
    ]


def blocks_per_shard(split_bytes: int, record_bytes: int) -> int:
    """Return the number of blocks in a shard, so that a split has about SHARDS shards of a sensible size."""
    return max(1, int(np.clip(split_bytes // SHARDS, MIN_SHARD_BYTES, MAX_SHARD_BYTES)) // record_bytes)


@dataclass(frozen=True)
class Written:
    """Report of a shard on disk. The counts include the tokens after its last block."""

    key: str
    shard: Shard
    documents: Count
    lines: Count
    tokens: Count
    counts: tuple[Count, ...]  # [V], occurrences of each piece

    @classmethod
    def load(cls, job: ShardJob) -> Written:
        """Read the report of a job. Raises InputError where it is damaged."""
        found = read_versioned(job.report, "parts", cls, REMEDY)
        if found.key == job.key and (len(found.counts), found.shard.name) != (job.vocab_size, job.name):
            raise InputError(f"{job.report} is damaged: it describes another shard; {REMEDY}")
        return found


def write_shard(job: ShardJob) -> None:
    """Write the shard and its report, unless an interrupted run wrote them. One part at a time is in memory."""
    if job.report.exists() and Written.load(job).key == job.key:
        return
    block_len, left = job.record.block_len, job.blocks
    counts = np.zeros(job.vocab_size, np.int64)
    documents = lines = 0
    tokens, starts = np.zeros(0, np.int32), np.zeros(0, np.uint8)  # less than a block
    with complete_file(epath.Path(job.folder) / job.name) as here:
        with disk_errors_as_os_error(here):
            writer = ArrayRecordWriter(str(here), WRITER_OPTIONS)
            try:
                for stretch in job.stretches:
                    more_tokens, more_starts, is_line = _read(stretch, job.vocab_size)
                    counts += np.bincount(more_tokens, minlength=job.vocab_size)
                    documents += int(np.count_nonzero(more_starts == Start.DOCUMENT))
                    lines += int(np.count_nonzero(is_line))
                    tokens, starts = np.concatenate([tokens, more_tokens]), np.concatenate([starts, more_starts])
                    blocks = min(len(tokens) // block_len, left)
                    full = blocks * block_len
                    raw = np.tile(np.frombuffer(job.template, np.uint8), (blocks, 1))
                    records = raw.view(job.record.dtype)[:, 0]
                    records["tokens"] = tokens[:full].reshape(blocks, block_len)
                    records["starts"] = starts[:full].reshape(blocks, block_len)
                    for record in raw:
                        writer.write(record.tobytes())
                    tokens, starts, left = tokens[full:], starts[full:], left - blocks
            finally:
                writer.close()
        with here.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        shard = Shard(job.name, job.blocks, here.stat().st_size, digest)
    written = Written(job.key, shard, documents, lines, int(counts.sum()), tuple(counts.tolist()))
    write_versioned(job.report, "parts", dataclasses.asdict(written))


def _read(stretch: Stretch, vocab_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (tokens, starts, which tokens begin a line) of a stretch."""
    tokens, starts, line_starts = load(stretch.file, "tokens", "starts", "line_starts")
    ends = len(starts), max(len(tokens), line_starts.max(initial=-1) + 1, stretch.ranges[-1, 1])
    if tokens.max(initial=-1) >= vocab_size or any(end != len(tokens) for end in ends):
        raise InputError(f"{stretch.file} is damaged: its arrays do not agree; {REMEDY}")
    is_line = np.zeros(len(tokens), bool)
    is_line[line_starts] = True
    wanted = np.concatenate([np.arange(begin, end) for begin, end in stretch.ranges])
    return tokens[wanted], starts[wanted], is_line[wanted]


def write_corpus(
    folder: epath.Path,
    contents: Mapping[SplitName, Sequence[Content]],
    tokenizer: Tokenizer,
    block_len: int,
    weights: Sequence[float],
    made_from: Mapping[str, Any],
    origins: Mapping[str, Any],
    runner: Runner,
) -> None:
    """Write the corpus of these contents into `folder`, reusing shards that an interrupted run finished.

    weights: share of the rows that read each source; empty = by size. made_from, origins: as in `Manifest`.
    """
    template, record = serialized_record(block_len, tokenizer.vocab_size)
    jobs = {
        split: plan_shards(folder, split, given, record, template, tokenizer.vocab_size)
        for split, given in contents.items()
    }
    every_job = [job for of_split in jobs.values() for of_source in of_split for job in of_source]
    ours = {name for job in every_job for name in (job.name, job.report.name)}
    for path in folder.iterdir():  # of an earlier run with other settings
        if path.name not in ours:
            path.rmtree() if path.is_dir() else path.unlink()
    runner.run(every_job, write_shard)

    counts = np.zeros(tokenizer.vocab_size, np.int64)
    splits: dict[SplitName, Split] = {}
    for split, of_split in jobs.items():
        written = [Written.load(job) for of_source in of_split for job in of_source]
        source_blocks = tuple(sum(job.blocks for job in of_source) for of_source in of_split)
        tokens = sum(shard.tokens for shard in written)
        splits[split] = Split(
            documents=sum(shard.documents for shard in written),
            lines=sum(shard.lines for shard in written),
            tokens=tokens,
            dropped_tokens=tokens - sum(source_blocks) * block_len,
            source_blocks=source_blocks,
            shards=tuple(shard.shard for shard in written),
        )
        if split == "train":
            counts += sum(np.array(shard.counts, np.int64) for shard in written)
    tokenizer.save(folder / TOKENIZER_FOLDER)
    array = io.BytesIO()  # into an open file NumPy writes by a copy of its descriptor, and ignores errors of its close
    np.save(array, counts)
    (folder / COUNTS_FILE).write_bytes(array.getvalue())
    write_tfds_metadata(folder, record, splits)
    share = counts[counts > 0] / counts.sum()
    Manifest(
        made_from=dict(made_from),
        vocab_size=len(counts),
        record=record,
        unigram_entropy=float(-(share * np.log(share)).sum()),
        sources=tuple(content.source.given.name for content in contents["train"]),
        weights=tuple(weights),
        splits=splits,
        origins=dict(origins),
    ).save(folder)
    for job in every_job:
        job.report.unlink()


def serialized_record(block_len: int, vocab_size: int) -> tuple[bytes, Record]:
    """Return a record in the form that TFDS reads, as a template, and the layout of its bytes."""
    from tensorflow_datasets.proto import tf_example_pb2

    token_dtype: Literal["<u2", "<u4"] = "<u2" if vocab_size <= 2**16 else "<u4"
    tokens = np.full(block_len, 0x01010101 & np.iinfo(token_dtype).max, token_dtype)
    starts = np.full(block_len, 2, np.uint8)
    in_any_order = _features(block_len, token_dtype).serialize_example({"tokens": tokens, "starts": starts})
    serialized = tf_example_pb2.Example.FromString(in_any_order).SerializeToString(deterministic=True)
    # Search from the end: a length before the bytes can look like one of them, nothing after them does.
    tokens_at, starts_at = serialized.rfind(tokens.tobytes()), serialized.rfind(starts.tobytes())
    return serialized, Record(block_len, token_dtype, tokens_at, starts_at, len(serialized))


def write_tfds_metadata(folder: epath.Path, record: Record, splits: Mapping[SplitName, Split]) -> None:
    """Write features.json and dataset_info.json."""
    import tensorflow_datasets as tfds

    template = tfds.core.ShardedFileTemplate(data_dir=folder, dataset_name="corpus", filetype_suffix="array_record")
    tfds.folder_dataset.write_metadata(
        data_dir=folder,
        features=_features(record.block_len, record.token_dtype),
        split_infos=[
            tfds.core.SplitInfo(
                name=name,
                shard_lengths=[shard.blocks for shard in split.shards],
                num_bytes=sum(shard.num_bytes for shard in split.shards),
                filename_template=template,
            )
            for name, split in splits.items()
        ],
        filename_template=template,
        check_data=False,  # the check reads the data with tf.data, which cannot read this format
        description="Blocks of consecutive tokens for pretraining; manifest.json describes the text.",
    )


def _features(block_len: int, token_dtype: str) -> Any:
    import tensorflow_datasets as tfds

    dtypes = {"tokens": np.dtype(token_dtype).type, "starts": np.uint8}
    return tfds.features.FeaturesDict(
        {
            name: tfds.features.Tensor(shape=(block_len,), dtype=dtype, encoding=tfds.features.Encoding.BYTES)
            for name, dtype in dtypes.items()
        }
    )
