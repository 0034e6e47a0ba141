"""Documents are read as they were written, whatever the sizes of the pieces in which a file is read, cut and
encoded."""

from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_pipelines import sources
from data_pipelines.corpus import Start
from data_pipelines.prepare.encoding import TextPart, cut_parts, encode, groups_of
from tests.data_pipelines.test_bad_input import COMPRESS as BY_END

COMPRESS = {"": bytes, **{f".{end}": compress for end, compress in BY_END.items()}}
LINE_LIKE = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"  # what str.splitlines() treats as the end of a line


def fuzz(examples):
    return settings(
        max_examples=examples, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@contextmanager
def read_in_pieces(chunk_bytes, part_chars):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("data_pipelines.readers.CHUNK_BYTES", chunk_bytes)
        patch.setattr("data_pipelines.prepare.encoding.PART_CHARS", part_chars)
        yield


def documents_of_lines(lines):
    """Return the documents of `read_lines`, as lists of lines."""
    found = [[]]
    for line in lines:
        found[-1].append(line) if line != sources.DOCUMENT_END else found.append([])
    return found[:-1]


def documents_of_parts(parts):
    """Return the documents of `cut_parts`, as lists of lines."""
    found = []
    under_way = False
    for part in parts:
        assert part.continues == under_way
        *lines, behind = part.text.split("\n")
        assert behind == ""
        for line in map(str.strip, lines):
            if line:
                found[-1].append(line) if under_way else found.append([line])
            under_way = bool(line)
        assert under_way or part.ends
        under_way = not part.ends
    assert not under_way
    return found


characters = st.one_of(
    st.sampled_from(LINE_LIKE + " \t\ufeff\u200b\u3000\u0301"),
    st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"]),
    st.sampled_from("the quick brown 狐狸。"),
)
lines = st.text(characters, max_size=12).map(str.strip).filter(bool)
texts = st.lists(st.lists(lines, min_size=1, max_size=4), min_size=1, max_size=6)
blank = st.sampled_from(["\n", "\r\n", " \n", "\t\r\n", "\u3000\n", "\x0c\n", "\n\n\n"])
line_end = st.sampled_from(["\n", "\r\n", " \n", "\x1c\n"])


@st.composite
def written(draw):
    """Documents, and a text file that holds them."""
    documents = draw(texts)
    text = "".join(draw(st.lists(blank, max_size=3)))
    for document in documents:
        text += "".join(draw(st.sampled_from(["", "  ", "\u2028"])) + line + draw(line_end) for line in document)
        text += "".join(draw(st.lists(blank, min_size=1, max_size=3)))
    if draw(st.booleans()):
        text = text.rstrip()
    return documents, draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + text.encode()


@fuzz(100)
@given(
    text=written(),
    end=st.sampled_from(list(COMPRESS)),
    chunk_bytes=st.integers(4, 200),
    part_chars=st.integers(1, 200),
)
def test_documents_of_a_text_come_out_as_they_were_whatever_the_pieces(folder, text, end, chunk_bytes, part_chars):
    documents, content = text
    path = folder / f"whole.txt{end}"
    path.write_bytes(COMPRESS[end](content))
    found = sources.find([str(path)])
    with read_in_pieces(chunk_bytes, part_chars):
        # Of two byte order marks in a row, the second belongs to the text.
        assert documents_of_lines(sources.read_lines(found)) == documents
        (group,) = groups_of(*found)
        assert documents_of_parts(cut_parts(group)) == documents


def encoded(parts, tokenizer):
    """Return (tokens, starts, starts of lines, tokens of each document that has any) of consecutive parts."""
    tokens, starts, line_starts, documents = [], [], [], []
    for part in parts:
        one = encode(part, tokenizer)
        line_starts += (one["line_starts"] + len(tokens)).tolist()
        tokens += one["tokens"].tolist()
        starts += one["starts"].tolist()
        sizes = one["document_tokens"].tolist()
        if one["continues"]:
            documents[-1] += sizes.pop(0)
        documents += sizes
    return tokens, starts, line_starts, [size for size in documents if size]


@fuzz(60)
@given(text=written(), chunk_bytes=st.integers(4, 100), part_chars=st.integers(1, 100))
def test_parts_are_encoded_as_the_whole_is(folder, trained, text, chunk_bytes, part_chars):
    # If normalization dropped the whole first part of a document, the document would begin one part too late.
    documents = [["a", *lines] for lines in text[0]]
    path = folder / "encoded.txt"
    content = "\n\n".join("\n".join(lines) for lines in documents)
    path.write_bytes(content.encode())
    (group,) = groups_of(*sources.find([str(path)]))
    with read_in_pieces(chunk_bytes, part_chars):
        found = encoded(cut_parts(group), trained)
    assert found == encoded([TextPart(content, False, True)], trained)
    assert sum(found[3]) == len(found[0])
    assert np.count_nonzero(np.array(found[1]) == Start.DOCUMENT) == len(documents)
