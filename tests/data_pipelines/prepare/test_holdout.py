"""Text is held out by its content: equal documents are in the same split, wherever they are and however the text
grows."""

import itertools
import random
import shutil
from functools import partial

import numpy as np
import pytest

from data_pipelines.corpus import Start
from data_pipelines.prepare.holdout import DOCUMENT, choose, holds_out, line_hashes
from data_pipelines.prepare.runners import run_here
from data_pipelines.tokenizer import Tokenizer
from tests.data_pipelines import corpus_of
from xlnet_jax.errors import InputError

BLOCK_LEN = 32
WORDS = "the sea was calm and they went out to see a hill by the road where nobody had been for many years".split()


def documents_of(hashes, tokens):
    documents = np.zeros(len(hashes), DOCUMENT)
    documents["hash"], documents["tokens"] = hashes, tokens
    return documents


def made_up(number, lines):
    """Return a document, a different one for each number."""
    draw = random.Random(number)
    return "\n".join(" ".join(draw.choices(WORDS, k=9)) for _ in range(lines))


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train((line for i in range(300) for line in made_up(i, 3).split("\n")), 50, "english")


@pytest.fixture
def sides(tmp_path, tokenizer, capsys):
    """Prepare files of documents, and return {document: the splits whose blocks hold all of it}."""

    def sides(*files, fraction=0.1, processes=1):
        folder = tmp_path / "work"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for number, documents in enumerate(files):
            (folder / f"{number}.txt").write_text("\n\n".join(documents))
        names = [folder / f"{number}.txt" for number in range(len(files))]
        runner = partial(run_here, processes=processes)
        corpus = corpus_of(names, tokenizer, folder / "corpus", block_len=BLOCK_LEN, fraction=fraction, runner=runner)
        assert capsys.readouterr().err == ""
        every = {document: as_tokens(document, tokenizer) for documents in files for document in documents}
        texts = {split: ends_of_documents(corpus, split) for split in ("train", "validation")}
        return {name: {s for s, text in texts.items() if tokens in text} for name, tokens in every.items()}

    return sides


def as_tokens(document, tokenizer):
    return tuple(np.concatenate(tokenizer.encode_lines(document.split("\n"))).tolist())


def ends_of_documents(corpus, split):
    """Return the documents of a split that lie in its blocks whole, as tuples of tokens without <eod>."""
    found, tokens, starts = set(), [], []
    blocks = iter(np.cumsum([0, *corpus.manifest.splits[split].source_blocks]).tolist())
    begin = next(blocks)
    for end in blocks:  # of each source
        tokens, starts = corpus.read(split, np.arange(begin, end))
        begins = np.flatnonzero(starts.ravel() == Start.DOCUMENT)
        for first, last in itertools.pairwise(begins):
            found.add(tuple(tokens.ravel()[first : last - 1].tolist()))
        begin = end
    return found


def test_equal_documents_are_on_one_side_for_any_order_parts_and_workers(sides, monkeypatch):
    documents = [made_up(i, 30 if i % 8 == 0 else 1 + i % 5) for i in range(160)]
    known = {document: set() for document in documents}
    for trial in range(3):
        draw = random.Random(trial)
        text = documents + draw.sample(documents, 60)
        draw.shuffle(text)
        monkeypatch.setattr("data_pipelines.prepare.encoding.PART_CHARS", (300, 2**22, 2_000)[trial])
        monkeypatch.setattr("data_pipelines.prepare.encoding.GROUP_BYTES", (2**26, 1, 2**26)[trial])
        monkeypatch.setattr("data_pipelines.readers.CHUNK_BYTES", (50, 2**20, 500)[trial])
        files = [text] if trial == 1 else [text[:110], text[110:]]
        found = sides(*files, fraction=0.2, processes=1 + (trial == 2))
        for document, splits in found.items():
            known[document] |= splits
        assert sum(not splits for splits in found.values()) <= 2 * len(files), "documents are cut"
    assert all(len(splits) == 1 for splits in known.values())
    assert 12 < sum(splits == {"validation"} for splits in known.values()) < 52  # 32 +- 4 standard deviations


def test_a_document_in_front_and_text_that_grows_move_no_other_document(sides):
    documents = [made_up(i, 3) for i in range(300)]
    before = sides(documents)
    for grown in (
        ["A new one.", *documents],
        documents + [made_up(i, 3) for i in range(300, 900)],
        documents[100:] + documents[:100],
    ):
        after = sides(grown)
        moved = [d for d in documents if before[d] and after[d] and before[d] != after[d]]
        assert not moved
        assert sum(after[d] == {"validation"} for d in documents) > 10


def test_a_document_in_two_sources_is_on_one_side_even_where_one_source_is_small(sides):
    # A source this small holds out more documents than its share.
    small, large = ([made_up(i, 3) for i in numbers] for numbers in (range(8), range(100, 500)))
    for files in ((small, small + large), (small + large, small)):
        found = sides(*files, fraction=0.01)
        assert all(len(splits) <= 1 for splits in found.values())
        assert any(found[document] == {"validation"} for document in small)


def test_a_document_is_known_by_its_letters_and_digits():
    same = line_hashes(["Ein Café, 1 Mal", "ein  cafe 1 mal!", "EIN\u00a0CAFE\u0301 1 MAL"])
    assert len(set(same.tolist())) == 1
    others = ["Ein Café, 2 Mal", "春天来了", "春天來了", "…", "!", "한국", "한굴"]
    assert len({*line_hashes(others).tolist(), int(same[0])}) == len(others) + 1
    assert line_hashes([]).shape == (0,)
    assert line_hashes(["a"]).tolist() == [3405396810240292928]  # the same on every machine, forever


def test_every_source_gives_a_block_and_keeps_one_by_one_rule_if_whole_documents_fit():
    rng = np.random.default_rng(0)
    kinds = set()
    for trial in range(1000):
        texts = []
        while len(texts) < rng.integers(1, 4):
            hashes = rng.choice(np.arange(1, 12, dtype=np.uint64) * np.uint64(2**60), int(rng.integers(1, 12)))
            tokens = rng.choice([1, 5, 30, 200], 12)[(hashes >> np.uint64(60)).astype(int)]  # equal ones are as long
            if tokens.sum() >= 20:
                texts.append(documents_of(hashes, tokens))
        rules = choose(texts, share := (0.05, 0.3)[trial % 2], 10)
        whole = [rule for rule in rules if not isinstance(rule, int)]
        assert all(rule is whole[0] for rule in whole)
        for text, rule in zip(texts, rules, strict=True):
            by_document, total = not isinstance(rule, int), int(text["tokens"].sum())
            is_held_out = holds_out(text["hash"], share, rule if by_document else {})
            held_out = int(text["tokens"][is_held_out].sum()) if by_document else total - rule
            assert 10 <= held_out <= total - 10
            if not by_document and len(texts) == 1:  # no document fits, or too few of them for a block
                sizes = np.bincount(np.unique(text["hash"], return_inverse=True)[1], text["tokens"])
                assert sizes[sizes <= total // 2 - 10].sum() < 10
            kinds.add((by_document, by_document and bool(rule)))
    assert {(True, True), (False, False)} <= kinds


def test_another_document_never_moves_one_from_training_to_the_held_out_ones_of_a_small_text():
    rng = np.random.default_rng(1)
    for _ in range(100):
        hashes = rng.integers(2**60, 2**64, 40, np.uint64)
        text = documents_of(hashes, rng.integers(3, 9, 40))
        held = None
        for size in range(12, 40):
            (rule,) = choose([text[:size]], 0.01, 10)
            now = holds_out(hashes[:size], 0.01, rule)
            assert held is None or not (now[: len(held)] & ~held).any()
            held = now


@pytest.fixture
def texts(tmp_path, monkeypatch, capsys):
    """Folder to work in, with a text, a link to it, a copy with other line ends, and another text."""
    monkeypatch.chdir(tmp_path)
    text = "\n\n".join(made_up(i, 3) for i in range(60)) + "\n"
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "link.txt").symlink_to("a.txt")
    (tmp_path / "copy.txt").write_text(text.replace("\n", "\r\n"), newline="")
    (tmp_path / "b.txt").write_text("\n\n".join(made_up(i, 3) for i in range(100, 160)))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inside.txt").symlink_to("../a.txt")
    return tmp_path


def given(tokenizer, train, validation=()):
    return corpus_of(train, tokenizer, "corpus", validation=validation, block_len=BLOCK_LEN, fraction=0.1)


@pytest.mark.parametrize(
    ("train", "validation", "message"),
    [
        (["a.txt", "./a.txt"], [], r"text \./a\.txt: a\.txt is also in text a\.txt; remove it from one of them"),
        (["a.txt", "link.txt"], [], r"text link\.txt: link\.txt is also in text a\.txt; remove it"),
        (["b.txt", "folder"], ["a.txt"], r"text a\.txt: a\.txt is also in text folder; remove it"),
        (["a.txt", "b.txt", "copy.txt"], [], r"text copy\.txt is the same text as a\.txt; remove one of them"),
        (["a.txt"], ["copy.txt"], r"text copy\.txt is the same text as a\.txt; remove one of them"),
    ],
)
def test_text_that_is_given_twice_is_refused(texts, tokenizer, train, validation, message):
    with pytest.raises(InputError, match=message):
        given(tokenizer, train, validation)
    assert not (texts / "corpus").exists()


def test_copies_of_training_text_in_a_validation_text_are_counted(texts, tokenizer, capsys):
    copied = (texts / "a.txt").read_text().split("\n\n")[:3]
    (texts / "v.txt").write_text("\n\n".join([*copied, *(made_up(i, 3) for i in range(200, 210))]))
    given(tokenizer, ["a.txt", "b.txt"], ["v.txt"])
    assert capsys.readouterr().err == "note: validation text v.txt: the training text contains 3 of its 13 documents\n"
    (texts / "v.txt").write_text("\n\n".join(reversed(copied)))
    shutil.rmtree(texts / "corpus")
    with pytest.raises(InputError, match=r"validation text v\.txt: the training text contains all of its documents"):
        given(tokenizer, ["a.txt", "b.txt"], ["v.txt"])
