"""A literal <unk> in a text, as in WikiText-103."""

from data_pipelines.tokenizer import UNK, Tokenizer


def test_it_is_the_unknown_word_where_tokens_are_words_and_spelled_elsewhere():
    lines = ["the <unk> dog saw the cat", "a <unk> cat ran to the <unk> house", "the dog ran"] * 50
    words = Tokenizer.train(lines, 30, "none", token_level="word")
    (ids,) = words.encode_lines(["the <unk> dog"])
    assert [words.pieces[i] for i in ids] == ["▁the", "<unk>", "▁dog"]
    assert ids[1] == UNK
    as_bytes = Tokenizer.train(lines, 0, "none", token_level="byte")
    (ids,) = as_bytes.encode_lines(["<unk>"])
    assert UNK not in ids
