"""The recipe for the paper's mix of corpora (docs/recipes.md) runs on small samples with the file names, columns and
compression of the datasets that it names."""

import gzip
import json
import shlex
from pathlib import Path

import pytest

from data_pipelines import sources
from data_pipelines.corpus import Corpus
from tests.data_pipelines.test_remote import parquet
from tests.datasets import write_dataset
from tests.docs.test_commands import NETWORK, ROOT, SMALLER, commands_on
from tests.hub import serving_datasets
from tests.web import Dataset, Hub
from xlnet_jax.__main__ import COMMANDS

WEIGHTS = (0.085, 0.033, 0.144, 0.738)
SMALL = {
    "tokenizer": "--vocab-size 300",
    "prepare": "--block-len 200 --validation-fraction 0.1",
    "train": f"{SMALLER['train']} {NETWORK} --model.mem-len 8 --data.seq-len 32 --data.reuse-len 16 "
    "--data.perm-size 16 --data.num-predict 4 --data.windows-per-block 2",
}


def documents(number):
    """Return another part of a novel for each number, ten lines a document."""
    lines = [line for line in Path(sources.embedded()[0]).read_text().splitlines() if line]
    lines = lines[number * 250 : (number + 1) * 250]
    return ["\n".join(lines[i : i + 10]) for i in range(0, len(lines), 10)]


def wikipedia(texts):
    names = [str(number) for number in range(len(texts))]
    table = parquet(texts, id=names, url=names, title=names)
    splits = {"20231101.en": table, "20231101.de": b"not read"}
    files = {f"{name}/train-00000-of-00001.parquet": body for name, body in splits.items()}
    card = [{"config_name": name, "data_files": [{"split": "train", "path": f"{name}/train-*"}]} for name in splits]
    return Dataset({"main": files}, card)


def gutenberg(texts):
    files = {"data/en-00000-of-00002-0d1e.parquet": texts[::2], "data/en-00001-of-00002-2f3a.parquet": texts[1::2]}
    tables = {path: parquet(part, id=[f"{n}-0" for n in range(len(part))]) for path, part in files.items()}
    return Dataset({"main": {**tables, "data/de-00000-of-00001-4b5c.parquet": b"not read"}})


def news(texts):
    """A dataset of a script, of which the Hub made Parquet files."""
    table = parquet(texts, title=texts, domain=texts, date=texts, description=texts, url=texts, image_url=texts)
    script = {"cc_news.py": b"raise SystemExit('code was run')"}
    return Dataset({"main": script, "refs/convert/parquet": {"plain_text/train/0000.parquet": table}})


def c4(**configs):
    files = {}
    for config, texts in configs.items():
        rows = [{"text": text, "timestamp": "2019-04-25T12:57:54Z", "url": "https://a.b/"} for text in texts]
        for shard, part in enumerate((rows[::2], rows[1::2])):
            body = "".join(json.dumps(row) + "\n" for row in part)
            files[f"{config}/c4-train.{shard:05d}-of-01024.json.gz"] = gzip.compress(body.encode())
        files[f"{config}/c4-validation.00000-of-00008.json.gz"] = b"not read"
    return Dataset({"main": {**files, "en/c4-train.00100-of-01024.json.gz": b"not read"}})


@pytest.fixture
def hub(monkeypatch):
    datasets = {
        "wikimedia/wikipedia": wikipedia(documents(0)),
        "manu/project_gutenberg": gutenberg(documents(1)),
        "allenai/c4": c4(en=documents(2), realnewslike=documents(3)),
        "vblagoje/cc_news": news(documents(4)),
    }
    with serving_datasets(Hub(datasets=datasets), monkeypatch) as started:
        yield started


def test_the_commands_of_the_mix_run_on_samples_of_the_same_forms(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "mix.md"
    page.write_text((ROOT / "docs/recipes.md").read_text().partition("## The paper's mix")[2])
    commands = [shlex.split(line) for line in commands_on(page) if line.startswith("python")]
    assert [words[2].rpartition(".")[2] for words in commands] == ["tokenizer", "prepare", "train"]
    for _, _, module, *words in commands:
        name = module.rpartition(".")[2]
        assert COMMANDS[name].main(words + shlex.split(SMALL[name])) == 0
    manifest = Corpus(tmp_path / "mix").manifest
    assert manifest.sources == ("wikimedia-wikipedia-20231101.en", "data", "realnewslike", "en")
    assert manifest.weights == WEIGHTS
    assert min(manifest.splits["train"].source_blocks) > 5


def test_the_other_sources_of_the_page_are_read_by_their_names(hub, tmp_path, monkeypatch):
    monkeypatch.setattr("tensorflow_datasets.core.constants.DATA_DIR", str(tmp_path))

    def lines(*names):
        return [line for line in sources.read_lines(sources.find(names)) if line]

    page = (ROOT / "docs/recipes.md").read_text()
    rows = [{"text": text, "url": "u", "timestamp": "t"} for text in documents(2)]
    text = dict.fromkeys(("text", "url", "timestamp"), lambda features: features.Text())
    write_dataset(tmp_path / "c4/en/3.1.0", "c4", {"train": rows}, **text)
    for name, number in (("tfds:c4/en", 2), ("hf:vblagoje/cc_news", 4)):
        assert f"`{name}`" in page
        assert lines(name) == "\n".join(documents(number)).splitlines()
