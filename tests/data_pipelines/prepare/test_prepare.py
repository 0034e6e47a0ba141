import contextlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from etils import epath

from data_pipelines import sources
from data_pipelines.corpus import Corpus, Start
from data_pipelines.prepare import prepare
from data_pipelines.prepare.encoding import encode, load
from data_pipelines.prepare.parts import Part
from data_pipelines.prepare.runners import LocalRunner
from data_pipelines.tokenizer import EOD, Tokenizer
from xlnet_jax.errors import InputError

BLOCK_LEN = 64
TRAIN, VALIDATION = (sources.find([name]) for name in sources.embedded())


@pytest.fixture(scope="module")
def documents():
    """The first chapters of the embedded training text: lists of lines."""
    chapters: list[list[str]] = [[]]
    for line in sources.read_lines(TRAIN, "strict"):
        chapters[-1].append(line) if line else chapters.append([])
    return chapters[:40]


@pytest.fixture(scope="module")
def tokenizer(documents):
    return Tokenizer.train((line for chapter in documents for line in chapter), 500, "english")


@pytest.fixture
def run(tmp_path, tokenizer):
    """Prepare a text into a folder."""

    def run(train, validation=None, out="corpus", tokenizer=tokenizer, fraction=0.05, block_len=BLOCK_LEN):
        def files(documents, name):
            if isinstance(documents, list) and documents and isinstance(documents[0], list):
                (tmp_path / name).write_text("\n\n".join("\n".join(lines) for lines in documents))
                return sources.find([str(tmp_path / name)])
            return sources.find([str(documents)]) if isinstance(documents, Path) else documents

        return prepare(
            files(train, "train.txt"),
            files(validation, "validation.txt"),
            tokenizer,
            tmp_path / out,
            block_len=block_len,
            validation_fraction=fraction,
        )

    return run


def stream(corpus, split):
    """(tokens, starts) of a whole split."""
    tokens, starts = corpus.read(split, np.arange(corpus.num_blocks(split)))
    return tokens.ravel(), starts.ravel()


def document_texts(corpus, split, tokenizer):
    """Decode the split's documents, the last one as far as the blocks go."""
    tokens, starts = stream(corpus, split)
    return [tokenizer.decode(part) for part in np.split(tokens, np.flatnonzero(starts == Start.DOCUMENT)) if len(part)]


def test_the_stream_is_the_lines_in_order_with_an_eod_behind_each_document(run, documents, tokenizer):
    corpus = run(documents[:4], documents[4:6])
    for split, given in (("train", documents[:4]), ("validation", documents[4:6])):
        tokens, starts = [], []
        for lines in given:
            for i, ids in enumerate(tokenizer.encode_lines(lines)):
                begins = np.where(tokenizer.sentence_starts(ids), Start.SENTENCE, Start.NOTHING)
                begins[0] = Start.SENTENCE if i else Start.DOCUMENT
                tokens.append(ids)
                starts.append(begins)
            tokens.append(np.array([EOD]))
            starts.append(np.array([Start.NOTHING]))
        read_tokens, read_starts = stream(corpus, split)
        size = len(read_tokens)
        np.testing.assert_array_equal(read_tokens, np.concatenate(tokens)[:size])
        np.testing.assert_array_equal(read_starts, np.concatenate(starts)[:size])
        described = corpus.manifest.splits[split]
        assert described.tokens == sum(map(len, tokens))
        assert described.dropped_tokens == described.tokens - size < BLOCK_LEN
        assert (described.documents, described.lines) == (len(given), sum(map(len, given)))


def test_the_same_text_gives_the_same_bytes(run, documents):
    first, second = run(documents, out="one"), run(documents, out="two")
    files = sorted(p.name for p in first.folder.iterdir() if not p.is_dir())
    assert files == sorted(p.name for p in second.folder.iterdir() if not p.is_dir())
    for name in files:
        assert (first.folder / name).read_bytes() == (second.folder / name).read_bytes(), name


def test_how_much_text_is_encoded_at_once_does_not_matter(run, documents, monkeypatch):
    whole = run(documents, out="whole", fraction=0.2)
    monkeypatch.setattr("data_pipelines.readers.CHUNK_BYTES", 100)
    monkeypatch.setattr("data_pipelines.prepare.parts.PART_CHARS", 700)
    monkeypatch.setattr("data_pipelines.prepare.job.LocalRunner", lambda: LocalRunner(1))
    parts = run(documents, out="parts", fraction=0.2)
    assert whole.manifest.splits == parts.manifest.splits


def test_lines_that_normalisation_leaves_nothing_of_are_not_there(run, documents, tmp_path):
    nothing = "\u0301\u0302"
    plain = run(documents[:6], documents[6:8], out="plain")
    padded = [[nothing], *([nothing, *lines[:3], nothing, *lines[3:], nothing] for lines in documents[:6]), [nothing]]
    odd = run(padded, documents[6:8], out="odd")
    assert odd.manifest.splits == plain.manifest.splits


# ---- what is held out -----------------------------------------------------------------------------------------------


def test_about_the_asked_share_of_documents_is_held_out_and_none_is_in_both_splits(run, documents, tokenizer):
    # Each begins with its number in two words that the small vocabulary has.
    names = [f"{i:010b}".replace("0", "no ").replace("1", "so ") for i in range(1000)]
    short = [[name, *documents[i % 40][2:5]] for i, name in enumerate(names)]
    corpus = run(short, fraction=0.1)
    train, validation = corpus.manifest.splits["train"], corpus.manifest.splits["validation"]
    assert train.documents + validation.documents == len(short) == 1000
    assert 60 < validation.documents < 140  # 100 +- 4 standard deviations
    texts = [set(document_texts(corpus, split, tokenizer)[:-1]) for split in ("train", "validation")]
    assert not texts[0] & texts[1]


def test_of_few_documents_at_least_one_is_held_out_whole(run, documents):
    corpus = run(documents[:4], fraction=0.001)
    train, validation = corpus.manifest.splits["train"], corpus.manifest.splits["validation"]
    assert (train.documents, validation.documents) == (3, 1)
    assert validation.blocks >= 1


def test_more_documents_are_held_out_where_one_does_not_fill_a_block(run, documents):
    short = [[lines[-1][:60]] for lines in documents * 3]
    corpus = run(short, fraction=0.001)
    validation = corpus.manifest.splits["validation"]
    assert validation.blocks == 1
    assert 2 <= validation.documents < 20


def test_of_a_single_document_the_last_blocks_are_held_out(run, documents, tokenizer):
    lines = [line for chapter in documents[:10] for line in chapter]
    corpus = run([lines], fraction=0.1)
    train, validation = corpus.manifest.splits["train"], corpus.manifest.splits["validation"]
    assert validation.blocks == round(0.1 * (train.blocks + validation.blocks))
    assert (train.documents, validation.documents, train.dropped_tokens) == (1, 0, 0)
    joined = np.concatenate([stream(corpus, "train")[0], stream(corpus, "validation")[0]])
    expected = np.concatenate(tokenizer.encode_lines(lines))[: len(joined)]
    np.testing.assert_array_equal(joined, expected)


def test_a_document_that_is_most_of_the_text_is_not_held_out(run, documents):
    long = [line for chapter in documents[:10] for line in chapter]
    for order in ([long, documents[11][:1]], [documents[11][:1], long]):
        corpus = run(order, out=f"out{len(order[0])}", fraction=0.1)
        assert corpus.num_blocks("train") > 8 * corpus.num_blocks("validation") > 0


def test_the_smallest_text_has_one_block_on_either_side(run, tokenizer):
    # "the" is one token; with <eod> there are exactly two blocks.
    line = " ".join(["the"] * (2 * BLOCK_LEN - 1))
    corpus = run([[line]])
    assert (corpus.num_blocks("train"), corpus.num_blocks("validation")) == (1, 1)
    with pytest.raises(InputError, match=r"train\.txt has 127 tokens, but one block needs 64 for training and 64 for"):
        run([[line.removesuffix(" the")]], out="smaller")


# ---- texts of every kind --------------------------------------------------------------------------------------------


def test_chinese_text_comes_back_as_it_was_with_its_sentences(run):
    lines = [
        "春天来了，山上的花都开了。孩子们在河边放风筝，老人坐在树下喝茶。",
        "他问：“你明天来不来？”她说：“我一定来！”然后她笑了。",
        "火车慢慢地离开了车站。窗外是一片金黄的麦田，远处有几座小村庄。",
    ]
    tokenizer = Tokenizer.train(lines * 5, 87, "auto")
    corpus = run([lines] * 12, tokenizer=tokenizer, fraction=0.2, block_len=32)
    (first, *_) = document_texts(corpus, "train", tokenizer)
    # SentencePiece puts a space in front of a line.
    assert first == " ".join(tokenizer.decode(ids) for ids in tokenizer.encode_lines(lines))
    starts = stream(corpus, "train")[1]
    in_first = starts[: np.flatnonzero(starts == Start.DOCUMENT)[1]]
    assert np.count_nonzero(in_first) == 2 + 3 + 2


def test_line_ends_and_byte_order_marks_do_not_change_a_corpus(run, documents, tmp_path):
    text = "\n\n".join("\n".join(lines) for lines in documents[:5])
    (tmp_path / "unix.txt").write_bytes(text.encode())
    (tmp_path / "windows.txt").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    unix, windows = run(tmp_path / "unix.txt", out="unix"), run(tmp_path / "windows.txt", out="windows")
    assert unix.manifest.splits == windows.manifest.splits


@pytest.mark.parametrize("content", ["", "\n \n\r\n"])
def test_a_text_without_text_is_refused(run, tmp_path, content):
    (tmp_path / "blank.txt").write_text(content)
    with pytest.raises(InputError, match=r"blank\.txt: there is no text in it"):
        run(tmp_path / "blank.txt")


def test_a_split_with_text_of_its_own_needs_a_block(run, documents):
    with pytest.raises(InputError, match=r"validation text .*validation\.txt has \d+ tokens, but a block needs 64"):
        run(documents, [["Too short."]])
    with pytest.raises(InputError, match=r"train text .*train\.txt has \d+ tokens, .* lower `data\.windows_per_block`"):
        run([["Too short."]], documents)


# ---- complete or not at all -----------------------------------------------------------------------------------------


def test_a_corpus_that_is_there_is_opened_and_not_written_again(run, documents):
    first = run(documents)
    written = {p.name: p.stat().mtime for p in first.folder.iterdir()}
    assert run(documents).manifest == first.manifest
    assert {p.name: p.stat().mtime for p in first.folder.iterdir()} == written


def test_a_corpus_made_from_something_else_is_refused_and_the_difference_named(run, documents, tokenizer):
    run(documents)
    other_tokenizer = Tokenizer.train((line for chapter in documents for line in chapter), 600, "english")
    for arguments, difference in (
        ({"block_len": 32}, "the length of its blocks differs"),
        ({"fraction": 0.5}, "its share of held-out text differs"),
        ({"tokenizer": other_tokenizer}, "its tokenizer differs"),
        ({"validation": documents[:2]}, "its validation text differs, and its share of held-out text differs"),
    ):
        with pytest.raises(InputError, match=f"{difference}; give another `out` or `workdir`"):
            run(documents, **arguments)
    with pytest.raises(InputError, match="its training text differs"):
        run(documents[:20])


def test_a_folder_of_the_users_is_not_touched(run, documents, tmp_path):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="not a prepared corpus"):
        run(documents)
    assert (tmp_path / "corpus" / "thesis.tex").read_text() == "years of work"


# ---- stopped, and gone on with --------------------------------------------------------------------------------------


def test_a_text_that_is_bad_midway_leaves_no_corpus_and_what_was_encoded_is_kept(run, tmp_path, documents, monkeypatch):
    monkeypatch.setattr("data_pipelines.prepare.parts.PART_CHARS", 20_000)
    monkeypatch.setattr("data_pipelines.readers.CHUNK_BYTES", 5_000)
    good = "\n\n".join("\n".join(lines) for lines in documents).encode()
    bad = tmp_path / "bad.txt"
    bad.write_bytes(good + b"\n\xff")
    with pytest.raises(InputError, match=f"byte {len(good) + 1} is not UTF-8"):
        run(bad)
    assert not (tmp_path / "corpus").exists()
    kept = {file.name: file.stat().st_mtime_ns for file in tmp_path.glob(".corpus.partial/work/encoded-*/*.npz")}
    assert len(kept) > 5

    bad.write_bytes(good)
    encoded = []
    monkeypatch.setattr(
        "data_pipelines.prepare.encoding.encode", lambda part, _: encoded.append(part) or encode(part, _)
    )
    monkeypatch.setattr("data_pipelines.prepare.job.LocalRunner", lambda: LocalRunner(1))
    mended = run(bad)
    assert len(encoded) <= 2
    assert not (tmp_path / ".corpus.partial").exists()
    assert mended.manifest == run(bad, out="at-once").manifest


def test_a_text_without_any_good_line_leaves_nothing(run, tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"\xff")
    with pytest.raises(InputError, match="byte 0 is not UTF-8"):
        run(tmp_path / "bad.txt")
    assert [p.name for p in tmp_path.iterdir()] == ["bad.txt"]


def test_a_source_that_disappears_midway_is_named(run, tmp_path, documents):
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text("\n".join(documents[0]))
    found = sources.find([str(tmp_path / "*.txt")])
    (tmp_path / "b.txt").unlink()
    with pytest.raises(InputError, match=r"b\.txt: it was there when the text was listed, and is gone; bring it back"):
        run(found)


NOVELS_SCRIPT = """
from pathlib import Path
from data_pipelines import readers, sources
from data_pipelines.prepare import parts, prepare
from data_pipelines.tokenizer import Tokenizer
readers.CHUNK_BYTES, parts.PART_CHARS = 10_000, 30_000
def main():
    train, validation = (sources.find([name]) for name in sources.embedded())
    tokenizer = Tokenizer.load(Path({tokenizer!r}))
    try:
        prepare(train, validation, tokenizer, {out!r}, block_len=64, validation_fraction=0.05)
    except OSError as error:
        print("OSError", error.strerror)
"""


def script(tmp_path, tokenizer, begin=""):
    """Return a program that prepares the novels in many parts."""
    if not (tmp_path / "tokenizer").exists():
        tokenizer.save(tmp_path / "tokenizer")
    file = tmp_path / "script.py"
    text = NOVELS_SCRIPT.format(tokenizer=str(tmp_path / "tokenizer"), out=str(tmp_path / "corpus"))
    file.write_text(f"{text}\nif __name__ == '__main__':\n    {begin}\n    main()\n")
    return [sys.executable, str(file)]


def test_a_full_disk_is_an_oserror_and_the_next_run_goes_on(tmp_path, tokenizer):
    # A limit on the size of files stands in for the full disk: both reach the writers as a failing write.
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))"
    limited = subprocess.run(script(tmp_path, tokenizer, limit), capture_output=True, text=True, timeout=120)
    assert limited.stdout == "OSError File too large\n", limited.stderr
    assert not (tmp_path / "corpus").exists()
    subprocess.run(script(tmp_path, tokenizer), check=True, timeout=120)
    assert Corpus(tmp_path / "corpus").num_blocks("train") > 0


def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bytes(tmp_path, tokenizer):
    whole = prepare(TRAIN, VALIDATION, tokenizer, tmp_path / "whole", block_len=64, validation_fraction=0.05)
    encoded = tmp_path / ".corpus.partial" / "work" / f"encoded-{tokenizer.sha256[:16]}"
    for parts in (1, 8, 20):
        process = subprocess.Popen(script(tmp_path, tokenizer), stderr=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + 60
        try:
            while process.poll() is None and len(list(encoded.glob("*.npz"))) < parts:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    subprocess.run(script(tmp_path, tokenizer), check=True, timeout=120)
    ours, theirs = Corpus(tmp_path / "corpus"), whole
    assert ours.manifest.splits == theirs.manifest.splits
    assert not (tmp_path / ".corpus.partial").exists()


def test_the_embedded_novels_become_a_corpus(tmp_path, tokenizer):
    corpus = prepare(TRAIN, VALIDATION, tokenizer, tmp_path / "c", block_len=1086, validation_fraction=0.05)
    assert corpus.manifest.splits["train"].documents == 166
    assert corpus.manifest.splits["validation"].documents == 32
    tokens, starts = corpus.read("validation", np.array([0]))
    assert tokenizer.decode(tokens[0]).startswith("NORTHANGER ABBEY")
    assert starts[0, 0] == Start.DOCUMENT


@pytest.mark.parametrize("processes", [1, 2])
def test_progress_counts_what_is_finished(tmp_path, tokenizer, monkeypatch, processes):
    monkeypatch.setattr("data_pipelines.prepare.parts.PART_CHARS", 100_000)
    monkeypatch.setattr("data_pipelines.readers.CHUNK_BYTES", 20_000)
    seen = []
    runner = LocalRunner(processes, on_progress=seen.append)
    prepare(TRAIN, VALIDATION, tokenizer, tmp_path / "c", block_len=64, validation_fraction=0.05, runner=runner)
    first_pass = seen[: seen.index(max(seen)) + 1]
    assert first_pass == list(range(1, len(first_pass) + 1))
    assert len(first_pass) > 10


def test_a_part_that_stands_twice_in_a_text_can_be_saved_by_two_at_once(tmp_path, tokenizer):
    file = epath.Path(tmp_path) / "part.npz"
    part = encode(Part("One line.\n" * 2000, continues=False, ends=True), tokenizer)
    with ThreadPoolExecutor(4) as pool:
        for saved in [pool.submit(part.save, file) for _ in range(200)]:
            saved.result()
    (tokens,) = load(str(file), "tokens")
    np.testing.assert_array_equal(tokens, part.tokens)
    assert [path.name for path in tmp_path.iterdir()] == ["part.npz"]
