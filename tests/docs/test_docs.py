"""The examples of the documentation print what they say."""

import doctest
import itertools
import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import xlnet_jax
from data_pipelines import sources, windows
from data_pipelines.inspect import __main__ as inspect
from data_pipelines.prepare import prepare
from data_pipelines.tokenizer import Tokenizer
from tests.xlnet_jax.random_models import random_params
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.comparison.contenders import CONTENDERS
from xlnet_jax.objectives import presets
from xlnet_jax.objectives.presets import base, demo
from xlnet_jax.settings import parser
from xlnet_jax.settings.config import Config, ModelConfig
from xlnet_jax.settings.fields import flatten
from xlnet_jax.settings.files import to_dict
from xlnet_jax.storage.hub import SHORT_NAMES
from xlnet_jax.storage.versions import with_version
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.defaults import DEFAULTS, validate_finetuning

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def demo_run(tmp_path, monkeypatch):
    """A folder in which runs/austen-demo is a checkpoint, small and untrained, and runs/austen-clm a causal one."""
    with open(sources.embedded()[0]) as novels:
        tokenizer = Tokenizer.train([line.strip() for line in itertools.islice(novels, 300)], 300, "english")
    config = ModelConfig(vocab_size=300, num_layers=2, d_model=16, num_heads=2, d_head=8, d_ff=32)
    causal = replace(config, attn_type="uni", num_segments=0)
    for name, (model, objective) in {"austen-demo": (config, "plm"), "austen-clm": (causal, "clm")}.items():
        xlnet_jax.save(
            Pretrained(model, random_params(model, None), objective, None, tokenizer), tmp_path / "runs" / name
        )
    with open(sources.embedded()[0]) as novels:
        (tmp_path / "my.txt").write_text("".join(itertools.islice(novels, 600)))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def untrained_run(tmp_path_factory):
    """A folder in which runs/austen-demo is what the demo run makes before its first step."""
    root = tmp_path_factory.mktemp("data")
    workdir, config = root / "runs/austen-demo", demo()
    train, validation = (sources.find([name]) for name in sources.embedded())
    tokenizer = Tokenizer.train(sources.read_lines(train, "strict"), config.model.vocab_size, "auto")
    tokenizer.save(workdir / "tokenizer")
    prepare(
        train, validation, tokenizer, workdir / "corpus",
        block_len=windows.block_len(config.data), validation_fraction=0.05,
    )  # fmt: skip
    (workdir / "config.json").write_text(json.dumps(with_version("run", to_dict(config))))
    return root


@pytest.fixture
def my_text(tmp_path, monkeypatch):
    """A folder with the embedded novels, by the names that the pages give them."""
    train, validation = map(Path, sources.embedded())
    for name, novel in (("my.txt", train), ("novels.txt", train), ("northanger.txt", validation)):
        (tmp_path / name).write_bytes(novel.read_bytes())
    monkeypatch.chdir(tmp_path)


def assert_prints_what_it_says(page, at_least=11):
    failed, tried = doctest.testfile(str(DOCS / page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert tried >= at_least
    assert failed == 0


def test_the_examples_of_the_model_print_what_they_say(demo_run):
    assert_prints_what_it_says("model.md")


def test_the_examples_of_the_results_print_what_they_say():
    assert_prints_what_it_says("results.md", at_least=8)


def test_the_examples_beside_transformers_agree_with_it(demo_run):
    """Ours are doctests. Theirs are the other blocks, in the order of the page; they are run where PyTorch is."""
    for name in ("train.csv", "dev.csv"):
        rows = ["text,label", "it was delightful,good", "a lovely walk,good", "dreadful rain,bad", "a vain man,bad"]
        Path(name).write_text("\n".join(rows) + "\n")
    text = (DOCS / "from_transformers.md").read_text()
    ours, theirs = {}, {}
    page = doctest.DocTestParser().get_doctest(text, ours, "from_transformers.md", None, 0)
    assert len(page.examples) >= 20
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(page, clear_globs=False).failed == 0
    ours = page.globs
    blocks = [block for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S) if ">>>" not in block]
    assert len(blocks) == 5
    pytest.importorskip("torch", reason="needs the extra [bench]: pip install -e '.[bench]'")
    pytest.importorskip("transformers", reason="needs the extra [bench]: pip install -e '.[bench]'")
    for block in blocks:
        code = compile(block, "from_transformers.md", "exec")
        if "Trainer" not in block:
            exec(code, theirs)
    for name in ("hidden", "logits", "after"):
        np.testing.assert_allclose(ours[name], theirs[name].numpy(), rtol=0, atol=1e-5, err_msg=name)
    assert ours["scores"] == pytest.approx(theirs["scores"], abs=1e-5)


def test_the_settings_named_beside_those_of_transformers_exist():
    known = {setting.name for config in (Config(), FinetuneConfig()) for setting in flatten(config)}
    text = (DOCS / "from_transformers.md").read_text()
    named = set(re.findall(r"`(?:train |finetune )?--([a-z.-]+)", text[text.index("TrainingArguments") :]))
    assert len(named) > 20
    assert named - known == {"activation"}  # of convert
    assert [name for name in re.findall(r"`xlnet_jax\.([a-z_]+)", text) if not hasattr(xlnet_jax, name)] == []


def test_the_examples_of_evaluation_print_what_they_say(demo_run):
    assert_prints_what_it_says("evaluate.md", at_least=11)


def test_the_examples_of_generation_print_what_they_say(demo_run):
    assert_prints_what_it_says("generate.md", at_least=7)


def test_the_examples_of_memory_print_what_they_say(demo_run):
    assert_prints_what_it_says("memory.md", at_least=8)


def test_the_examples_of_the_tokenizer_print_what_they_say(my_text):
    assert_prints_what_it_says("tokenizer.md")


def test_the_examples_of_the_data_print_what_they_say(untrained_run, monkeypatch):
    monkeypatch.chdir(untrained_run)
    assert_prints_what_it_says("data.md")


def test_the_examples_of_long_windows_print_what_they_say():
    assert_prints_what_it_says("long.md", at_least=8)


@pytest.mark.parametrize(("page", "count"), [("data.md", 2), ("long.md", 1)])
def test_the_windows_of_the_page_are_what_the_command_prints(page, count, untrained_run, monkeypatch, capsys):
    monkeypatch.chdir(untrained_run)
    text = (DOCS / page).read_text()
    shown = re.findall(r"```console\n\$ python -m data_pipelines\.inspect (.*)\n((?s:.*?))```", text)
    assert len(shown) == count
    for words, printed in shown:
        assert inspect.main(shlex.split(words)) == 0
        assert capsys.readouterr().out == printed


@pytest.mark.parametrize("page", ["tokenizer.md", "data.md"])
def test_the_commands_print_what_they_say(page, my_text):
    blocks = re.findall(r"^```console\n(.*?)^```$", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    commands = [part.partition("\n") for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    commands = [(command, said) for command, _, said in commands if "inspect" not in command]
    assert len(commands) > 1
    for command, said in commands:
        words = [sys.executable, *shlex.split(command.removeprefix("python "))]
        printed = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout
        assert _without_times(printed) == _without_times(said)


def _without_times(printed):
    return re.sub(r"[\d.]+ s, [\d,]+ tokens/s", "", printed)


def commands_of(page, command):
    """Yield the arguments of each such command on a page."""
    for line in (DOCS / page).read_text().replace("\\\n", " ").splitlines():
        if line.strip().startswith(command):
            yield shlex.split(line, comments=True)[3:]


def test_every_training_command_of_the_objectives_is_one():
    """Check that the settings of each command exist and do not contradict each other."""
    commands = [
        argv
        for page in ("objectives.md", "long.md", "../README.md")
        for argv in commands_of(page, "python -m xlnet_jax.train")
        if not {"--init", "--help"} & {*argv}
    ]
    assert len(commands) >= 12
    for argv in commands:
        presets.parse_config(argv, "train", "")


def test_the_rows_of_the_papers_ablations_are_what_is_compared():
    """Table 6: each row is a command, and in its objective, windows and masks a contender of xlnet_jax.compare."""
    rows = re.findall(r"^\| (\d) .*\| `(--preset .*)` \|$", (DOCS / "objectives.md").read_text(), re.MULTILINE)
    assert [number for number, _ in rows] == list("12345678")
    names = ("bert", "dae-transformer-xl", "plm-k7", "plm", "plm-no-memory", "plm-no-spans", "plm-no-bidirectional")
    configs = [presets.parse_config(words.split(), "train", "") for _, words in rows]
    for name, config in zip((*names, "plm-next"), configs, strict=True):
        compared = CONTENDERS[name](base())
        assert config.objective == compared.objective
        if name == "bert":  # as published: its vocabulary, its activation, and masks that are drawn once
            continue
        assert (config.model, config.data) == (compared.model, compared.data)


def test_the_table_of_short_names_is_that_of_the_code():
    rows = re.findall(r"^\| `([\w.-]+)` \| `(\S+/\S+)` \|$", (DOCS / "weights.md").read_text(), re.MULTILINE)
    assert dict(rows) == SHORT_NAMES


def test_every_finetuning_command_of_the_pages_is_one():
    """Check that the settings of each command exist and do not contradict each other, without opening files."""
    commands = [
        shlex.split(line, comments=True)[3:]
        for page in ("finetune.md", "recipes.md", "results.md", "weights.md")
        for line in (DOCS / page).read_text().replace("\\\n", " ").splitlines()
        if line.strip().startswith("python -m xlnet_jax.finetune") and "TASK" not in line
    ]
    assert len(commands) >= 10
    for argv in commands:
        start = parser.named_default(argv, "--task", DEFAULTS, "classification")
        validate_finetuning(parser.parse(FinetuneConfig, argv, "finetune", "", start))
