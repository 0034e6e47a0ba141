"""Pieces that a user names are never split or merged, and those that could not stay whole are refused."""

import pytest

from data_pipelines import sources
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.__main__ import COMMANDS, run
from xlnet_jax.errors import InputError

TRAIN = sources.embedded()[0]
LINES = [line for line in sources.read_lines(sources.find([TRAIN])) if line][:400]
SYMBOLS = ("<url>", "@user", "日本", "don't", "a,b", '"""')


@pytest.mark.parametrize("level", ["piece", "character"])
@pytest.mark.parametrize("normalization", ["english", "nfkc", "none"])
def test_symbols_stay_whole_wherever_they_stand(level, normalization, tmp_path):
    trained = Tokenizer.train(LINES, 400, normalization, token_level=level, user_symbols=SYMBOLS)
    trained.save(tmp_path / "tokenizer")
    tokenizer = Tokenizer.load(tmp_path / "tokenizer")
    assert tokenizer.sha256 == trained.sha256
    for symbol in SYMBOLS:
        for text in (symbol, f"see {symbol} now", f"x{symbol}{symbol}y", f"said,{symbol}."):
            (ids,) = tokenizer.encode_lines([text])
            assert [tokenizer.pieces[i] for i in ids].count(symbol) == text.count(symbol), (text, symbol)
            assert tokenizer.decode(ids) == text
    assert not any(symbol in piece and symbol != piece for piece in tokenizer.pieces for symbol in SYMBOLS)


def test_without_symbols_a_tokenizer_is_as_before():
    assert Tokenizer.train(LINES, 300, "english").model == Tokenizer.train(LINES, 300, "english", user_symbols=()).model


@pytest.mark.parametrize(
    ("symbols", "settings", "message"),
    [
        ([""], {}, "`user_symbols` '' is empty or has a space in it"),
        (["a b"], {}, "`user_symbols` 'a b' is empty or has a space in it"),
        (["▁x"], {}, "`user_symbols` '▁x' is empty or has a space in it"),
        (["x", "y", "x"], {}, "`user_symbols` 'x' is given twice"),
        (["<mask>"], {}, "`user_symbols` '<mask>' is one of XLNet's special pieces"),
        (["<URL>"], {"lower": True}, "`user_symbols` '<URL>' becomes '<url>' by normalization"),
        (["café"], {}, "`user_symbols` 'café' becomes 'cafe' by normalization"),
        (["№"], {"normalization": "nfkc"}, "`user_symbols` '№' becomes 'No' by normalization"),
        (["[1,"], {}, "`user_symbols` '[1,' ends in a digit and a comma"),
        (["x"], {"token_level": "word"}, "`user_symbols` x: a vocabulary of the level word has none"),
        (["x"], {"token_level": "byte"}, "`user_symbols` x: a vocabulary of the level byte has none"),
        ([f"s{n}" for n in range(500)], {}, "`vocab_size` 400 is too small"),
    ],
)
def test_a_symbol_that_cannot_stay_whole_is_one_line(symbols, settings, message):
    settings = {"normalization": "english", **settings}
    with pytest.raises(InputError) as error:
        Tokenizer.train(LINES, 400, user_symbols=symbols, **settings)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_the_command_trains_with_symbols_and_refuses_others(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    argv = ["train", "--source", TRAIN, "--vocab-size", "300", "--out", "tokenizer", "--user-symbols"]
    assert COMMANDS["tokenizer"].main([*argv, "<url>", "@user"]) == 0
    assert {"<url>", "@user"} <= set(Tokenizer.load("tokenizer").pieces)
    monkeypatch.setattr("sys.argv", ["tokenizer", *argv[:-2], "other", "--user-symbols", "a b"])
    with pytest.raises(SystemExit) as stop:
        run(COMMANDS["tokenizer"].main)
    assert stop.value.code == 2
    assert "error: --user-symbols 'a b' is empty or has a space in it" in capsys.readouterr().err
