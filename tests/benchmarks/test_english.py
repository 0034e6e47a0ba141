"""Text that the English network of the eight tasks reads."""

from benchmarks.english import documents_of, whole


def test_phrases_of_a_sentence_are_left_out():
    sentence = " ".join(f"word{n}" for n in range(20))
    phrase = " ".join(f"word{n}" for n in range(3, 17))
    other = " ".join(f"other{n}" for n in range(12))
    assert whole([phrase, sentence, "too short", other, sentence]) == [sentence, other]


def test_every_line_of_the_tasks_is_read_once():
    texts = [[f"{task} {n} and some words more" for n in range(40)] for task in "abc"]
    lines = sorted(line for text in texts for line in text)
    documents = documents_of(texts)
    assert sorted(line for document in documents["tasks"] for line in document.split("\n")) == lines
