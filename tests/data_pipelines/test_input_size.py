"""Memory and work of preparing a text grow as the text, in any form."""

import json
import random
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import data_pipelines
from tests.data_pipelines import corpus_of
from tests.xlnet_jax.tasks.test_input_size import LINEAR, lines, peak

WORDS = "the sea was calm at last and nobody knew why she smiled at him on a fine day".split()


def text_of(size, end="\n"):
    """Return so many lines of words, each with its end."""
    rng = random.Random(0)
    return "".join(" ".join(rng.choices(WORDS, k=5)).capitalize() + f".{end}" for _ in range(size))


def documents_of(size):
    """Return so many documents of three lines, no two alike."""
    return [text_of(3).replace("\n", f" {i}\n") for i in range(size)]


def objects_of(size):
    """Return so many JSON lines, of which one in 30 has no text."""
    fields = ["body" if i % 30 == 1 else "text" for i in range(size)]
    return "".join(json.dumps({f: text}) + "\n" for f, text in zip(fields, documents_of(size), strict=True))


def written(name, make):
    """Return a function that writes make(size) into a file of this name in a folder, and returns the file."""

    def write(folder, size):
        if name.endswith(".parquet"):
            pq.write_table(pa.table({"text": make(size)}), folder / name)
        else:
            (folder / name).write_text(make(size))
        return folder / name

    return write


def write_files(folder, size):
    for i, document in enumerate(documents_of(size)):
        (folder / f"{i}.txt").write_text(document)
    return folder


FORMS = {
    "documents": (written("a.txt", lambda size: "\n".join(documents_of(size))), 120),
    "one document": (written("a.txt", text_of), 600),
    "one line": (written("a.txt", lambda size: text_of(size, " ")), 600),
    "blank lines": (written("a.txt", lambda size: "\n" * size + text_of(300)), 20_000),
    "files": (write_files, 40),
    "JSON Lines with faults": (written("a.jsonl", objects_of), 120),
    "JSON Lines, one text": (written("a.jsonl", lambda size: json.dumps({"text": text_of(size)}) + "\n"), 600),
    "Parquet, one text": (written("a.parquet", lambda size: [text_of(size)]), 600),
}


@pytest.mark.parametrize("form", FORMS)
def test_memory_and_work_grow_as_the_text(form, trained, tmp_path):
    write, size = FORMS[form]
    found = []
    for factor in (1, 1, 2, 4):  # the first one imports
        folder = tmp_path / f"{len(found)}"
        (folder / "text").mkdir(parents=True)
        file = write(folder / "text", factor * size)
        run = partial(corpus_of, [file], trained, block_len=48)
        found.append([peak(partial(run, folder / "a")), lines(partial(run, folder / "b"), data_pipelines)])
    for _, one, two, four in zip(*found, strict=True):
        assert four - two <= LINEAR * max(two - one, one / 2), found
