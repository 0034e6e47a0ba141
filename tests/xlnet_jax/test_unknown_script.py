"""A text in a script that the tokenizer does not know is refused by every command, in one line."""

import json

import pytest

import xlnet_jax
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.errors import InputError

CHINESE = "北京是中国的首都，我们在这里生活。"
LINE = r"the tokenizer does not know 100% of the letters, such as '.', and would read them as <unk>: train a tokenizer"


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "chinese.txt"
    path.write_text(f"{CHINESE}\n" * 200)
    return path


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("text,label\n" + "".join(f"{CHINESE}{i},{i % 2}\n" for i in range(20)))
    return path


@pytest.fixture(scope="module")
def spiece(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer") / "english"
    xlnet_jax.load("tiny").tokenizer.save(folder)
    return folder


def commands(text, table, spiece, out):
    return {
        "prepare": f"data_pipelines.prepare --source {text} --tokenizer {spiece} --out {out}",
        "train": f"xlnet_jax.train --preset demo --corpus {text} --tokenizer {spiece} --workdir {out}",
        "finetune": f"xlnet_jax.finetune --init tiny --train {table} --workdir {out}",
        "evaluate": f"xlnet_jax.evaluate tiny --text {text}",
        "score": f"xlnet_jax.score tiny --texts {text}",
        "embed": f"xlnet_jax.embed tiny --text {text} --out {out}.npy",
        "generate": f"xlnet_jax.generate tiny --prompt {CHINESE}",
    }


@pytest.mark.parametrize("command", commands(*"abcd"))
def test_most_letters_unknown_are_refused_in_one_line(command, text, table, spiece, tmp_path):
    module, *argv = commands(text, table, spiece, tmp_path / "out")[command].split()
    with pytest.raises(InputError, match=LINE):
        COMMANDS[module.rpartition(".")[2]].main(argv)


def test_a_few_unknown_letters_are_a_share():
    tokenizer = xlnet_jax.load("tiny").tokenizer
    assert tokenizer.require_known(["She wrote 北京 in her letter."], "the text") == pytest.approx(2 / 21)
    assert tokenizer.require_known(["She smiled. 😀😀😀😀😀😀😀😀😀😀"], "the text") == 0.0
    assert tokenizer.require_known([], "the text") == 0.0


def test_a_text_that_is_too_short_to_evaluate_is_no_training_text(tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("It was a short letter.\n")
    with pytest.raises(InputError, match=rf"^text {short} has \d+ tokens, but needs one block of 1086"):
        xlnet_jax.evaluate("tiny", text=str(short))


def test_an_evaluation_carries_the_share_and_says_what_compares(tmp_path, capsys):
    text, out = tmp_path / "text.txt", tmp_path / "out.json"
    text.write_text("She wrote 北京 in her letter, and he answered it.\n" * 100)
    COMMANDS["evaluate"].main(["tiny", "--text", str(text), "--out", str(out), "--max-windows", "8"])
    numbers = json.loads(out.read_text())
    assert numbers["unknown_share"] == numbers["unknown"] / numbers["pieces"] > 0.01
    assert f"unknown     {numbers['unknown_share']:.2%} of the pieces" in (printed := capsys.readouterr().out)
    assert "\ncompare     perplexity per piece between models with one tokenizer only" in printed
