"""Any bytes in a file give documents, or one InputError that names the file."""

import io
import json
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_pipelines import sources
from data_pipelines.corpus import Start
from data_pipelines.prepare.encoding import Part, cut_parts, encode, groups_of
from data_pipelines.tokenizer import Tokenizer
from tests.data_pipelines.test_bad_input import COMPRESS as BY_END
from xlnet_jax.errors import InputError

COMPRESS = {"": bytes, **{f".{end}": compress for end, compress in BY_END.items()}}
LINE_LIKE = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"  # what str.splitlines() takes for the end of a line


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
    """Read the documents with `read_lines`, as lists of lines."""
    found = [[]]
    for line in lines:
        found[-1].append(line) if line != sources.DOCUMENT_END else found.append([])
    return found[:-1]


def documents_of_parts(parts):
    """Read the documents with `cut_parts`, as lists of lines."""
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


def read_both_ways(path, errors="strict"):
    """Return the documents of a file, or the message of its InputError."""
    source = sources.find([str(path)])
    read = {}
    for name, documents in {
        "lines": lambda: documents_of_lines(sources.read_lines(source, errors)),
        "parts": lambda: documents_of_parts(part for group in groups_of(source, errors) for part in cut_parts(group)),
    }.items():
        try:
            read[name] = documents()
        except InputError as error:
            read[name] = str(error)
            assert str(path) in read[name]
            assert "\n" not in read[name].replace(str(path), "")
            assert len(read[name]) < 600
    if not read["parts"]:
        assert "there is no text in it" in read["lines"]
    else:
        assert read["lines"] == read["parts"]
    return read["parts"]


characters = st.one_of(
    st.sampled_from(LINE_LIKE + " \t\r\0\ufeff\u200b\u3000\u0301"),
    st.characters(exclude_characters="\n", exclude_categories=["Cs"]),
    st.sampled_from("the quick brown 狐狸。"),
)
words = st.text(characters, max_size=12)
noise = st.one_of(
    st.binary(max_size=40),
    words.map(str.encode),
    st.sampled_from(
        [b"\n", b"\r\n", b"\r", b"\0", b"\xef\xbb\xbf", b"\xff\xfe", b"\xed\xa0\x80", b"\xc3", b"\xe2\x80\xa8", b" \n"]
    ),
)
noisy_text = st.lists(noise, max_size=12).map(b"".join)

numbers = st.one_of(st.integers(), st.floats(), st.integers(4000, 5000).map("9".__mul__))
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, words),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)
json_line = st.one_of(
    json_values.map(lambda value: json.dumps({"text": value}).encode()),
    json_values.map(lambda value: json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass")),
    st.sampled_from([b'{"text": "\\ud83d"}', b'{"text": 1e999}', b'{"text": "a", "text": "b\\n\\n \\r\\n\\nc"}']),
    st.integers(1, 3000).map(lambda depth: b'{"text": ' + b"[" * depth + b"]" * depth + b"}"),
    noise,
)
json_lines = st.lists(json_line, max_size=6).map(b"\n".join)


def table(values, kind=None):
    file = io.BytesIO()
    pq.write_table(pa.table({"text": pa.array(values, kind)}), file, row_group_size=3)
    return file.getvalue()


tables = st.one_of(
    st.lists(st.none() | words, max_size=8).map(lambda texts: table(texts, kind=pa.string())),
    st.lists(st.binary(max_size=9), max_size=4).map(lambda texts: table(texts, kind=pa.large_binary())),
    st.lists(st.integers(0, 9), max_size=4).map(lambda numbers: table(numbers, kind=pa.int32())),
)


@st.composite
def damaged(draw, contents):
    """Draw the bytes unchanged, cut short, or altered at one place."""
    content = draw(contents)
    place = draw(st.integers(0, len(content)))
    how = draw(st.sampled_from(["whole", "cut", "altered", "longer"]))
    if how == "cut":
        return content[:place]
    if how == "altered":
        new = draw(st.binary(min_size=1, max_size=4))
        return content[:place] + new + content[place + len(new) :]
    return content + draw(st.binary(min_size=1, max_size=8)) if how == "longer" else content


plain = {".txt": noisy_text, ".jsonl": json_lines}
anything = st.one_of(
    *(
        st.tuples(st.just(kind + end), damaged(contents.map(COMPRESS[end])))
        for kind, contents in plain.items()
        for end in COMPRESS
    ),
    st.tuples(st.just(".parquet"), damaged(tables)),
    st.tuples(st.sampled_from([".parquet", ".gz", ".xz", ".zst", ".bz2"]), noisy_text),
)


@fuzz(400)
@given(file=anything, chunk_bytes=st.integers(4, 64), part_chars=st.integers(1, 64))
def test_any_bytes_are_documents_or_one_error_that_names_the_file(folder, file, chunk_bytes, part_chars):
    end, content = file
    path = folder / f"any{end}"
    path.write_bytes(content)
    with read_in_pieces(chunk_bytes, part_chars):
        read_both_ways(path)
        forgiving = read_both_ways(path, "replace")
    if isinstance(forgiving, str):
        assert "is not UTF-8" not in forgiving
        assert "half a character" not in forgiving


lines = words.map(lambda text: text.replace("\0", "").replace("\r", "").strip()).filter(bool)
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


@fuzz(150)
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
    with read_in_pieces(chunk_bytes, part_chars):
        # Two byte order marks in a row: only the first is none of the text.
        assert read_both_ways(path) == documents


@pytest.fixture(scope="module")
def tokenizer():
    (source,) = sources.find(sources.embedded()[:1])
    head = [line for _, line in zip(range(400), sources.read_lines([source], "strict"), strict=False)]
    return Tokenizer.train(head, 300, "english")


def encoded(parts, tokenizer):
    """(tokens, starts, tokens of each document, starts of lines) of parts that follow each other."""
    tokens, starts, documents, line_starts = [], [], [], []
    for part in parts:
        one = encode(part, tokenizer)
        line_starts += (one["line_starts"] + len(tokens)).tolist()
        tokens += one["tokens"].tolist()
        starts += one["starts"].tolist()
        sizes = one["document_tokens"].tolist()
        if one["continues"]:
            documents[-1] += sizes.pop(0)
        documents += sizes
    return tokens, starts, documents, line_starts


@fuzz(100)
@given(text=written(), chunk_bytes=st.integers(4, 100), part_chars=st.integers(1, 100))
def test_parts_are_encoded_as_the_whole_is(folder, tokenizer, text, chunk_bytes, part_chars):
    # A document whose first part is nothing but what normalisation drops would begin a part too late.
    documents = [["a", *lines] for lines in text[0]]
    path = folder / "encoded.txt"
    content = "\n\n".join("\n".join(lines) for lines in documents)
    path.write_bytes(content.encode())
    (group,) = groups_of(sources.find([str(path)]), "strict")
    with read_in_pieces(chunk_bytes, part_chars):
        tokens, starts, sizes, line_starts = encoded(cut_parts(group), tokenizer)
    whole = encoded([Part(content, False, True)], tokenizer)
    assert (tokens, starts, line_starts) == (whole[0], whole[1], whole[3])
    assert [size for size in sizes if size] == [size for size in whole[2] if size]
    assert sum(sizes) == len(tokens)
    assert np.count_nonzero(np.array(starts) == Start.DOCUMENT) == len(documents)
