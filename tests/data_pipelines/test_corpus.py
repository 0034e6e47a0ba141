import json
import math
import shutil

import numpy as np
import pytest
from etils import epath

from data_pipelines.corpus import Corpus, Start
from data_pipelines.prepare.encoding import join_parts, save
from data_pipelines.prepare.shards import cut, stretches_of, write_corpus
from data_pipelines.sources import Source
from tests.data_pipelines import ALONE
from xlnet_jax.errors import InputError

BLOCK_LEN, VOCAB_SIZE = 50, 300


@pytest.fixture(scope="module")
def text():
    """Return 61 blocks and 7 tokens, drawn at random; `write` holds out the last 10 blocks and the 7 tokens."""
    rng = np.random.default_rng(0)
    size = 61 * BLOCK_LEN + 7
    tokens = np.minimum(rng.geometric(0.02, size), VOCAB_SIZE - 1).astype(np.int32)
    starts = rng.choice(3, size, p=[0.9, 0.08, 0.02]).astype(np.uint8)
    return tokens, starts


class Vocabulary:
    """The part of a tokenizer that writing a corpus needs."""

    def __init__(self, vocab_size):
        self.vocab_size = vocab_size

    def save(self, folder):
        folder.mkdir()


def write(folder, text, vocab_size=VOCAB_SIZE, part=333, blocks_per_shard=8):
    folder = epath.Path(folder)
    parts = folder.parent / f"{folder.name}-parts"
    folder.mkdir()
    parts.mkdir()
    tokens, starts = text
    files = []
    for begin in range(0, len(tokens), part):
        here = starts[begin : begin + part]
        first = np.append(np.flatnonzero(here == Start.DOCUMENT), len(here))
        continues = here[0] != Start.DOCUMENT and begin > 0
        sizes = np.diff(first, prepend=0) if continues or first[0] else np.diff(first)
        lines = np.flatnonzero(here > 0)
        files.append(str(parts / f"{begin:06}.npz"))
        encoded = {
            "tokens": tokens[begin : begin + part], "starts": here, "document_tokens": sizes,
            "document_hashes": np.zeros(len(sizes), np.uint64), "line_starts": lines, "continues": np.array(continues),
        }  # fmt: skip
        save(encoded, epath.Path(files[-1]))
    source = join_parts(Source("random", "random", ()), files)
    sides = cut(stretches_of(source), [51 * BLOCK_LEN, len(tokens) - 51 * BLOCK_LEN])
    contents = {split: [(source, side)] for split, side in zip(("train", "validation"), sides, strict=True)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("data_pipelines.prepare.shards.blocks_per_shard", lambda *_: blocks_per_shard)
        write_corpus(folder, contents, Vocabulary(vocab_size), BLOCK_LEN, (), {"text": "random"}, {}, ALONE)
    return Corpus(folder)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, text):
    return write(tmp_path_factory.mktemp("corpus") / "c", text)


def test_blocks_are_the_text_cut_into_equal_parts_and_read_in_any_order_across_shards(corpus, text):
    assert len(corpus.manifest.splits["train"].shards) > 5
    for split, begin, blocks in (("train", 0, 51), ("validation", 51, 10)):
        assert corpus.num_blocks(split) == blocks
        order = np.append(np.random.default_rng(0).permutation(blocks), 0)
        tokens, starts = corpus.read(split, order)
        assert (tokens.dtype, starts.dtype) == (np.int32, np.uint8)
        part = slice(begin * BLOCK_LEN, (begin + blocks) * BLOCK_LEN)
        np.testing.assert_array_equal(tokens, text[0][part].reshape(blocks, BLOCK_LEN)[order])
        np.testing.assert_array_equal(starts, text[1][part].reshape(blocks, BLOCK_LEN)[order])


def test_unigram_counts_and_entropy_are_those_of_the_training_text(corpus, text):
    counts = np.bincount(text[0][: 51 * BLOCK_LEN], minlength=VOCAB_SIZE)
    np.testing.assert_array_equal(corpus.unigram_counts, counts)
    share = counts / counts.sum()
    entropy = -sum(p * math.log(p) for p in share if p)
    assert corpus.manifest.unigram_entropy == pytest.approx(entropy, abs=1e-12)


@pytest.mark.parametrize(("vocab_size", "dtype"), [(2**16, np.uint16), (2**16 + 1, np.uint32)])
def test_tfds_opens_the_folder(tmp_path, text, vocab_size, dtype):
    import tensorflow_datasets as tfds

    corpus = write(tmp_path / "c", text, vocab_size)
    source = tfds.builder_from_directory(corpus.folder).as_data_source()
    for split in ("train", "validation"):
        assert len(source[split]) == corpus.num_blocks(split)
        tokens, starts = corpus.read(split, np.array([4]))
        assert source[split][4]["tokens"].dtype == dtype
        np.testing.assert_array_equal(source[split][4]["tokens"], tokens[0])
        np.testing.assert_array_equal(source[split][4]["starts"], starts[0])


def test_a_folder_that_is_no_corpus_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"not a prepared corpus: it has no manifest\.json"):
        Corpus(tmp_path)


@pytest.fixture
def copied(corpus, tmp_path):
    """The folder of a corpus that may be damaged."""
    return shutil.copytree(corpus.folder, tmp_path / "c")


@pytest.mark.parametrize(
    "change",
    [
        "{",
        '{"format_version": 1}',
        {"splits": []},
        {"weights": [1.0, 0.5]},
        {"sources": []},
        {"record": {"block_len": 5000, "token_dtype": "<u2", "tokens_at": 0, "starts_at": 0, "num_bytes": 9}},
    ],
    ids=str,
)
def test_a_manifest_that_is_damaged_or_contradicts_itself_is_named(copied, change):
    file = copied / "manifest.json"
    file.write_text(change if isinstance(change, str) else json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(InputError, match=r"manifest\.json is damaged: .*; delete the folder and prepare"):
        Corpus(copied)


def test_missing_and_truncated_shards_are_named(copied):
    shard = next(copied.glob("corpus-train.array_record-00002-of-*"))
    content = shard.read_bytes()
    shard.write_bytes(content[:-100])
    with pytest.raises(InputError, match=f"{shard.name} is damaged: {len(content) - 100} bytes instead of"):
        Corpus(copied)
    shard.unlink()
    with pytest.raises(InputError, match=f"{shard.name} is missing"):
        Corpus(copied)


@pytest.mark.parametrize("content", [None, b"", b"\x93NUMPY"])
def test_damaged_counts_are_named(copied, content):
    file = copied / "unigram_counts.npy"
    file.unlink() if content is None else file.write_bytes(content)
    with pytest.raises(InputError, match=r"unigram_counts\.npy is (missing|damaged)"):
        _ = Corpus(copied).unigram_counts


def test_a_shard_in_the_place_of_another_of_its_size_is_found_by_check(corpus, copied):
    folder = copied
    first, second, *_ = (shard.name for shard in corpus.manifest.splits["train"].shards)
    shutil.copy(folder / first, folder / second)
    assert (folder / second).stat().st_size == (corpus.folder / second).stat().length
    with pytest.raises(InputError, match=rf"shard {second} was changed: its sha256 is \w{{64}} instead of \w{{64}}; d"):
        Corpus(folder).check()


def test_a_flipped_bit_of_a_shard_is_found_when_its_blocks_are_read(corpus, copied):
    shard = copied / corpus.manifest.splits["train"].shards[1].name
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    damaged = Corpus(copied)
    damaged.read("train", np.arange(8))
    with pytest.raises(InputError, match=f"the shard {shard.name} was changed: its sha256 is"):
        damaged.read("train", np.arange(8, 16))


def test_tokens_outside_the_vocabulary_that_the_manifest_names_are_refused(copied):
    manifest = json.loads((copied / "manifest.json").read_text())
    (copied / "manifest.json").write_text(json.dumps(manifest | {"vocab_size": 100}))
    with pytest.raises(InputError, match=r"train split cannot be read \(it has the token \d+, but only 100 pieces\)"):
        Corpus(copied).read("train", np.arange(51))
