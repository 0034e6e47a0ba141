"""A SentencePiece model of others, with XLNet's special pieces added, makes the same pieces of text."""

import io

import pytest
import sentencepiece

from data_pipelines import sources
from data_pipelines.tokenizer import SPECIAL_PIECES, Tokenizer
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.errors import InputError

KINDS = {
    "unigram": {},
    "bpe": {"model_type": "bpe"},
    "character": {"model_type": "char"},
    "byte fallback": {"byte_fallback": True},
    "byte fallback of BPE": {"byte_fallback": True, "model_type": "bpe"},
    "symbols": {"user_defined_symbols": ["<x>", "<sep>", "lovely"]},
    "control pieces": {"control_symbols": ["<cls>", "<mask>", "<other>"]},
    "other ids": {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": 2},
    "other names": {"unk_piece": "[UNK]", "bos_piece": "[CLS]", "eos_piece": "[SEP]"},
}
TEXTS = ["Emma was handsome, clever, and 1,000 rich.", "  two  spaces ", "``Fiancée''", "日本 <x> a lovely <sep> 🙂 x"]


def train(path, **options):
    lines = [line for line in sources.read_lines(sources.find([sources.embedded()[0]])) if line][:400]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=600, minloglevel=2, **options
    )
    path.write_bytes(model.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue()), lines


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_an_adapted_model_makes_the_same_pieces(options, tmp_path, capsys):
    file, out = tmp_path / "theirs.model", tmp_path / "adapted"
    theirs, lines = train(file, **options)
    with pytest.raises(InputError, match=r"special pieces .*tokenizer adapt \S+theirs\.model --out FOLDER"):
        Tokenizer.load(file)
    assert COMMANDS["tokenizer"].main(["adapt", str(file), "--out", str(out)]) == 0
    ours = Tokenizer.load(out)
    assert f"{ours.vocab_size:,} pieces in" in capsys.readouterr().out
    assert tuple(ours.pieces[:9]) == SPECIAL_PIECES
    scores = {theirs.id_to_piece(i): theirs.get_score(i) for i in range(len(theirs)) if not theirs.is_unknown(i)}
    assert {*scores} | {*SPECIAL_PIECES} == {*ours.pieces}
    processor = sentencepiece.SentencePieceProcessor(model_file=str(out / "spiece.model"))
    assert {piece: processor.get_score(processor.piece_to_id(piece)) for piece in scores} == scores
    unknown = theirs.id_to_piece(theirs.unk_id())
    for text in [*TEXTS, *lines[:100]]:
        expected = [theirs.id_to_piece(i).replace(unknown, "<unk>") for i in theirs.encode(text)]
        assert [ours.pieces[i] for i in ours.encode_lines([text])[0]] == expected
        assert ours.decode(ours.encode_lines([text])[0]) == theirs.decode(theirs.encode(text))


def test_what_cannot_or_need_not_be_adapted_is_refused(tmp_path):
    Tokenizer.train(["a b c d e f"] * 9, 300, "none", token_level="byte").save(tmp_path / "ours")
    (tmp_path / "damaged.model").write_bytes(b"x")
    for name, said in {
        "ours/spiece.model": "has XLNet's special pieces: use it as it is",
        "damaged.model": "it is not a SentencePiece model, or is damaged",
        "nowhere.model": "no such file; give a SentencePiece .model file",
    }.items():
        with pytest.raises(InputError, match=said):
            Tokenizer.adapt(tmp_path / name)
