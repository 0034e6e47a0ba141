"""BERT's and RoBERTa's tokenizers in place of a SentencePiece model."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from data_pipelines.sources import embedded
from data_pipelines.tokenizer import CLS, EOD, MASK, PAD, SEP, SPECIAL_PIECES, UNK, Tokenizer
from data_pipelines.tokenizer.foreign import NEW
from xlnet_jax.errors import InputError

tokenizers = pytest.importorskip("tokenizers", reason="needs Hugging Face's tokenizers: pip install -e '.[hf]'")
TEXT = ["Emma's good-humoured Father, it is said;", "was 56 years old - naïve? [SEP] <s>"]


@pytest.fixture(scope="module")
def lines():
    return Path(embedded()[0]).read_text().splitlines()[:300]


def train_and_save(made, lines, names, folder):
    made.train_from_iterator(lines, vocab_size=600, special_tokens=names, show_progress=False)
    made.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory, lines):
    names = ["[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return train_and_save(tokenizers.BertWordPieceTokenizer(), lines, names, tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def roberta(tmp_path_factory, lines):
    names = ["<s>", "<pad>", "</s>", "<unk>", "madeupword0000", "<mask>"]
    return train_and_save(tokenizers.ByteLevelBPETokenizer(), lines, names, tmp_path_factory.mktemp("roberta"))


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_ids_are_theirs_dealt_anew(kind, request, lines):
    folder = request.getfixturevalue(kind)
    ours, theirs = Tokenizer.load(folder), tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    rows = ours.foreign.theirs
    for line, ids in zip(lines, ours.encode_lines(lines), strict=True):
        assert rows[ids].tolist() == theirs.encode(line, add_special_tokens=False).ids
    old = rows[rows != NEW]
    assert sorted(old) == list(range(theirs.get_vocab_size()))
    names = {CLS: ("[CLS]", "<s>"), SEP: ("[SEP]", "</s>"), PAD: ("[PAD]", "<pad>"), MASK: ("[MASK]", "<mask>")}
    for i, either in names.items():
        assert theirs.id_to_token(int(rows[i])) in either


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_truncation_padding_and_dropout_in_the_file_do_not_change_texts(kind, request, lines, tmp_path):
    folder = request.getfixturevalue(kind)
    content = json.loads((folder / "tokenizer.json").read_text())
    content["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    padding = {"direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
    content["padding"] = padding | {"strategy": {"Fixed": 1_000_000_000}}
    if kind == "roberta":
        content["model"]["dropout"] = 0.9
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    found, expected = Tokenizer.load(tmp_path).encode_lines(lines), Tokenizer.load(folder).encode_lines(lines)
    assert [ids.tolist() for ids in found] == [ids.tolist() for ids in expected]


def test_special_pieces_that_are_missing_take_an_unused_one_or_a_new_one(bert, roberta):
    for folder, unused in ((bert, 2), (roberta, 1)):
        ours = Tokenizer.load(folder)
        assert tuple(ours.pieces[: len(SPECIAL_PIECES)]) == SPECIAL_PIECES
        assert (ours.foreign.theirs == NEW).sum() == 4 - unused
        assert ours.vocab_size == ours.foreign.their_size + 4 - unused


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_special_words_in_a_text_are_text(kind, request):
    ours = Tokenizer.load(request.getfixturevalue(kind))
    for ids in ours.encode_lines(TEXT):
        assert not np.isin(ids, [CLS, SEP, PAD, MASK, EOD]).any()


def test_text_is_decoded_and_its_words_and_sentences_are_found(bert, roberta):
    text = "It is said, by Emma's “naïve” father. She was old."
    for folder in (bert, roberta):
        ours = Tokenizer.load(folder)
        (ids,) = ours.encode_lines([text])
        (cut,) = np.flatnonzero(ours.tables.sentence_starts(ids))
        assert ours.decode(ids[cut:]).strip().lower() == "she was old."
        (ids,) = ours.encode_lines(["they considered Emma's father"])
        words = "".join(("|" if ours.is_word_start[i] else "") + ours.pieces[i].lstrip("▁") for i in ids)
        assert words.lower().removeprefix("|").startswith("they|considered|emma")
    assert ours.decode(np.array([*ours.encode_lines([text])[0], SEP, CLS, EOD])) == text


def test_an_unknown_word_is_named(bert):
    ours = Tokenizer.load(bert)
    (pieces,) = ours.encode_pieces(["the ☃ was"])
    assert "☃" in pieces
    assert ours.encode_lines(["☃"])[0].tolist() == [UNK]


def test_saved_loaded_and_pickled_it_is_the_same(bert, tmp_path):
    ours = Tokenizer.load(bert)
    ours.save(tmp_path / "saved")
    for other in (Tokenizer.load(tmp_path / "saved"), pickle.loads(pickle.dumps(ours))):
        assert other.sha256 == ours.sha256
        assert other.encode_lines(TEXT)[0].tolist() == ours.encode_lines(TEXT)[0].tolist()


def test_a_folder_with_vocab_txt_alone_is_read(bert, tmp_path):
    theirs = tokenizers.Tokenizer.from_file(str(bert / "tokenizer.json"))
    names = sorted(theirs.get_vocab(), key=theirs.get_vocab().get)
    (tmp_path / "vocab.txt").write_text("\n".join(names) + "\n")
    old, new = Tokenizer.load(bert), Tokenizer.load(tmp_path)
    for a, b in zip(old.encode_lines(TEXT), new.encode_lines(TEXT), strict=True):
        assert a.tolist() == b.tolist()


@pytest.mark.parametrize("content", [b"[PAD]\n\xff\n", b"[UNK]\nthe\n", b""])
def test_what_is_no_vocab_txt_is_refused(tmp_path, content):
    (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(InputError, match=r"vocab\.txt: the tokenizers library cannot use it"):
        Tokenizer.load(tmp_path)


def test_what_is_no_such_tokenizer_is_refused(tmp_path, bert):
    (tmp_path / "tokenizer.json").write_text('{"model": ')
    with pytest.raises(InputError, match=r"is damaged: Expecting value"):
        Tokenizer.load(tmp_path)
    kind = json.loads((bert / "tokenizer.json").read_text())
    kind["added_tokens"] = [t for t in kind["added_tokens"] if t["content"] != "[MASK]"]
    del kind["model"]["vocab"]["[MASK]"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(kind))
    with pytest.raises(InputError, match=r"has no \[MASK\] or <mask>, which XLNet needs"):
        Tokenizer.load(tmp_path)


# ---- files on which the library panics -------------------------------------------------------------------------------


def test_settings_on_which_the_library_panics_are_refused_in_silence(bert, tmp_path, capfd):
    kind = json.loads((bert / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(kind | {"pre_tokenizer": {"type": "FixedLength", "length": 0}}))
    with pytest.raises(InputError, match=r"the tokenizers library cannot use it \(chunk size must be non-zero\)"):
        Tokenizer.load(tmp_path)
    assert capfd.readouterr().err == ""
