"""Recover the text in the TFRecord files that the original's data_utils.py wrote, for users without another copy of it.

A file holds batches of windows, and row r of each batch begins reuse_len tokens after row r of the batch before. The
text of a row is therefore the reused parts of its windows in order, and the A of its last window. Where rows hold a
text forwards and backwards, only the forward rows are read; of several passes over a text, only the first. Masks and
pairs are not read. The records lack the end of each row's text, less than a window.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from etils import epath

from data_pipelines.corpus import Corpus, Start
from data_pipelines.prepare.encoding import EncodedPart, documents_in
from data_pipelines.prepare.holdout import line_hashes, places_of
from data_pipelines.prepare.job import Encoded, Job, demand_corpus, open_same
from data_pipelines.prepare.runners import LocalRunner
from data_pipelines.sources import Source, describe
from data_pipelines.tokenizer import EOD, EOP, SEP, Tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.storage.files import demand_place
from xlnet_jax.storage.folders import resumable_folder
from xlnet_jax.storage.quiet_tensorflow import tensorflow
from xlnet_jax.storage.reading import Count, Positive, demand_regular, inside, read_json

INFO = "corpus_info.json"
RECORD_INFO = re.compile(r"record_info-(?P<split>.+)-(?P<task>\d+)-(?P<pass>\d+)\.bsz-.*\.json")


@dataclass(frozen=True)
class _RecordInfo:
    filenames: tuple[str]
    num_batch: Count


@dataclass(frozen=True)
class Layout:
    """Layout of the windows in the files of a folder. The fields have their names in corpus_info.json."""

    vocab_size: Positive
    bsz_per_host: Positive
    num_core_per_host: Positive
    seq_len: Positive
    reuse_len: Count
    bi_data: bool

    @classmethod
    def load(cls, folder: epath.Path) -> Layout:
        """Read corpus_info.json. Raises InputError if the original did not write this folder."""
        file = folder / INFO
        if not file.exists():
            raise InputError(
                f"records {folder}: no {INFO} in it; name the folder that data_utils.py wrote (its "
                "--save_dir), or the tfrecords folder in it"
            )
        return read_json(file, cls, "give the settings that the original wrote")

    @property
    def forward_rows(self) -> np.ndarray:
        """Rows of a batch that read their text forwards, in the order of the text: int [rows]."""
        rows = np.arange(self.bsz_per_host)
        if not self.bi_data:
            return rows
        # Each core has its forward rows first, then the same text backwards (create_tfrecords of data_utils.py).
        return rows.reshape(self.num_core_per_host, 2, -1)[:, 0].ravel()


def prepare_records(
    folder: epath.PathLike, tokenizer: Tokenizer, out: epath.PathLike, *, block_len: int, validation_fraction: float
) -> Corpus:
    """Write the corpus folder `out` from the original's records, or open it if it was made from the same records.

    tokenizer: the one that the records were made with. block_len: tokens in a block. validation_fraction: as in
    `prepare`. Raises InputError if the folder, a record file or the tokenizer is not the right one.
    """
    folder, out = _records_folder(epath.Path(folder).expanduser()), epath.Path(out).expanduser()
    layout = Layout.load(folder)
    files = _record_files(folder)
    made_from: dict[str, Any] = {
        "validation_fraction": validation_fraction,
        "weights": [],
        "tokenizer": tokenizer.sha256,
        "block_len": block_len,
    }
    if out.exists():
        demand_corpus(out)
        return open_same(out, {**made_from, "train": [_digest(files)], "validation": None})
    demand_place(out)
    with resumable_folder(out) as (finished, work):
        parts = []
        for number, (file, batches) in enumerate(files.items()):
            parts.append(work / f"records-{number:05d}.npz")
            _encode(_row_texts(file, batches, layout), tokenizer, str(file)).save(parts[-1])
        source = Source(describe(str(folder)), str(folder), ())
        places = places_of((str(part), *documents_in(str(part))) for part in parts)
        encoded = Encoded(places, source, _digest(files))
        job = Job(finished, work, tokenizer, block_len, "strict", LocalRunner())
        job.write({"train": [encoded], "validation": []}, validation_fraction, (), made_from)
    return Corpus(out)


def _records_folder(folder: epath.Path) -> epath.Path:
    """Return the folder of the records. The original writes corpus_info.json into --save_dir, and the records into
    tfrecords/ below it."""
    return folder / "tfrecords" if (folder / "tfrecords").is_dir() and not (folder / INFO).exists() else folder


def _record_files(folder: epath.Path) -> dict[epath.Path, int]:
    """Return the record files of the first pass of each task, in order, with the number of batches of each."""
    infos = [(m, path) for path in folder.iterdir() if (m := RECORD_INFO.fullmatch(path.name))]
    if not infos:
        raise InputError(f"records {folder}: no record_info-*.json in it, which names the record files")
    first_pass = min(int(m["pass"]) for m, _ in infos)
    chosen = sorted((m["split"], int(m["task"]), path) for m, path in infos if int(m["pass"]) == first_pass)
    files: dict[epath.Path, int] = {}
    for *_, path in chosen:
        info = read_json(path, _RecordInfo, "give the record info that the original wrote")
        files[inside(folder, info.filenames[0], str(path))] = info.num_batch
    for file in files:
        if not file.exists():
            raise InputError(f"records {file}: it is missing, and its record_info names it")
        demand_regular(file)
    return files


def _row_texts(file: epath.Path, batches: int, layout: Layout) -> list[np.ndarray]:
    """Read the tokens of each forward row, int32 [E]."""
    tf = tensorflow()
    records = tf.data.TFRecordDataset(str(file)).batch(layout.bsz_per_host, drop_remainder=True)
    feature = {"input": tf.io.FixedLenFeature([layout.seq_len], tf.int64)}
    rows = layout.forward_rows
    reused: list[np.ndarray] = []
    last = np.zeros((len(rows), layout.seq_len), np.int32)
    try:
        for batch in records.as_numpy_iterator():
            last = tf.io.parse_example(batch, feature)["input"].numpy().astype(np.int32)[rows]
            reused.append(last[:, : layout.reuse_len].astype(np.uint16 if layout.vocab_size <= 2**16 else np.int32))
    except (tf.errors.OpError, UnicodeDecodeError) as error:  # the second where a message quotes damaged bytes
        raise InputError(f"records {file}: it cannot be read ({str(error).splitlines()[0]})") from None
    if not len(reused) == batches > 0:
        raise InputError(
            f"records {file}: it holds {len(reused)} batches of {layout.bsz_per_host} windows, and its "
            f"record_info names {batches}"
        )

    text = np.concatenate(reused, axis=1).astype(np.int32)
    ends = [row[layout.reuse_len :][: (row[layout.reuse_len :] == SEP).argmax()] for row in last]
    return [np.concatenate(parts) for parts in zip(text, ends, strict=True)]


def _encode(rows: Sequence[np.ndarray], tokenizer: Tokenizer, where: str) -> EncodedPart:
    """Join the rows into one part. Documents end at <eod>; sentences at <eop>, at row ends, and where pieces say so."""
    tokens = np.concatenate(rows)
    if tokens.max(initial=0) >= tokenizer.vocab_size:
        raise InputError(
            f"records {where}: it has the id {tokens.max()}, and the tokenizer has "
            f"{tokenizer.vocab_size} pieces: name the one that the records were made with"
        )
    behind = np.append(False, np.isin(tokens[:-1], (EOD, EOP)))
    row_begins = np.cumsum([0, *map(len, rows[:-1])])
    starts = np.where(tokenizer.sentence_starts(tokens) | behind, Start.SENTENCE, Start.NOTHING).astype(np.uint8)
    starts[row_begins] = Start.SENTENCE
    starts[1:][tokens[:-1] == EOD] = Start.DOCUMENT
    starts[0] = Start.DOCUMENT
    documents = np.flatnonzero(starts == Start.DOCUMENT)
    texts = [tokenizer.decode(document) for document in np.split(tokens, documents[1:])]
    return EncodedPart(
        tokens=tokens,
        starts=starts,
        document_tokens=np.diff(documents, append=len(tokens)),
        document_hashes=line_hashes(texts),
        line_starts=np.zeros(0, np.int64),  # records do not store lines
        continues=np.array(False),
    )


def _digest(files: Iterable[epath.Path]) -> str:
    whole = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            while chunk := opened.read(2**22):
                whole.update(chunk)
    return whole.hexdigest()
