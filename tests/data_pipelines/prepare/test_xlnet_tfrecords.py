"""A corpus made from the original's records holds the text of those records."""

import json

import numpy as np
import pytest

from data_pipelines.corpus import Start
from data_pipelines.prepare.holdout import line_hashes
from data_pipelines.prepare.xlnet_tfrecords import prepare_records
from data_pipelines.tokenizer import CLS, EOD, EOP, SEP, Tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.storage.quiet_tensorflow import tensorflow

SEQ_LEN, REUSE_LEN, BATCHES = 24, 8, 12
SENTENCES = ["It was a fine day. They went out.", "Nobody knew why; nobody asked!", "The sea was calm (at last)."]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(SENTENCES * 20, 45, "english")


def row_texts(tokenizer, rows, seed):
    """Draw random tokens, with an <eod> now and then and at the end: int32 [rows, tokens]."""
    rng = np.random.default_rng(seed)
    text = rng.integers(9, tokenizer.vocab_size, (rows, BATCHES * REUSE_LEN + SEQ_LEN)).astype(np.int32)
    text[rng.random(text.shape) < 0.03] = EOD
    text[rng.random(text.shape) < 0.03] = EOP
    text[-1, BATCHES * REUSE_LEN + 4 + (BATCHES - 1) * REUSE_LEN % 4] = EOD
    return text


def window(row, begin):
    """Build a window of the original's form: reused part, A, <sep>, B, <sep>, <cls>."""
    a_len = 5 + begin % 4
    b_len = SEQ_LEN - REUSE_LEN - 3 - a_len
    a = row[begin + REUSE_LEN : begin + REUSE_LEN + a_len]
    return np.concatenate([row[begin : begin + REUSE_LEN], a, [SEP], row[:b_len], [SEP, CLS]])


def write_records(folder, texts, name, backwards):
    tf = tensorflow()
    file = f"{name}.tfrecords"
    with tf.io.TFRecordWriter(str(folder / file)) as writer:
        for begin in range(0, BATCHES * REUSE_LEN, REUSE_LEN):
            cores = np.split(texts, 2)
            batch = [r for core in cores for r in ([*core, *core[:, ::-1]] if backwards else core)]
            for row in batch:
                feature = {
                    key: tf.train.Feature(int64_list=tf.train.Int64List(value=values))
                    for key, values in (("input", window(row, begin)), ("label", [1]))
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())
    (folder / f"record_info-{name}.json").write_text(json.dumps({"filenames": [file], "num_batch": BATCHES}))


def write_folder(folder, tokenizer, backwards):
    """Write the records of two tasks in two passes, and return the texts of the first pass's forward rows."""
    folder.mkdir()
    texts = [row_texts(tokenizer, 4, task) for task in range(2)]
    for task in range(2):
        for number in range(2):
            name = (
                f"train-{task}-{number}.bsz-8.seqlen-{SEQ_LEN}.reuse-{REUSE_LEN}.{'bi' if backwards else 'uni'}.fnp-4"
            )
            write_records(folder, texts[task] if number == 0 else texts[task][::-1], name, backwards)
    info = {
        "vocab_size": tokenizer.vocab_size, "bsz_per_host": 8 if backwards else 4, "num_core_per_host": 2,
        "seq_len": SEQ_LEN, "reuse_len": REUSE_LEN, "bi_data": backwards, "sp_path": "spiece.model",
    }  # fmt: skip
    (folder / "corpus_info.json").write_text(json.dumps(info))
    last = (BATCHES - 1) * REUSE_LEN
    kept = BATCHES * REUSE_LEN + 5 + last % 4
    return np.concatenate([text[:, :kept].ravel() for text in texts])


def assert_holds(corpus, text, tokenizer):
    """Assert that the corpus holds the documents in order, with those of the lowest hashes in the validation split."""
    documents = np.split(text, np.flatnonzero(text == EOD) + 1)
    documents = documents if len(documents[-1]) else documents[:-1]
    if len(documents) == 1:  # its last blocks are held out
        tokens = [
            corpus.read(split, np.arange(corpus.num_blocks(split)))[0].ravel() for split in ("train", "validation")
        ]
        joined = np.concatenate(tokens)
        assert len(text) - len(joined) < corpus.block_len
        np.testing.assert_array_equal(joined, text[: len(joined)])
        return
    held_out = np.zeros(len(documents), bool)
    hashes = line_hashes([tokenizer.decode(document) for document in documents])
    held_out[np.argsort(hashes)[: corpus.manifest.splits["validation"].documents]] = True
    for split, wanted in (("train", ~held_out), ("validation", held_out)):
        expected = np.concatenate([d for d, w in zip(documents, wanted, strict=True) if w])
        tokens, starts = (a.ravel() for a in corpus.read(split, np.arange(corpus.num_blocks(split))))
        np.testing.assert_array_equal(tokens, expected[: len(tokens)])
        assert corpus.manifest.splits[split].dropped_tokens == len(expected) - len(tokens) < corpus.block_len
        assert starts[0] == Start.DOCUMENT
        assert (starts[1:][tokens[:-1] == EOD] == Start.DOCUMENT).all()
        assert (starts[1:][tokens[:-1] == EOP] > 0).all()


@pytest.mark.parametrize("backwards", [True, False])
def test_a_corpus_has_the_text_of_the_forward_rows_of_the_first_pass(tmp_path, tokenizer, backwards):
    text = write_folder(tmp_path / "records", tokenizer, backwards)
    corpus = prepare_records(tmp_path / "records", tokenizer, tmp_path / "c", block_len=16, validation_fraction=0.2)
    assert_holds(corpus, text, tokenizer)


def test_the_originals_records_give_the_text_they_were_made_from(reference, tmp_path):
    folder = reference / "data" / "records_small_bi_2core"
    theirs = np.load(reference / "data" / "records_small_bi_2core.npz")
    stream, windows = theirs["stream/input_data"], theirs["records/input"].reshape(-1, 8, 64)
    tokenizer = Tokenizer.load(reference / "data" / "spiece.model")
    corpus = prepare_records(folder, tokenizer, tmp_path / "c", block_len=32, validation_fraction=0.1)
    row_len, forward_rows = len(stream) // 4, (0, 1, 4, 5)
    kept = [32 * len(windows) + int((windows[-1, row, 32:] == SEP).argmax()) for row in forward_rows]
    assert_holds(corpus, np.concatenate([stream[i * row_len :][:size] for i, size in enumerate(kept)]), tokenizer)


def test_it_is_opened_where_it_is_there_and_refused_where_the_records_are_others(tmp_path, tokenizer):
    write_folder(tmp_path / "records", tokenizer, True)

    def prepare():
        return prepare_records(tmp_path / "records", tokenizer, tmp_path / "c", block_len=16, validation_fraction=0.2)

    assert prepare().manifest == prepare().manifest
    file = min((tmp_path / "records").glob("*.tfrecords"))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InputError, match="its training text differs"):
        prepare()


def test_a_record_that_is_no_example_is_refused(tmp_path, tokenizer):
    write_folder(tmp_path / "records", tokenizer, False)
    file = min((tmp_path / "records").glob("*.tfrecords"))
    with tensorflow().io.TFRecordWriter(str(file)) as writer:
        for _ in range(BATCHES * 4):
            writer.write(b"\xff\xfe\n\xff")
    with pytest.raises(InputError, match=r"\.tfrecords: it cannot be read"):
        prepare_records(tmp_path / "records", tokenizer, tmp_path / "c", block_len=16, validation_fraction=0.2)


def test_what_is_no_folder_of_records_is_refused(tmp_path, tokenizer):
    def prepare(tokenizer=tokenizer):
        prepare_records(tmp_path / "records", tokenizer, tmp_path / "c", block_len=16, validation_fraction=0.2)

    (tmp_path / "records").mkdir()
    with pytest.raises(
        InputError, match=r"records: no corpus_info\.json in it; name the folder that data_utils\.py wrote"
    ):
        prepare()
    (tmp_path / "records").rmdir()
    write_folder(tmp_path / "records", tokenizer, False)
    with pytest.raises(InputError, match=r"it has the id 44, and the tokenizer has 42 pieces: name the one"):
        prepare(Tokenizer.train(SENTENCES * 20, 42, "english"))
    file = min((tmp_path / "records").glob("*.tfrecords"))
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2 - 1])
    with pytest.raises(InputError, match=r"\.tfrecords: it cannot be read \(.*truncated record"):
        prepare()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"it holds 6 batches of 4 windows, and its record_info names 12"):
        prepare()
    file.unlink()
    with pytest.raises(InputError, match=r"\.tfrecords: it is missing, and its record_info names it"):
        prepare()
    (tmp_path / "records" / "corpus_info.json").write_text("{}")
    with pytest.raises(
        InputError,
        match=r"corpus_info\.json is damaged: .*missing.* vocab_size; give the settings that the original wrote",
    ):
        prepare()
    assert not (tmp_path / "c").exists()
