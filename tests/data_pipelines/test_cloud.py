"""Text and corpora in the cloud: all access goes through one path layer, which here stores files in a folder."""

import contextlib
from collections import Counter

import numpy as np
import pytest

from data_pipelines import sources
from data_pipelines.corpus import Corpus
from data_pipelines.prepare import prepare
from data_pipelines.prepare.runners import LocalRunner
from data_pipelines.tokenizer import Tokenizer
from tests.bucket import Bucket
from xlnet_jax.errors import InputError

BLOCK_LEN = 64


def put_text(folder, names=("a.txt", "deep/b.txt")):
    with open(sources.embedded()[1]) as novel:
        chapters = novel.read().split("\n\n")[:12]
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("\n\n".join(chapters[number * 6 : number * 6 + 6]))


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("gs://bucket", ["gs://bucket/a.txt", "gs://bucket/deep/b.txt"]),
        ("gs://bucket/a.txt", ["gs://bucket/a.txt"]),
        ("gs://bucket/*/*.txt", ["gs://bucket/deep/b.txt"]),
    ],
)
def test_text_is_found_in_a_bucket(bucket, name, files):
    put_text(bucket)
    (source,) = sources.find([name])
    assert [unit.path for unit in source.units] == files
    assert next(sources.read_lines([source], "strict"))


def test_what_a_bucket_does_not_hold_is_named(bucket):
    with pytest.raises(InputError, match=r"text gs://bucket/none\.txt: no such file or folder"):
        sources.find(["gs://bucket/none.txt"])
    with pytest.raises(InputError, match=r"\*\* descends on disk only"):
        sources.find(["gs://bucket/**/*.txt"])


def test_a_corpus_is_prepared_from_a_bucket_into_a_bucket(bucket, tmp_path):
    put_text(bucket / "text")
    found = sources.find(["gs://bucket/text"])
    Tokenizer.train(sources.read_lines(found, "strict"), 500, "auto").save("gs://bucket/tokenizer")
    tokenizer = Tokenizer.load("gs://bucket/tokenizer")

    def make(found, out):
        options = {"block_len": BLOCK_LEN, "validation_fraction": 0.2, "runner": LocalRunner(1)}
        return prepare(found, None, tokenizer, out, **options)

    cloud = make(found, "gs://bucket/corpora/novel")
    disk = make(sources.find([str(bucket / "text")]), tmp_path / "corpus")
    assert cloud.manifest == disk.manifest
    blocks = np.arange(disk.num_blocks("train"))
    for ours, theirs in zip(Corpus(cloud.folder).read("train", blocks), disk.read("train", blocks), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert cloud.tokenizer.sha256 == tokenizer.sha256
    assert [p.name for p in (bucket / "corpora").iterdir() if any(p.iterdir())] == ["novel"]


def test_each_part_is_read_once_for_its_documents_and_once_for_each_shard(bucket, monkeypatch):
    monkeypatch.setattr("data_pipelines.prepare.parts.PART_CHARS", 3_000)
    monkeypatch.setattr("data_pipelines.prepare.parts.GROUP_BYTES", 30_000)
    monkeypatch.setattr("data_pipelines.readers.CHUNK_BYTES", 1_000)
    put_text(bucket / "text", ("a.txt",))
    put_text(bucket / "more", ("b.txt", "c.txt"))
    found = sources.find(["gs://bucket/more/c.txt", "gs://bucket/text"])
    tokenizer = Tokenizer.train(sources.read_lines(found, "strict"), 500, "auto")
    open_, opens = Bucket.open, Counter()

    def counted(self, path, mode):
        opens[str(path).rpartition("/")[2]] += mode.startswith("r") and ".c.partial/work/" in str(path)
        return open_(self, path, mode)

    monkeypatch.setattr(Bucket, "open", counted)
    options = {"block_len": BLOCK_LEN, "validation_fraction": 0.2, "runner": LocalRunner(1)}
    corpus = prepare(found, None, tokenizer, "gs://bucket/c", **options)
    assert [len(split.shards) for split in corpus.manifest.splits.values()] == [2, 2]  # one a source
    lists, parts = (
        {n: k for n, k in opens.items() if k and (n.count("-") == 1) == is_list} for is_list in (True, False)
    )
    assert len(parts) > 20
    assert set(parts.values()) <= {2, 3}  # for its documents, and for the shard of each split that has text of it
    assert sum(kind.endswith(".npz") for kind in lists) == 2
    assert {name: times for name, times in lists.items() if name.endswith(".npz") and times > 1} == {}


def test_the_manifest_comes_last_so_that_half_a_copy_is_no_corpus(bucket, monkeypatch):
    put_text(bucket / "text")
    found = sources.find(["gs://bucket/text"])
    tokenizer = Tokenizer.train(sources.read_lines(found, "strict"), 500, "auto")
    copy, copied = Bucket.copy, []

    def counted(self, path, dst, overwrite):
        copied.append(str(dst))
        copy(self, path, dst, overwrite)

    monkeypatch.setattr(Bucket, "copy", counted)
    options = {"block_len": BLOCK_LEN, "validation_fraction": 0.2, "runner": LocalRunner(1)}
    prepare(found, None, tokenizer, "gs://bucket/c", **options)
    published = [name for name in copied if name.startswith("gs://bucket/c/")]
    assert published[-1] == "gs://bucket/c/manifest.json"
    assert len(published) > 5
    with contextlib.suppress(FileNotFoundError):
        assert not any((bucket / ".c.partial").rglob("*.npz"))
