"""Tokens and the characters that they stand for."""

import random

import numpy as np
import pytest

from data_pipelines.tokenizer import normalize
from xlnet_jax.tasks.question_answering import alignment
from xlnet_jax.tasks.question_answering.alignment import UNMATCHED, align, longest_common_subsequence


def by_table(a, b, band):
    """The definition: a table of lengths, 0 outside the band, and the way back that ends early in a, then in b."""
    table = np.zeros((len(a) + 1, len(b) + 1), int)
    for i in range(len(a)):
        for j in range(max(0, i - band), min(len(b), i + band)):
            table[i + 1, j + 1] = max(table[i, j + 1], table[i + 1, j], table[i, j] + (a[i] == b[j]))
    partners = np.full(len(a), UNMATCHED)
    i, j = len(a), len(b)
    while i and j:
        if table[i, j] == table[i - 1, j]:
            i -= 1
        elif table[i, j] == table[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            partners[i] = j
    return partners


@pytest.mark.parametrize("block_rows", [4096, 5])
def test_longest_common_subsequence_is_that_of_the_table(monkeypatch, block_rows):
    monkeypatch.setattr(alignment, "BLOCK_ROWS", block_rows)
    rng = random.Random(0)
    for _ in range(60):
        a = [rng.choice("abc ") for _ in range(rng.randrange(1, 30))]
        b = [rng.choice("abcd ") for _ in range(rng.randrange(1, 30))]
        band = abs(len(a) - len(b)) + rng.randrange(1, 8)
        np.testing.assert_array_equal(longest_common_subsequence(a, b, band), by_table(a, b, band))


def test_a_text_that_only_gains_a_space_is_aligned_as_any_other():
    rng = random.Random(1)
    for _ in range(50):
        text = "a" + "".join(rng.choice("aab ") for _ in range(12))
        alignment = align(text, ["▁", *text.replace(" ", "▁")])
        assert alignment.first_tokens.tolist() == by_table(text, " " + text, 6).tolist()


def test_any_white_space_stands_for_the_space_of_a_token():
    rng = random.Random(2)
    for _ in range(50):
        words = ["".join(rng.choice("abc") for _ in range(rng.randrange(1, 4))) for _ in range(8)]
        pieces = [f"▁{word}" for word in words]
        single = align(" ".join(words), pieces)
        gaps = [rng.choice([" ", "\n", "\n\n", "\t ", "\u3000"]) for _ in words]
        text = "".join(word + gap for word, gap in zip(words, gaps, strict=True))
        alignment = align(text, pieces)
        letters, of_single = ([i for i, c in enumerate(t) if not c.isspace()] for t in (text, " ".join(words)))
        assert alignment.first_tokens[letters].tolist() == single.first_tokens[of_single].tolist()
        assert alignment.last_tokens[letters].tolist() == single.last_tokens[of_single].tolist()
        shown = [text[s : e + 1].strip() for s, e in zip(alignment.starts, alignment.ends, strict=True)]
        assert shown == words


def english(character):
    return normalize(character, "english", remove_space=False)


def test_tokens_stand_for_the_characters_that_they_were_made_of():
    text = "He  said to her: ``ﬁne tea'' – to José"
    pieces = ["▁He", "▁said", "▁to", "▁her", ":", '▁"', "fi", "ne", "▁tea", '"', "▁–", "▁to", "▁Jo", "se"]
    alignment = align(list(map(english, text)), pieces)
    shown = [text[s : e + 1].strip() for s, e in zip(alignment.starts, alignment.ends, strict=True)]
    assert shown[:5] == ["He", "said", "to", "her", ":"]
    assert shown[5:8] == ["``ﬁ", "``ﬁ", "ne"]  # nothing says which of the characters without partners is whose
    assert shown[8:] == ["tea", "''", "–", "to", "Jo", "sé"]
    assert (alignment.first_tokens[text.index("José")], alignment.last_tokens[-1]) == (12, 13)
