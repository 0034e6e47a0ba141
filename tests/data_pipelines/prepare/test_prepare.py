from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from etils import epath

from data_pipelines import sources
from data_pipelines.corpus import Start
from data_pipelines.prepare import encoding
from data_pipelines.prepare.encoding import TextPart, cut_parts, encode, groups_of, load, save
from data_pipelines.prepare.runners import run_here
from data_pipelines.tokenizer import EOD, Tokenizer
from tests.data_pipelines import corpus_of
from xlnet_jax.errors import InputError

BLOCK_LEN = 64
TRAIN = sources.find(sources.embedded()[:1])


@pytest.fixture(scope="module")
def documents():
    """The first chapters of the embedded training text: lists of lines."""
    chapters: list[list[str]] = [[]]
    for line in sources.read_lines(TRAIN):
        chapters[-1].append(line) if line else chapters.append([])
    return chapters[:40]


@pytest.fixture
def run(tmp_path, trained):
    """Prepare a text into a folder."""

    def run(train, validation=None, out="corpus", tokenizer=trained, fraction=0.05, **options):
        for name, given in (("train.txt", train), ("validation.txt", validation or ())):
            (tmp_path / name).write_text("\n\n".join("\n".join(lines) for lines in given))
        names = [tmp_path / "validation.txt"] if validation else []
        return corpus_of(
            [tmp_path / "train.txt"], tokenizer, tmp_path / out, validation=names, fraction=fraction, **options
        )

    return run


def stream(corpus, split):
    """(tokens, starts) of a whole split."""
    tokens, starts = corpus.read(split, np.arange(corpus.num_blocks(split)))
    return tokens.ravel(), starts.ravel()


def test_the_stream_is_the_lines_in_order_with_an_eod_behind_each_document(run, documents, trained):
    corpus = run(documents[:4], documents[4:6])
    for split, given in (("train", documents[:4]), ("validation", documents[4:6])):
        tokens, starts = [], []
        for lines in given:
            for i, ids in enumerate(trained.encode_lines(lines)):
                begins = np.where(trained.tables.sentence_starts(ids), Start.SENTENCE, Start.NOTHING)
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


def test_how_much_text_is_encoded_at_once_and_in_how_many_processes_does_not_matter(run, documents, monkeypatch):
    whole = run(documents, out="whole", fraction=0.2)
    monkeypatch.setattr("data_pipelines.readers.CHUNK_BYTES", 100)
    monkeypatch.setattr("data_pipelines.prepare.encoding.PART_CHARS", 2_000)
    in_parts = run(documents, out="parts", fraction=0.2, runner=partial(run_here, processes=2))
    assert whole.manifest.splits == in_parts.manifest.splits


def test_lines_that_normalisation_leaves_nothing_of_are_not_there(run, documents, tmp_path):
    nothing = "\u0301\u0302"
    plain = run(documents[:6], documents[6:8], out="plain")
    padded = [[nothing], *([nothing, *lines[:3], nothing, *lines[3:], nothing] for lines in documents[:6]), [nothing]]
    odd = run(padded, documents[6:8], out="odd")
    assert odd.manifest.splits == plain.manifest.splits


def test_of_a_single_document_the_last_blocks_are_held_out(run, documents):
    corpus = run([[line for chapter in documents[:10] for line in chapter]], fraction=0.1)
    train, validation = corpus.manifest.splits["train"], corpus.manifest.splits["validation"]
    assert validation.blocks == round(0.1 * (train.blocks + validation.blocks))
    assert (train.documents, validation.documents, train.dropped_tokens) == (1, 0, 0)


def test_the_smallest_text_has_one_block_on_either_side(run):
    # "the" is one token; with <eod> there are exactly two blocks.
    line = " ".join(["the"] * (2 * BLOCK_LEN - 1))
    corpus = run([[line]])
    assert (corpus.num_blocks("train"), corpus.num_blocks("validation")) == (1, 1)
    with pytest.raises(InputError, match=r"has 127 tokens, but needs one block of 64 and another to hold out"):
        run([[line.removesuffix(" the")]], out="smaller")


def test_a_split_with_text_of_its_own_needs_a_block(run, documents):
    with pytest.raises(InputError, match=r"validation text .* has \d+ tokens, but needs one block of 64: give"):
        run(documents, [["Too short."]])
    with pytest.raises(InputError, match=r"train text .*train\.txt has \d+ tokens, .* lower `data\.windows_per_block`"):
        run([["Too short."]], documents)


def test_a_corpus_made_from_something_else_is_refused_and_the_difference_named(run, documents, trained):
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


def test_a_part_that_stands_twice_in_a_text_can_be_saved_by_two_at_once(tmp_path, trained):
    file = epath.Path(tmp_path) / "part.npz"
    part = encode(TextPart("One line.\n" * 2000, continues=False, ends=True), trained)
    with ThreadPoolExecutor(4) as pool:
        for saved in [pool.submit(save, part, file) for _ in range(60)]:
            saved.result()
    (tokens,) = load(str(file), "tokens")
    np.testing.assert_array_equal(tokens, part["tokens"])
    assert [path.name for path in tmp_path.iterdir()] == ["part.npz"]


@pytest.fixture
def parts_of(tmp_path):
    def parts_of(text):
        (tmp_path / "a.txt").write_text(text)
        (group,) = groups_of(*sources.find([str(tmp_path / "a.txt")]))
        return list(cut_parts(group))

    return parts_of


@pytest.mark.parametrize("begin", ["", "one\n"])
def test_blank_lines_for_more_than_a_part_are_no_document_and_part_two_of_them(parts_of, begin):
    cut = parts_of(begin + "\n" * (3 * encoding.PART_CHARS) + "two\n")
    words = [part.text.strip() for part in cut if part.text.strip()]
    assert words == [*begin.split(), "two"]
    assert not any(part.continues for part in cut if part.text.strip() == "two")
    assert cut[-1].ends
