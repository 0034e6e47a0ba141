"""Text and corpora in the cloud, read and written by the libraries that do so in production."""

import bz2
import gzip
import lzma
import re
from collections import Counter

import numpy as np
import pytest
from etils import epath

from data_pipelines import sources
from data_pipelines.corpus import Corpus
from data_pipelines.prepare import __main__ as prepare_command
from data_pipelines.prepare import prepare
from data_pipelines.prepare.runners import LocalRunner
from data_pipelines.tokenizer import Tokenizer
from data_pipelines.tokenizer import __main__ as tokenizer_command
from xlnet_jax.errors import InputError
from xlnet_jax.objectives.inspect import InspectSettings, inspect_window

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
    backend = type(epath.Path("gs://bucket")._backend)
    open_, opens = backend.open, Counter()

    def counted(self, path, mode):
        opens[str(path).rpartition("/")[2]] += mode.startswith("r") and ".c.partial/work/" in str(path)
        return open_(self, path, mode)

    monkeypatch.setattr(backend, "open", counted)
    options = {"block_len": BLOCK_LEN, "validation_fraction": 0.2, "runner": LocalRunner(1)}
    corpus = prepare(found, None, tokenizer, "gs://bucket/c", **options)
    assert [len(split.shards) for split in corpus.manifest.splits.values()] == [2, 2]  # one a source
    parts = {name: times for name, times in opens.items() if name.endswith(".npz") and times}
    assert len(parts) > 20
    assert set(parts.values()) <= {2, 3}  # for its documents, and for the shard of each split that has text of it


def test_the_manifest_comes_last_so_that_half_a_copy_is_no_corpus(cloud, bucket):
    put_text(bucket / "text")
    found = sources.find(["gs://bucket/text"])
    tokenizer = Tokenizer.train(sources.read_lines(found, "strict"), 500, "auto")
    options = {"block_len": BLOCK_LEN, "validation_fraction": 0.2, "runner": LocalRunner(1)}
    prepare(found, None, tokenizer, "gs://bucket/c", **options)
    published = [name for name in cloud.made if name.startswith("bucket/c/")]
    assert published[-1] == "bucket/c/manifest.json"
    assert len(published) > 5
    assert not any(bucket.rglob("*.npz"))


def test_a_corpus_in_a_bucket_is_checked(bucket, capsys):
    put_text(bucket / "text")
    found = sources.find(["gs://bucket/text"])
    tokenizer = Tokenizer.train(sources.read_lines(found, "strict"), 500, "auto")
    options = {"block_len": BLOCK_LEN, "validation_fraction": 0.2, "runner": LocalRunner(1)}
    prepare(found, None, tokenizer, "gs://bucket/c", **options)
    assert prepare_command.main(["--check", "gs://bucket/c"]) == 0
    assert re.fullmatch(
        r"corpus      gs://bucket/c, 2 shards, [\d,]+ bytes, as they were written\n", capsys.readouterr().out
    )
    shard = min((bucket / "c").glob("corpus-train*"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    with pytest.raises(InputError, match=rf"gs://bucket/c: the shard {shard.name} was altered, its sha256 is"):
        prepare_command.main(["--check=gs://bucket/c"])


def test_a_tokenizer_is_trained_from_a_bucket_into_a_bucket(bucket, tmp_path, monkeypatch):
    put_text(bucket / "text")
    monkeypatch.chdir(tmp_path)
    words = ["train", "--source", "gs://bucket/text", "--out", "gs://bucket/t", "--vocab-size", "300"]
    assert tokenizer_command.main(words) == 0
    assert Tokenizer.load("gs://bucket/t").vocab_size == 300
    assert not (tmp_path / "gs:").exists()
    with pytest.raises(InputError, match=r"--out gs://bucket/t exists: name a folder that does not"):
        tokenizer_command.main(words)


@pytest.mark.parametrize("end", [".gz", ".xz", ".bz2", ".zst"])
def test_compressed_text_in_a_bucket_is_read(bucket, end):
    import backports.zstd as zstd

    compress = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress, ".zst": zstd.compress}[end]
    (bucket / f"a.txt{end}").write_bytes(compress(b"A line.\nAnother.\n"))
    found = sources.find([f"gs://bucket/a.txt{end}"])
    assert [line for line in sources.read_lines(found, "strict") if line][:2] == ["A line.", "Another."]


def test_a_window_of_a_corpus_in_a_bucket_is_inspected(bucket, tmp_path):
    put_text(bucket / "text")
    found = sources.find(["gs://bucket/text"])
    tokenizer = Tokenizer.train(sources.read_lines(found, "strict"), 500, "auto")
    options = {"block_len": BLOCK_LEN, "validation_fraction": 0.2, "runner": LocalRunner(1)}
    prepare(found, None, tokenizer, "gs://bucket/c", **options)
    settings = InspectSettings("gs://bucket/c", out=str(tmp_path / "w.png"))
    assert str(inspect_window(settings).corpus.folder) == "gs://bucket/c"
