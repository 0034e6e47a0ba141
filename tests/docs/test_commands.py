"""Every command line on the pages is read by the command's own parser, and run on small files of the names that the
pages use, one after another.

Networks are small and runs short: `SMALLER` is appended to command lines. A command that cannot run here is named in
`NOT_RUN`, with the reason. Outside of README.md, of commands that train each kind is run once (`kind_of`): of the
others the files that they read must be there, and a small model is put where they would leave theirs.
"""

import functools
import gzip
import json
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import xlnet_jax
from data_pipelines import sources
from data_pipelines.corpus import is_corpus
from data_pipelines.prepare.commands import PrepareSettings, prepare_corpus
from data_pipelines.tokenizer import Tokenizer
from tests.docs.pages import PAGES, ROOT, commands_on
from tests.xlnet_jax.random_models import random_params
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.comparison.settings import CompareConfig
from xlnet_jax.errors import InputError
from xlnet_jax.settings.config import Config, HeadConfig, ModelConfig
from xlnet_jax.tasks import config as finetune_config
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.training import resolve

FORM = r"\b(TASK|SOURCE|TARGET)\b"
NOT_RUN = {
    r"^(make|pip|python -m venv) ": "installs, or runs the tests: .ci/run does it from a clean checkout",
    r"^(docker|exec apptainer) ": "needs an engine for containers",
    r"\binspect runs/austen-demo\b": "test_docs.py compares what it prints",
    r"^(PYTHON=\S+ )?launch/": "requests machines; tests/launch compares what --dry-run prints",
    r"\bxlnet_jax\.plan\b": "needs a compiler for TPUs or GPUs; tests/xlnet_jax/planning runs it where there is one",
    r"--tpu\b": "needs a TPU",
    r"^nvidia-smi|^CUDA_VISIBLE_DEVICES|^python -c 'import jax": "needs a GPU",
    r"--preset long\b": "has windows of thousands of tokens; tests/xlnet_jax/objectives/test_long.py has shorter ones",
    r"evaluate runs/(austen-demo|clm)$": "needs the corpus of the run; tests/xlnet_jax/training/heldout has one",
    r"--push\b": "uploads; tests/xlnet_jax/checkpoints/test_hub.py has a server for that",
    r"\bbenchmarks[/.]": "measures for minutes",
    FORM: "is a form to fill in",
    r"-m pytest": "is a test",
    r"data/(glue|squad)": "trains for hours",
}
SUBSTITUTES = {
    "tfds:c4/en": "my.txt",
    "speeches.txt c4 ": "speeches.txt my.txt ",
    "runs/tiny/first": "tiny",
    "--seeds 0 1 2": "--seeds 0",
    "--objectives plm,mlm,clm": "--objectives clm",
    "--objectives plm,clm,prefix": "--objectives prefix",
    "--finetune steps=300": "",
    "--tasks sst-2=glue/SST-2 sts-b=glue/STS-B": "--tasks sts-b=glue/STS-B",  # another page has the first alone
    "--tasks ": "--finetune steps=1 --tasks ",
    "--out corpus": "--out another-corpus",
    "--optimizer.accumulate 8": "--optimizer.accumulate 1",  # of eight devices each takes a row
    "runs/sst-2 ": "runs/finetuned ",  # a later command of the page makes it, or another page does
    "runs/zh --train people": "runs/novels --train people",
    "runs/zh-text.txt --tokenizer runs/zh": "zh.txt --tokenizer runs/novels",
    "--layer 1 --head 1": "--layer 0 --head 0",
}
"""Words of commands that need what is not here or take minutes, and what is run instead."""
SMALLER = {
    "xlnet_jax.train": "--steps 1 --data.batch-size 8 --log.every-steps 1 --eval.max-windows 2 "
    "--checkpoint.every-steps 1",
    "xlnet_jax.finetune": "--steps 1 --data.batch-size 8 --selection.every-steps 1",
    "xlnet_jax.compare": "--budget 2048 --data.batch-size 8 --eval.max-windows 2",
    "xlnet_jax.evaluate": "--max-windows 2 --data.batch-size 8",
    "data_pipelines.inspect": "--data.batch-size 8",
    "xlnet_jax.recl": "--tokens 8 --longest 32",
}
OF_MODULE = {command.module: command for command in COMMANDS.values()}
NETWORK = "--model.num-layers 1 --model.d-model 16 --model.num-heads 1 --model.d-head 16 --model.d-ff 16"
VOCABULARY = 300
TINY = ModelConfig(vocab_size=VOCABULARY, num_layers=1, d_model=16, num_heads=2, d_head=8, d_ff=16, mem_len=8)
CAUSAL = replace(TINY, attn_type="uni", num_segments=0)
CLASSES = HeadConfig("classification", 2, scope="classification_sst-2", labels=("0", "1"))
BERT = replace(TINY, mem_len=0, positions="learned", activation="gelu_erf", num_segments=2)
SENTENCES = ["It was a truth.", "Emma was handsome, clever, and rich.", "So was he, and so were they."]

_TEXTS = (
    "my.txt",
    "held_out.txt",
    "other.txt",
    "novels.txt",
    "speeches.txt",
    "northanger.txt",
    "handbook.txt",
    "wiki.train.txt",
    "zh.txt",
)
_SENTENCES = ("sentences.txt", "prompts.txt")
_SST2 = "sentence\tlabel\n" + "a truth\t1\nso was he\t0\n" * 4
_STS = (
    "\t".join((*"1234567", "sentence1", "sentence2", "score"))
    + "\n"
    + "\t".join((*"abcdefg", "he", "was", "3.2\n")) * 4
)
_COLUMNS = "text,label\n" + "a truth,1\nso was he,0\n" * 4
_CHINESE = "label\ttext_a\n" + "1\t很好，我住过这里。\n0\t不好，再也不来了。\n" * 300
_SQUAD = {
    "context": "Emma was rich.",
    "qas": [{"id": "1", "question": "Who?", "answers": [{"text": "Emma", "answer_start": 0}]}],
}
_DREAM = [
    [["M: Was Emma rich?", "W: Yes."], [{"question": "Was she?", "choice": ["Yes.", "No."], "answer": "Yes."}], "1"]
]
_CRANFIELD = "".join(f".I {i}\n.T\ntitle {i}\n.A\n.B\n.W\ntext of wing {i}\n" for i in range(1, 21))
_TABLES = {
    "glue/SST-2/train.tsv": _SST2,
    "glue/SST-2/dev.tsv": _SST2,
    "glue/STS-B/train.tsv": _STS,
    "glue/STS-B/dev.tsv": _STS,
    "mine.csv": _COLUMNS,
    "novel/train.csv": _COLUMNS,
    "novel/dev.csv": _COLUMNS,
    "dev.csv": _COLUMNS,
    "new.csv": "text\na truth\n",
    "more.tsv": "sentence\na truth\n",
    "reviews.tsv": "sentence\na truth\n",
    "train.csv": _COLUMNS,
    "train.tsv": _COLUMNS.replace(",", "\t"),
    "dev.tsv": _COLUMNS.replace(",", "\t"),
    "reviews/train.csv": _COLUMNS.replace("text,label", "review,stars"),
    "reviews/dev.csv": _COLUMNS.replace("text,label", "review,stars"),
    "reviews/train.tsv": _CHINESE,
    "reviews/dev.tsv": _CHINESE,
    "new.tsv": "text_a\n很好\n",
    "topics/train.csv": _COLUMNS.replace("text,label", "text,topics").replace("1\n", "rich;old\n"),
    "topics/dev.csv": _COLUMNS.replace("text,label", "text,topics").replace("1\n", "rich;old\n"),
    "squad/train.json": json.dumps({"data": [{"title": "Emma", "paragraphs": [_SQUAD]}]}),
    "squad/dev.json": json.dumps({"data": [{"title": "Emma", "paragraphs": [_SQUAD]}]}),
    "dream/train.json": json.dumps(_DREAM),
    "dream/dev.json": json.dumps(_DREAM),
    "people_daily/train.txt": "李 B-PER\n去 O\n\n" * 4,
    "people_daily/dev.txt": "李 B-PER\n去 O\n\n" * 4,
    "docs.txt": _CRANFIELD,
    "queries.txt": "".join(f".I {i:03}\n.W\nwing {i}\n" for i in range(1, 11)),
    "qrels.txt": "".join(f"{i} {i + d} {1 + d}\n" for i in range(1, 11) for d in range(3)),
    "wiki.jsonl": json.dumps({"text": " ".join(SENTENCES * 400)}) + "\n",
}
_CHECKPOINTS = (
    ("runs/mine", TINY, None, "native"),
    ("runs/novels", TINY, None, "native"),
    ("runs/news", TINY, None, "native"),
    ("xlnet_cased_L-12_H-768_A-12", TINY, None, "tf1"),
    ("bert-base-uncased", BERT, None, "hf"),
    ("roberta-base", BERT, None, "hf"),
    ("xlnet/xlnet-base-cased", TINY, None, "hf"),
    ("xlnet-base-cased", TINY, None, "hf"),
    ("xlnet-large-cased", TINY, None, "hf"),
    ("chinese-xlnet-base", TINY, None, "hf"),
    ("runs/austen-demo", TINY, None, "native"),
    ("runs/finetuned", TINY, CLASSES, "native"),
    ("runs/causal", CAUSAL, None, "native"),
)
"""(name, network, head, format)"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with a small file, folder or checkpoint of every name that the pages use and do not make."""
    folder = tmp_path_factory.mktemp("files")
    novels = Path(sources.embedded()[0]).read_text().splitlines()[:2000]
    text, sentences = "\n".join(novels), "\n".join(SENTENCES)
    texts = {name: f"{text}\n\nThe end of {name}.\n" for name in _TEXTS}  # the same text is not taken twice
    texts["northanger.txt"] = "\n".join(novels[:200])
    _write(folder, texts | dict.fromkeys(_SENTENCES, sentences) | _TABLES)
    for name in ("news/a.txt.gz", "more/b.txt.gz"):
        (folder / name).parent.mkdir()
        (folder / name).write_bytes(gzip.compress(f"{text}\n\nThe end of {name}.\n".encode()))
    tokenizer = Tokenizer.train(novels, VOCABULARY, "english")
    (folder / "my.model").write_bytes(tokenizer.model)
    text_file, model_file = str(folder / "my.txt"), str(folder / "my.model")
    prepare_corpus(PrepareSettings(source=(text_file,), tokenizer=model_file, out=str(folder / "corpus")))
    for name, model, head, to in _CHECKPOINTS:
        objective = "clm" if model.attn_type == "uni" else "plm"
        xlnet_jax.save(Pretrained(model, random_params(model, head), objective, head, tokenizer), folder / name, to)
    return folder


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_command_is_one_that_runs(page, files, tmp_path, monkeypatch):
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    ran_before = {kind_of(other) for other in commands_before(page)} - {None}
    failed = []
    for command in commands_on(page):
        try:
            settings = parse(command)
            if is_not_run(command):
                continue
            kind = kind_of(command)
            if page.name == "README.md" or kind not in ran_before:
                outcome = _exit_code(command)
            else:
                outcome = missing(settings)
                stand_in_for_run(settings)
            ran_before |= {kind} - {None}
        except InputError as mistake:
            outcome = mistake
        if outcome:
            failed.append(f"{command}: {outcome}")
    assert not failed, "\n".join(failed)


def test_no_reason_is_left_over():
    commands = [command for page in PAGES for command in commands_on(page)]
    assert [pattern for pattern in NOT_RUN if not any(re.search(pattern, command) for command in commands)] == []


def is_not_run(command):
    return any(re.search(pattern, command) for pattern in NOT_RUN)


def commands_before(page):
    """Return the commands of the pages before this one that are run."""
    before = [command for earlier in PAGES[: PAGES.index(page)] for command in commands_on(earlier)]
    return [command for command in before if not is_not_run(command)]


def kind_of(command):
    """Return the kind of a command that trains, which its settings make; None for a command that is quick."""
    settings = parse(command)
    if isinstance(settings, FinetuneConfig):
        return settings.task, bool(settings.train), bool(settings.predict)
    if isinstance(settings, CompareConfig):
        return "compare"
    return settings.objective if isinstance(settings, Config) else None


def missing(settings):
    """Return the names of files that a run with these settings reads and that are not here."""
    texts = ("train", "eval", "predict") if isinstance(settings, FinetuneConfig) else ("corpus", "validation")
    named = [name for field in texts for name in getattr(settings, field)]
    named += filter(None, (settings.init, settings.tokenizer))
    return [name for name in named if name != "tiny" and not Path(name).exists()]


def stand_in_for_run(settings):
    """Put a small model where a run with these settings would leave its own."""
    if isinstance(settings, CompareConfig):
        return
    is_finetuning = isinstance(settings, FinetuneConfig)
    folder = (finetune_config if is_finetuning else resolve).folder_of(settings)
    model = "finetuned" if is_finetuning else "causal" if settings.model.attn_type == "uni" else "austen-demo"
    if not Path(folder).exists():
        shutil.copytree(f"runs/{model}", folder)


def of_project(command):
    """Return the module and the words of a command of this project, with what is here in place of what is not."""
    for words, instead in SUBSTITUTES.items():
        command = command.replace(words, instead)
    module, *argv = shlex.split(command)[2:]
    return module, argv


@functools.cache
def parse(command):
    """Return the settings of a command of this project, or None for another. Raises InputError on a mistake."""
    if (
        not re.match(r"python -m (xlnet_jax|data_pipelines)\.", command)
        or "--help" in command
        or re.search(FORM, command)
    ):
        return None
    module, argv = of_project(command)
    return OF_MODULE[module].parse(argv)


def _exit_code(command):
    """Run a command, one of this project in this process."""
    if not command.startswith("python -m "):
        return subprocess.run(["bash", "-c", command], timeout=60).returncode
    module, argv = of_project(command)
    main = OF_MODULE[module].main
    argv += shlex.split(SMALLER.get(module, ""))
    if module == "xlnet_jax.train" and "--workdir" not in argv:  # one command a line, each for itself
        argv += ["--workdir", f"runs/{len(list(Path('runs').iterdir()))}"]
    if module == "xlnet_jax.train" and "--init" not in argv:
        argv += shlex.split(NETWORK)
        brings_tokenizer = "--tokenizer" in argv or any(is_corpus(word) for word in argv)
        argv += [] if brings_tokenizer else ["--model.vocab-size", str(VOCABULARY)]
    if module == "data_pipelines.tokenizer" and "--vocab-size" in argv:
        argv += ["--vocab-size", str(VOCABULARY)]
    try:
        return main(argv)
    except SystemExit as stop:  # --help
        return stop.code or 0


def _write(folder, texts):
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
