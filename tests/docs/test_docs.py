"""The examples in the documentation print what the pages show."""

import doctest
import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import xlnet_jax
from benchmarks import gallery
from data_pipelines import sources, windows
from data_pipelines.prepare.commands import prepare
from data_pipelines.tokenizer import Tokenizer
from tests.docs.pictures import assert_same_picture
from tests.xlnet_jax.random_models import random_params
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.measurement.contenders import CONTENDERS
from xlnet_jax.objectives import presets
from xlnet_jax.objectives.presets import base, demo
from xlnet_jax.settings.config import Config, ModelConfig
from xlnet_jax.settings.fields import flatten, to_dict
from xlnet_jax.storage.hub import SHORT_NAMES
from xlnet_jax.storage.reading import with_version
from xlnet_jax.tasks.config import FinetuneConfig

DOCS = Path(__file__).parents[2] / "docs"
NOT_PROSE = re.compile(r"^ *```.*?^ *```$|<!--.*?-->|^ *\|.*?$|(?<=\])\(\S*?\)|https?://\S+", re.DOTALL | re.MULTILINE)
"""code, comments, tables, and targets of links"""
MOST_WORDS = 24_000
"""of prose, on README and all pages that are written by hand"""
MOST_WORDS_OF_README = 900
"""those of its code and tables included, as `wc -w` counts"""


@pytest.fixture(scope="module")
def demo_run(tmp_path_factory):
    """Return a folder with two small untrained checkpoints: runs/austen-demo, and runs/austen-clm, which is causal."""
    folder = tmp_path_factory.mktemp("demo")
    novels = Path(sources.embedded()[0]).read_text().splitlines()
    tokenizer = Tokenizer.train(novels[:300], 300, "english")
    config = ModelConfig(vocab_size=300, num_layers=2, d_model=16, num_heads=2, d_head=8, d_ff=32)
    causal = replace(config, attn_type="uni", num_segments=0)
    for name, (model, objective) in {"austen-demo": (config, "plm"), "austen-clm": (causal, "clm")}.items():
        saved = Pretrained(model, random_params(model, None), objective, None, tokenizer)
        xlnet_jax.save(saved, folder / "runs" / name)
    (folder / "my.txt").write_text("\n".join(novels[:600]) + "\n")
    return folder


@pytest.fixture(scope="module")
def untrained_run(tmp_path_factory):
    """Return a folder with the embedded novels under the names that the pages use, and with what the demo run writes to
    runs/austen-demo before its first step."""
    root = tmp_path_factory.mktemp("data")
    workdir, config = root / "runs/austen-demo", demo()
    for name, novel in zip(("my.txt", "novels.txt", "northanger.txt"), (0, 0, 1), strict=True):
        shutil.copy(sources.embedded()[novel], root / name)
    train, validation = (sources.find([name]) for name in sources.embedded())
    tokenizer = Tokenizer.train(sources.read_lines(train), config.model.vocab_size, "auto")
    tokenizer.save(workdir / "tokenizer")
    prepare(
        train, validation, tokenizer, workdir / "corpus",
        block_len=windows.block_len(config.data), validation_fraction=0.05,
    )  # fmt: skip
    (workdir / "config.json").write_text(json.dumps(with_version("run", to_dict(config))))
    return root


@pytest.mark.parametrize(
    ("page", "at_least", "fixture"),
    [
        ("model.md", 11, "demo_run"),
        ("evaluate.md", 13, "demo_run"),
        ("generate.md", 7, "demo_run"),
        ("tokenizer.md", 4, "untrained_run"),
        ("data.md", 9, "untrained_run"),
        ("windows.md", 8, "untrained_run"),
        ("../benchmarks/README.md", 8, "tmp_path"),
    ],
)
def test_the_examples_of_a_page_print_what_they_say(page, at_least, fixture, request, monkeypatch):
    monkeypatch.chdir(request.getfixturevalue(fixture))
    failed, tried = doctest.testfile(str(DOCS / page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert tried >= at_least
    assert failed == 0


def test_the_examples_beside_transformers_agree_with_it(demo_run, monkeypatch):
    """Our examples are doctests. The other blocks use transformers, and run in order where PyTorch is installed."""
    monkeypatch.chdir(demo_run)
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
    assert len(blocks) == 4
    pytest.importorskip("torch", reason="needs the extra [bench]: pip install -e '.[bench]'")
    pytest.importorskip("transformers", reason="needs the extra [bench]: pip install -e '.[bench]'")
    for block in blocks:
        exec(compile(block, "from_transformers.md", "exec"), theirs)
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


@pytest.mark.parametrize(("page", "count"), [("tokenizer.md", 2), ("data.md", 2), ("windows.md", 1)])
def test_the_commands_print_what_they_say(page, count, untrained_run, monkeypatch, capsys):
    monkeypatch.chdir(untrained_run)
    text = (DOCS / page).read_text().replace("\\\n", " ")
    blocks = re.findall(r"^```console\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    shown = [part.partition("\n") for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    shown = [(shlex.split(command)[2:], said) for command, _, said in shown if "data_pipelines" in command]
    assert len(shown) == count
    for (module, *words), said in shown:
        assert COMMANDS[module.rpartition(".")[2]].main(words) == 0
        assert _without_times(capsys.readouterr().out) == _without_times(said)


@pytest.mark.parametrize(
    ("page", "names"),
    [("windows.md", {"data_window", "data_window_mlm", "long_window"}), ("evaluate.md", {"attention"})],
)
def test_the_pictures_are_those_that_the_commands_draw(page, names, untrained_run, monkeypatch, capsys):
    monkeypatch.chdir(untrained_run)
    text = (DOCS / page).read_text().replace("\\\n", " ")
    drawn = set()
    for command in re.findall(r"^(?:\$ )?(python -m .* --out \w+\.png.*)$", text, re.MULTILINE):
        words = shlex.split(command)[2:]
        picture = Path(words[words.index("--out") + 1])
        if (DOCS / picture).exists():
            assert COMMANDS[words[0].rpartition(".")[2]].main(words[1:]) == 0
            assert_same_picture(untrained_run / picture)
            drawn.add(picture.stem)
    assert drawn == names


def test_every_picture_is_on_a_page_and_drawn_by_a_command():
    trained = {"demo_curves", "finetune_confusion", "finetune_curves"}  # by runs that take minutes; not compared
    compared = {
        "any_order",
        "any_order_samples",
        "results_scaling",
        "receptors",
        "attention",
        "data_window",
        "data_window_mlm",
        "long_window",
    }
    compared.add("records_window")  # by test_sequences.py
    compared |= {f"gallery_{example.name}" for example in gallery.EXAMPLES}  # by test_gallery.py
    assert {picture.stem for picture in DOCS.glob("*.png")} == trained | compared
    text = "".join(page.read_text() for page in (DOCS.parent / "README.md", *DOCS.glob("*.md")))
    assert [name for name in trained | compared if not re.search(rf"[(/]{name}\.png\)", text)] == []


def _without_times(printed):
    return re.sub(r"[\d.]+ s, [\d,]+ tokens/s", "", printed)


def test_the_rows_of_the_papers_ablations_are_what_is_compared():
    """The command of each row of Table 6 has the objective, windows and masks of a contender of xlnet_jax.compare."""
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


def count_words(text):
    """Return the number of words of a page outside code, comments, tables and targets of links."""
    return len(re.findall(r"\S*\w\S*", NOT_PROSE.sub(" ", text)))


def test_words_are_counted_outside_code_tables_comments_and_targets_of_links():
    page = (
        "# One two\n\n<!--not:this-->3.5 [four five](six.md#seven)\n- eight\n\n```\nnot this\n```\n\n| not | this |\n"
    )
    assert count_words(page) == 6


def test_the_pages_stay_short():
    readme = (DOCS.parent / "README.md").read_text()
    texts = {page.relative_to(DOCS).as_posix(): page.read_text() for page in DOCS.rglob("*.md")}
    by_hand = {name: text for name, text in texts.items() if "`make reference` writes this page" not in text}
    counts = {name: count_words(text) for name, text in (by_hand | {"../README.md": readme}).items()}
    listed = f"{sum(counts.values()):,} words of prose: {counts}"
    print(listed)
    assert len(counts) > 20
    assert sum(counts.values()) <= MOST_WORDS, listed
    assert len(readme.split()) <= MOST_WORDS_OF_README
