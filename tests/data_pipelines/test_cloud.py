"""Text and corpora in the cloud, read and written by the libraries that production uses."""

import numpy as np
import pytest

from data_pipelines import sources
from data_pipelines.corpus import Corpus
from data_pipelines.tokenizer import Tokenizer
from tests.data_pipelines import corpus_of
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.errors import InputError
from xlnet_jax.objectives.inspect import InspectSettings, inspect_window
from xlnet_jax.storage import lock

tokenizer_command = COMMANDS["tokenizer"]


@pytest.fixture(scope="module")
def chapters():
    with open(sources.embedded()[1]) as novel:
        return novel.read().split("\n\n")[:4]


@pytest.fixture
def folder(bucket, chapters, monkeypatch):
    """gs://bucket/text, with a file at its top and one below it; a lock waits a moment only."""
    monkeypatch.setattr(lock, "SECONDS_BETWEEN_BEATS", 0.5)
    (bucket / "text" / "deep").mkdir(parents=True)
    (bucket / "text" / "a.txt").write_text("\n\n".join(chapters[:2]))
    (bucket / "text" / "deep" / "b.txt").write_text("\n\n".join(chapters[2:]))
    return bucket / "text"


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("gs://bucket", ["gs://bucket/text/a.txt", "gs://bucket/text/deep/b.txt"]),
        ("gs://bucket/text/a.txt", ["gs://bucket/text/a.txt"]),
        ("gs://bucket/text/*/*.txt", ["gs://bucket/text/deep/b.txt"]),
    ],
)
def test_text_is_found_in_a_bucket(folder, name, files):
    (source,) = sources.find([name])
    assert [unit.path for unit in source.units] == files
    assert next(sources.read_lines([source]))


def test_what_a_bucket_does_not_hold_is_named(bucket):
    with pytest.raises(InputError, match=r"text gs://bucket/none\.txt: no such file or folder"):
        sources.find(["gs://bucket/none.txt"])
    with pytest.raises(InputError, match=r"\*\* works only on disk"):
        sources.find(["gs://bucket/**/*.txt"])


def test_a_corpus_is_prepared_from_a_bucket_into_a_bucket(cloud, bucket, folder, trained, tmp_path, monkeypatch):
    monkeypatch.setattr("data_pipelines.prepare.encoding.PART_CHARS", 20_000)
    monkeypatch.setattr("data_pipelines.readers.CHUNK_BYTES", 5_000)
    trained.save("gs://bucket/tokenizer")
    out = "gs://bucket/corpora/novel"
    names = ["gs://bucket/text/a.txt", "gs://bucket/text/deep"]
    in_cloud = corpus_of(names, Tokenizer.load("gs://bucket/tokenizer"), out)
    on_disk = corpus_of([folder / "a.txt", folder / "deep"], trained, tmp_path / "corpus")
    assert in_cloud.manifest == on_disk.manifest
    blocks = np.arange(on_disk.num_blocks("train"))
    for ours, theirs in zip(Corpus(out).read("train", blocks), on_disk.read("train", blocks), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert in_cloud.tokenizer.sha256 == trained.sha256
    published = [name for name in cloud.made if name.startswith("bucket/corpora/novel/")]
    assert published[-1] == "bucket/corpora/novel/manifest.json"  # so an incomplete copy is not a corpus
    assert [p.name for p in (bucket / "corpora").iterdir() if any(p.iterdir())] == ["novel"]
    assert not any(bucket.rglob("*.npz"))

    settings = InspectSettings(out, out=str(tmp_path / "w.png"))
    assert str(inspect_window(settings).corpus.folder) == out

    Corpus(out).check()
    shard = min((bucket / "corpora" / "novel").glob("corpus-train*"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    with pytest.raises(InputError, match=rf"corpora/novel: the shard {shard.name} was changed: its sha256 is"):
        Corpus(out).check()


def test_a_tokenizer_is_trained_from_a_bucket_into_a_bucket(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["train", "--source", "gs://bucket/text", "--out", "gs://bucket/t", "--vocab-size", "300"]
    assert tokenizer_command.main(words) == 0
    assert Tokenizer.load("gs://bucket/t").vocab_size == 300
    assert not (tmp_path / "gs:").exists()
    with pytest.raises(InputError, match=r"gs://bucket/t exists: name a folder that does not"):
        tokenizer_command.main(words)
