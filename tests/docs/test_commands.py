"""Every command line on the pages can be parsed. Those of `RUN` are also run, page by page and in order, on small files
of the names that they use. `SMALLER` is appended to them, to keep networks small and runs short."""

import gzip
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

import xlnet_jax
from data_pipelines import sources
from data_pipelines.corpus import is_corpus
from data_pipelines.tokenizer import Tokenizer
from tests.xlnet_jax.random_models import random_params
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.settings.config import ModelConfig

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "benchmarks/README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHELL = re.compile(r"^ *```(?:bash|sh)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
FORM = r"\b(TASK|SOURCE|TARGET)\b"
RUN = [ROOT / "README.md", ROOT / "docs/generate.md", ROOT / "docs/evaluate.md"]
NOT_RUN = {
    r"^(make|pip|cat|python -m venv) ": "installs, prints a file, or runs the tests as .ci/run does",
    r"--tpu\b": "needs a TPU",
    r"\blm_eval ": "runs lm-evaluation-harness; tests/xlnet_jax/inference/test_lm_eval.py does",
    r"\.train --(objective|preset) ": "trains for long; tests/xlnet_jax/training does",
    r"\.train .*--minutes ": "trains for half an hour; tests/xlnet_jax/training/test_dial.py does",
    r"-m benchmarks\.": "measures for minutes",
    r"\.evaluate runs/\S+( --mem-len \d+)?$": "evaluates on the held-out text of a run; tests/xlnet_jax/inference does",
    r"\.evaluate runs/sessions --next-item": "needs a run on records; test_sequences.py has one",
    r"\.evaluate tiny .*--(orders|suite) ": "reads whole texts or a suite's files; tests/xlnet_jax/inference does",
}
SMALLER = {
    "train": "--steps 1 --data.batch-size 8 --log.every-steps 1 --eval.max-windows 2 --checkpoint.every-steps 1",
    "finetune": "--steps 1 --data.batch-size 8 --selection.every-steps 1",
    "evaluate": "--max-windows 2 --data.batch-size 8",
    "inspect": "--data.batch-size 8",
    "recl": "--tokens 8 --longest 32",
}
NETWORK = "--model.num-layers 1 --model.d-model 16 --model.num-heads 1 --model.d-head 16 --model.d-ff 16"
VOCABULARY = 300
TINY = ModelConfig(vocab_size=VOCABULARY, num_layers=2, d_model=16, num_heads=2, d_head=8, d_ff=16, mem_len=8)


def commands_on(page):
    """Return the commands of a page in order, each on one line and without its comment.

    These are all lines of blocks marked bash or sh, and elsewhere lines that begin with `$ ` or `python -m`.
    """
    text = page.read_text().replace("\\\n", " ")
    lines = SHELL.sub(lambda block: re.sub(r"^(?=\s*[^\s#])", "$ ", block[1], flags=re.MULTILINE), text).splitlines()
    commands = (re.fullmatch(r"\s*\$ (.+)|\s*(python -m .+)", line) for line in lines)
    return [re.sub(r"\s+(#.*)?$|\s+(?=\s)", "", found[1] or found[2]) for found in commands if found]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Change to a folder that has a small file, folder or checkpoint for every name that the pages use."""
    monkeypatch.chdir(tmp_path)
    novels = Path(sources.embedded()[0]).read_text().splitlines()[:2000]
    rows = "a truth,1\nso was he,0\n" * 4
    texts = {name: "\n".join([*novels, "", f"The end of {name}."]) for name in ("my.txt", "northanger.txt")}
    texts |= {
        "sentences.txt": "It was a truth.\nEmma was rich.",
        "prompts.txt": "It was\nThe ___ of the sea\n",
        "mine.csv": f"text,label\n{rows}",
        "dev.csv": f"text,label\n{rows}",
    }
    for name, text in texts.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    Path("more").mkdir()
    Path("more/a.txt.gz").write_bytes(gzip.compress(texts["my.txt"].encode()))
    tokenizer = Tokenizer.train(novels, VOCABULARY, "english")
    causal = replace(TINY, attn_type="uni", num_segments=0)
    for name in ("austen-demo", "austen-clm", "austen-clm-300"):
        model, objective = (TINY, "plm") if name == "austen-demo" else (causal, "clm")
        saved = Pretrained(model, random_params(model, None), objective, None, tokenizer)
        xlnet_jax.save(saved, Path("runs", name))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_command_can_be_parsed(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("SST-2/train", "SST-2/dev", "STS-B/train", "STS-B/dev"):  # `compare` looks for them
        Path(f"glue/{name}.tsv").parent.mkdir(parents=True, exist_ok=True)
        Path(f"glue/{name}.tsv").touch()
    for name in ("train", "dev"):  # of docs/gallery.md
        Path("novel").mkdir(exist_ok=True)
        Path(f"novel/{name}.csv").touch()
    Path("small.json").write_text("{}")  # of docs/sequences.md
    for line in commands_on(page):
        words = shlex.split(line.partition(" > ")[0], comments=True)
        if words[:2] == ["python", "-m"] and "--help" not in words and not re.search(FORM, line):
            module, _, name = words[2].rpartition(".")
            if module in ("xlnet_jax", "data_pipelines"):
                COMMANDS[name].parse(words[3:])


def test_help_shows_every_flag_of_the_readme(capsys):
    lines = [shlex.split(line, comments=True) for line in commands_on(ROOT / "README.md")]
    used: dict[str, set[str]] = {}
    for words in lines:
        if words[:2] == ["python", "-m"] and (name := words[2].rpartition(".")[2]) in COMMANDS:
            flags = (word.partition("=")[0] for word in words if word.startswith("--"))
            used.setdefault(name, set()).update(flags)
    assert {"train", "finetune"} <= {*used}
    for name, flags in used.items():
        with pytest.raises(SystemExit):
            COMMANDS[name].parse(["--help"])
        assert flags - set(re.findall(r"--[a-z][\w.-]*", capsys.readouterr().out)) == set(), name


@pytest.mark.long
def test_the_commands_run(files):
    commands = [command for page in RUN for command in commands_on(page)]
    assert [pattern for pattern in NOT_RUN if not any(re.search(pattern, command) for command in commands)] == []
    commands = [command for command in commands if not any(re.search(pattern, command) for pattern in NOT_RUN)]
    assert [command for number, command in enumerate(commands) if run(command, number)] == []


def test_the_lines_of_python_in_the_readme_run():
    (block,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    names = {}
    exec(block, names)
    assert names["text"].text.startswith("She opened the letter and")
    assert "___" not in names["filled"].text
    assert names["vectors"].shape == (2, 128)


def run(command, number):
    module, *words = shlex.split(command)[2:]
    name = module.rpartition(".")[2]
    words += shlex.split(SMALLER.get(name, ""))
    if name == "train":
        words += ["--workdir", f"runs/{number}"]
        if "--init" not in words:
            words += shlex.split(NETWORK)
            if "--tokenizer" not in words and not any(map(is_corpus, words)):
                words += ["--model.vocab-size", str(VOCABULARY)]
    if name == "tokenizer":
        words += ["--vocab-size", str(VOCABULARY)]
    try:
        return COMMANDS[name].main(words)
    except SystemExit as stop:  # --help
        return stop.code
