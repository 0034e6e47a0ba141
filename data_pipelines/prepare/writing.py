"""Write a corpus folder: the shards of both splits, and the files beside them."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from data_pipelines.corpus import COUNTS_FILE, TOKENIZER_FOLDER, Manifest, Split, SplitName
from data_pipelines.prepare.layout import Content, Contents, blocks_per_shard, shards_of
from data_pipelines.prepare.metadata import serialized_record, write_tfds_metadata
from data_pipelines.prepare.runners import Runner
from data_pipelines.prepare.shards import ShardJob, Written, report_of, write
from data_pipelines.tokenizer import Tokenizer


def write_corpus(
    folder: epath.Path,
    contents: Contents,
    tokenizer: Tokenizer,
    block_len: int,
    names: tuple[str, ...],
    weights: tuple[float, ...],
    made_from: Mapping[str, Any],
    runner: Runner,
    origins: dict[str, Any] | None = None,
) -> None:
    """Write the corpus of these contents into `folder`, reusing shards that an interrupted run finished.

    names: names of the training sources. weights: share of the rows that read each of them; empty = by size.
    made_from, origins: as in `Manifest`.
    """
    template, record = serialized_record(block_len, tokenizer.vocab_size)

    def plan(split: SplitName, given: list[Content]) -> list[list[ShardJob]]:
        per_shard = blocks_per_shard(given, block_len, record.num_bytes)
        plans = [shards_of(content, split, block_len, per_shard) for content in given]
        shard_names = _shard_names(split, sum(map(len, plans)))
        return [
            [
                ShardJob(
                    str(folder), next(shard_names), split, p.stretches, p.rule, p.blocks, len(counts), record, template
                )
                for p in of_source
            ]
            for of_source in plans
        ]

    counts = np.zeros(tokenizer.vocab_size, np.int64)
    jobs = {split: plan(split, given) for split, given in contents.items()}
    every_job = [job for of_split in jobs.values() for of_source in of_split for job in of_source]
    _remove_others(folder, every_job)
    runner.run(every_job, _itself, write)

    splits: dict[SplitName, Split] = {}
    for split, of_split in jobs.items():
        written = [[Written.load(job) for job in of_source] for of_source in of_split]
        splits[split] = _split_of(written, block_len)
        if split == "train":
            counts += sum(np.array(w.counts, np.int64) for of_source in written for w in of_source)
    tokenizer.save(folder / TOKENIZER_FOLDER)
    array = io.BytesIO()  # into an open file NumPy writes by a copy of its descriptor, and ignores errors of its close
    np.save(array, counts)
    (folder / COUNTS_FILE).write_bytes(array.getvalue())
    write_tfds_metadata(folder, record, splits)
    described = dict(made_from), len(counts), record, _entropy(counts), names, weights, splits
    Manifest(*described, origins=origins or {}).save(folder)
    for job in every_job:
        report_of(job).unlink()


def _itself(job: ShardJob) -> Sequence[ShardJob]:
    return (job,)


def _shard_names(split: SplitName, number: int) -> Iterator[str]:
    return (f"corpus-{split}.array_record-{i:05d}-of-{number:05d}" for i in range(number))


def _remove_others(folder: epath.Path, jobs: list[ShardJob]) -> None:
    """Delete the files that an earlier run with other settings left."""
    ours = {name for job in jobs for name in (job.name, report_of(job).name)}
    for path in folder.iterdir():
        if path.name not in ours:
            path.rmtree() if path.is_dir() else path.unlink()


def _split_of(written: list[list[Written]], block_len: int) -> Split:
    every = [w for of_source in written for w in of_source]
    source_blocks = tuple(sum(w.shard.blocks for w in of_source) for of_source in written)
    tokens = sum(w.tokens for w in every)
    return Split(
        documents=sum(w.documents for w in every),
        lines=sum(w.lines for w in every),
        tokens=tokens,
        dropped_tokens=tokens - sum(source_blocks) * block_len,
        source_blocks=source_blocks,
        shards=tuple(w.shard for w in every),
    )


def _entropy(counts: np.ndarray) -> float:
    """Return the entropy of the counts, in nats."""
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())
