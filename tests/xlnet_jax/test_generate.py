"""The generate command: its output and its errors."""

import dataclasses
import itertools
import json
import subprocess
import sys
from importlib import import_module

import pytest

import xlnet_jax
from data_pipelines import sources
from data_pipelines.tokenizer import Tokenizer
from tests.xlnet_jax.random_models import HEADS, random_model
from xlnet_jax.errors import InputError
from xlnet_jax.settings.config import ModelConfig

generate = import_module("xlnet_jax.generate")

TINY = ModelConfig(vocab_size=300, num_layers=1, d_model=16, num_heads=2, d_head=8, d_ff=32)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    with open(sources.embedded()[0]) as novels:
        tokenizer = Tokenizer.train([line.strip() for line in itertools.islice(novels, 300)], 300, "english")
    folder = tmp_path_factory.mktemp("generate")
    xlnet_jax.save(random_model(TINY, tokenizer=tokenizer), folder / "lm")
    xlnet_jax.save(random_model(TINY, HEADS["classification"], tokenizer), folder / "classifier")
    causal = dataclasses.replace(TINY, attn_type="uni", num_segments=0)
    xlnet_jax.save(random_model(causal, tokenizer=tokenizer), folder / "causal")
    return folder / "lm"


def printed(capsys, *argv):
    assert generate.main([str(word) for word in argv]) == 0
    return capsys.readouterr().out


def test_every_prompt_has_its_samples_as_text_and_as_json(checkpoint, tmp_path, capsys):
    (tmp_path / "prompts.txt").write_text("\ufeffEmma was handsome,\n\nThe ___ of the house\n")
    args = [checkpoint, "--prompt", "It is a truth", "--prompt-file", tmp_path / "prompts.txt", "--num-samples", 2]
    args += ["--max-new-tokens", 4, "--context", 16]
    records = [json.loads(line) for line in printed(capsys, *args, "--json").splitlines()]
    assert [r["prompt"] for r in records[::2]] == ["It is a truth", "Emma was handsome,", "The ___ of the house"]
    assert [r["prompt"] for r in records[1::2]] == [r["prompt"] for r in records[::2]]
    for record in records[:4]:
        assert record["text"].startswith(record["prompt"])
        assert record["ended"] or len(record["pieces"]) == 4
        assert all(p <= 0 for p in record["log_probs"])
    assert records[0]["text"] != records[1]["text"]
    assert all(len(r["pieces"]) == 1 and r["text"].endswith(" of the house") for r in records[4:])
    assert printed(capsys, *args) == "\n---\n".join(r["text"] for r in records) + "\n"


def test_one_text_is_printed_as_it_grows_and_is_the_text_of_json(checkpoint, capsys):
    args = [checkpoint, "--prompt", "It is", "--context", 16, "--seed", 3, "--max-new-tokens", 70]
    grown = printed(capsys, *args)
    assert grown == json.loads(printed(capsys, *args, "--json"))["text"] + "\n"
    assert len(grown) > 70


def test_a_causal_checkpoint_goes_on_from_its_prompts(checkpoint, capsys):
    args = [checkpoint.parent / "causal", "--prompt", "It is", "Emma", "--max-new-tokens", 4, "--context", 16, "--json"]
    limits = ["--temperature", 1.5, "--top-k", 50, "--top-p", 0.95, "--num-samples", 2]
    records = [json.loads(line) for line in printed(capsys, *args, *limits).splitlines()]
    assert [r["prompt"] for r in records] == ["It is", "It is", "Emma", "Emma"]
    assert all(r["text"].startswith(r["prompt"]) and len(r["log_probs"]) == 4 for r in records)
    assert records[0]["text"] != records[1]["text"]


def test_a_checkpoint_without_a_tokenizer_takes_one(checkpoint, tmp_path, capsys):
    bare, args = tmp_path / "bare", ["--prompt", "It is", "--context", 16, "--max-new-tokens", 2]
    xlnet_jax.save(dataclasses.replace(xlnet_jax.load(checkpoint), tokenizer=None), bare)
    with pytest.raises(InputError, match=r"the checkpoint has no tokenizer: .* or give --tokenizer"):
        generate.main([str(word) for word in (bare, *args)])
    assert printed(capsys, bare, *args, "--tokenizer", checkpoint / "tokenizer") == printed(capsys, checkpoint, *args)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["{lm}"], "there is no prompt: give --prompt or --prompt-file; an empty --prompt begins"),
        (["{lm}", "--prompt", "a", "--temperature", "-1"], "--temperature -1.0 must be a number from 0 up"),
        (["{lm}", "--prompt", "a", "--top-p", "0"], "--top-p 0.0 must be in (0, 1]"),
        (["{lm}", "--prompt", "a", "--gap-pieces", "2"], "no gap in 'a': write ___"),
        (["{lm}", "--prompt", "a ___", "--gap-pieces", "0"], "--gap-pieces 0 must be at least 1"),
        (["{lm}", "--prompt", "a", "--max-new-tokens", "0"], "--max-new-tokens 0 must be at least 1"),
        (["{lm}", "--prompt", "a", "--max-new-tokens", "9" * 30], "must be at most 1,000,000"),
        (["{lm}", "--prompt", "a" * 300, "--context", "20"], "more than the context of 20: shorten it"),
        (["{lm}", "--prompt", "a", "--context", "1"], "--context 1 has no room for a prompt"),
        (["{lm}", "--prompt", "a", "--seed", "-1"], "--seed -1 must be from 0"),
        (["{lm}", "--prompt", "a", "--prefix", "b", "--prefix-file", "c"], "leave one out"),
        (["{lm}", "--prompt-file", "{lm}/no.txt"], "no.txt cannot be read: No such file"),
        (["{lm}", "--prompt", "a", "--topp", "1"], "unknown setting --topp: did you mean --top-p?"),
        (["{classifier}", "--prompt", "a"], "has a head for classification, and no vocabulary scores"),
        (["{lm}/nothing", "--prompt", "a"], "no such folder"),
        (["{causal}", "--prompt", "a ___"], "has gaps, and the checkpoint reads from left to right"),
    ],
)
def test_a_mistake_of_the_command_is_one_line(checkpoint, argv, message):
    places = {"lm": checkpoint, **{name: checkpoint.parent / name for name in ("classifier", "causal")}}
    with pytest.raises(InputError) as mistake:
        generate.main([word.format(**places) for word in argv])
    assert message in str(mistake.value)
    assert "\n" not in str(mistake.value)


def test_the_command_line_exits_with_two_before_anything_is_loaded(checkpoint):
    command = [sys.executable, "-m", "xlnet_jax.generate", str(checkpoint), "--prompt-file", "missing.txt"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr == "error: --prompt-file missing.txt cannot be read: No such file or directory\n"
