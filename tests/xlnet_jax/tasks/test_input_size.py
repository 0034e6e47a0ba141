"""Memory and work of reading and encoding grow as the input, for one long text and for many."""

import json
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from tests.xlnet_jax.tasks.task_runs import json_lines
from xlnet_jax import tasks
from xlnet_jax.tasks.config import QuestionAnsweringConfig, RankingConfig, TaskDataConfig
from xlnet_jax.tasks.defaults import DEFAULTS, make_task
from xlnet_jax.tasks.question_answering import alignment

TEXT = "It is a truth universally acknowledged, that a single  man must be in want of a wife.\n"
LINEAR = 2.6  # from 2 to 4 times the input, against that from 1 to 2; 2 is linear, 4 is quadratic


def jsonl(row_of):
    def write(folder, texts, length):
        return json_lines(folder / "a.jsonl", (row_of(TEXT * length, i) for i in range(texts))), {}

    return write


def squad(folder, texts, length):
    asked = [{"id": "a", "question": "what", "answers": [{"text": "truth", "answer_start": 8}]}]
    paragraphs = [{"context": f"{TEXT * length}{i}", "qas": [asked[0] | {"id": str(i)}]} for i in range(texts)]
    (folder / "a.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return [str(folder / "a.json")], {}


def conll(folder, texts, length):
    sentence = "".join(f"{word} O\n" for word in (TEXT * length).split())
    (folder / "a.txt").write_text(f"{sentence}\n" * texts)
    return [str(folder / "a.txt")], {}


def collection(folder, texts, length):
    (folder / "documents.tsv").write_text(
        "".join(f"d{i}\t{' '.join((TEXT * length).split())} {i}\n" for i in range(texts))
    )
    (folder / "queries.tsv").write_text("".join(f"q{i}\twhat is {i}\n" for i in range(texts)))
    (folder / "qrels.txt").write_text("".join(f"q{i} 0 d{i} 1\n" for i in range(texts)))
    files = {name: (str(folder / f"{name}.tsv"),) for name in ("documents", "queries")}
    return [str(folder / "qrels.txt")], {"ranking": RankingConfig(**files, negatives=1)}


def judged(folder, texts, length):
    """Many relevant documents of one query."""
    names, changed = collection(folder, 3 * texts, length)
    (folder / "qrels.txt").write_text("".join(f"q0 0 d{i} 1\n" for i in range(texts)))
    return names, changed


TASKS = {
    "classification": jsonl(lambda text, i: {"text": f"{text}{i}", "label": "ab"[i % 2]}),
    "multilabel": jsonl(lambda text, i: {"text": f"{text}{i}", "label": [0, i % 2]}),
    "embedding": jsonl(lambda text, i: {"anchor": f"{text}{i}", "positive": f"{i}{text}"}),
    "squad": squad,
    "multiple_choice": jsonl(
        lambda text, i: {"context": f"{text}{i}", "question": text, "options": [text, "b"], "answer": "A"}
    ),
    "token_classification": conll,
    "ner": jsonl(lambda text, i: {"words": text.split(), "labels": ["O"] * len(text.split())}),
    "ranking": collection,
    "ranking of one query": judged,
}


def encode(task, folder, tokenizer, texts, length):
    folder.mkdir()
    names, changed = TASKS[task](folder, texts, length)
    config = replace(
        DEFAULTS[task.partition(" ")[0]](), data=TaskDataConfig(batch_size=32, seq_len=64, max_query_len=8),
        qa=QuestionAnsweringConfig(doc_stride=16), **changed,
    )  # fmt: skip

    def run():
        ours = make_task(config)
        examples = ours.read(names, "train")
        return len(ours.features(examples, tokenizer, ours.head(examples), training=True))

    return run


def peak(run):
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def lines(run, room=tasks):
    """Return the number of lines of the code in a room that run."""
    count, sources = 0, str(Path(room.__file__).parent)

    def trace(frame, event, _):
        nonlocal count
        if not frame.f_code.co_filename.startswith(sources):
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("grows", ["texts", "length"])
@pytest.mark.parametrize("task", TASKS)
def test_memory_and_work_grow_as_the_input(task, grows, english, tmp_path):
    encode(task, tmp_path / "warm", english, 4, 2)()
    found = []
    for size in (1, 2, 4):
        texts, length = (50 * size, 2) if grows == "texts" else (4, 30 * size)
        run = encode(task, tmp_path / str(size), english, texts, length)
        found.append((peak(run), lines(run)))
    for one, two, four in zip(*found, strict=True):
        assert four - two <= LINEAR * max(two - one, one / 2), found


def test_alignment_of_a_long_text_computes_with_numbers_of_a_fixed_size(monkeypatch):
    rows_of_block, most = alignment._rows_of_block, []

    def measured(*args):
        found = rows_of_block(*args)
        most.append(max(map(int.bit_length, found)))
        return found

    monkeypatch.setattr(alignment, "_rows_of_block", measured)
    sizes = {}
    for size in (200, 400):
        most.clear()
        text = TEXT * size
        assert alignment.align(text, [f"▁{word}" for word in text.replace(",", "").split()]) is not None
        sizes[size] = max(most)
    assert sizes[400] - sizes[200] <= 2 * 200 * 2 * 2  # twice the band, which is the difference of the lengths, twice
