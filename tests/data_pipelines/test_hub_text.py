"""Datasets of the Hugging Face Hub are read as Parquet files at one commit, which the corpus records."""

import json
from types import SimpleNamespace

import pytest

from data_pipelines import sources
from data_pipelines.remote import divide
from data_pipelines.tokenizer import Tokenizer
from tests.data_pipelines import corpus_of
from tests.data_pipelines.test_remote import parquet
from tests.hub import serving_datasets
from tests.web import Dataset, Hub
from xlnet_jax.errors import InputError, exit_code
from xlnet_jax.settings.common import TextSourceSettings

STORY = [
    f"It was dusk on day {n}, and nobody in the house had yet spoken of the letter, or of {n * n} ships."
    for n in range(300)
]
OTHER = [text.replace("letter", "storm") for text in STORY]


def shards(split, *texts):
    return {f"data/{split}-{i:05d}-of-{len(texts):05d}.parquet": parquet(given) for i, given in enumerate(texts)}


def wikitext():
    """A dataset whose card divides its files."""
    splits = ("train", "validation")
    configs = {"old": OTHER, "new-v1": STORY}
    files = {f"{name}/{split}.parquet": parquet(texts) for name, texts in configs.items() for split in splits}
    card = [
        {"config_name": name, "data_files": [{"split": split, "path": f"{name}/{split}*"} for split in splits]}
        for name in configs
    ]
    return Dataset({"main": files}, card)


@pytest.fixture
def hub(monkeypatch):
    pushed = {"README.md": b"", **shards("train", STORY[:200], STORY[200:]), **shards("test", OTHER)}
    converted = {"default/train/0000.parquet": parquet(STORY), "default/partial-test/0000.parquet": parquet(OTHER)}
    scripted = {"script.py": b"raise SystemExit('code was run')", "all.zip": b""}
    datasets = {
        "me/story": Dataset({"main": pushed}),
        "Salesforce/wikitext": wikitext(),
        "me/script": Dataset({"main": scripted, "refs/convert/parquet": converted}),
        "me/zip": Dataset({"main": {"all.zip": b""}}),
    }
    with serving_datasets(Hub(datasets=datasets, moved={"wikitext": "Salesforce/wikitext"}), monkeypatch) as started:
        yield started


def texts_of(name, split="train", field="text"):
    return [
        line for line in sources.read_lines(sources.find([name], TextSourceSettings(text_field=field), split)) if line
    ]


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("hf:me/story", STORY),
        ("hf:me/story:test", OTHER),
        ("hf:wikitext/new-v1:validation", STORY),
        ("hf:Salesforce/wikitext/old", OTHER),
        ("hf:me/script:train", STORY),
        ("hf://datasets/me/story/data/test-*.parquet", OTHER),
        ("hf://datasets/me/story", OTHER + STORY),
    ],
)
def test_a_dataset_is_read_by_its_name(hub, name, texts):
    assert texts_of(name) == texts


def test_a_private_dataset_is_read_with_a_token(hub, monkeypatch):
    hub.private["me/story"] = "hf_mine"
    with pytest.raises(InputError, match=r"it does not exist, or you have no permission to read it .* set HF_TOKEN"):
        texts_of("hf:me/story")
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    assert texts_of("hf:me/story") == STORY


def test_every_file_is_at_one_commit(hub):
    dataset = hub.datasets["me/story"]
    old = dataset.commit("main")
    found = [sources.find([name]) for name in ("hf:me/story", "hf://datasets/me/story/data/train*")]
    dataset.revisions["main"] = shards("train", OTHER)
    for (source,) in found:
        assert all(f"@{old}/" in unit.path for unit in source.units)
    for read in (found[0], sources.find([f"hf:me/story@{old}"])):
        assert [line for line in sources.read_lines(read) if line] == STORY
    assert texts_of("hf:me/story") == OTHER


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "hf:me/none",
            r"you have no permission to read it \(HTTP 401\): log in with `hf auth login`, or set HF_TOKEN",
        ),
        ("hf:wikitext", "no configuration default, only old, new-v1; use the form hf:Salesforce/wikitext/CONFIG"),
        ("hf:me/story:none", "no split none in its configuration default, only test, train; use the form hf:me/story/"),
        ("hf:me/zip", "no configuration default, only nothing in Parquet"),
        ("hf:me/story@none", r"no such file, commit or host \(HTTP 404\)"),
        ("hf://datasets/me/story/none.txt", "no such file, commit or host"),
    ],
)
def test_what_the_hub_does_not_have_is_told_in_one_line(hub, name, message):
    with pytest.raises(InputError, match=message) as error:
        sources.find([name])
    assert exit_code(error.value) == 2
    assert "\n" not in str(error.value)


def test_a_corpus_records_its_commit_and_goes_on_without_reading_the_text_again(hub, tmp_path):
    tokenizer = Tokenizer.train(iter(STORY), 120, "nfkc")
    dataset = hub.datasets["me/story"]
    commit = dataset.commit("main")
    made = corpus_of(["hf:me/story"], tokenizer, tmp_path / "corpus")
    (origin,) = json.loads((tmp_path / "corpus/manifest.json").read_text())["origins"]["train"]
    assert (origin["name"], origin["commit"]) == ("hf:me/story", commit)
    assert [(path.partition("@")[2], size) for path, size, version in origin["files"] if version] == [
        (f"{commit}/{path}", len(body)) for path, body in shards("train", STORY[:200], STORY[200:]).items()
    ]

    hub.asked.clear()
    dataset.revisions["main"] = {**dataset.revisions["main"], "README.md": b"# More words"}
    for name in ("hf:me/story", f"hf:me/story@{commit}", "hf:me/story/default:train"):
        assert corpus_of([name], tokenizer, tmp_path / "corpus").manifest == made.manifest
    assert not [path for _, path, _ in hub.asked if "/resolve/" in path]

    dataset.revisions["main"] = shards("train", OTHER)
    assert corpus_of(["hf:me/story"], tokenizer, tmp_path / "corpus").manifest == made.manifest
    with pytest.raises(InputError, match="its training text differs"):
        corpus_of(["hf:me/story/default"], tokenizer, tmp_path / "corpus")


DEEP = ["a/b/y.parquet", "a/x.parquet"]


@pytest.mark.parametrize(
    ("paths", "card", "found"),
    [
        (["a.parquet", "b/c.parquet"], [], {"default": {"train": ["a.parquet", "b/c.parquet"]}}),
        (["dev.parquet", "t/x.parquet"], [], {"default": {"validation": ["dev.parquet"], "train": ["t/x.parquet"]}}),
        (["de/test/0000.parquet"], [], {"de": {"test": ["de/test/0000.parquet"]}}),
        (["a.csv"], [], {}),
        (DEEP, [{"config_name": "c", "data_files": "a/*.parquet"}], {"c": {"train": ["a/x.parquet"]}}),
        (DEEP, [{"data_files": ["./a/**"]}], {"default": {"train": DEEP}}),
        (["a/test/x.parquet"], [{"config_name": "c", "data_dir": "a"}], {"c": {"test": ["a/test/x.parquet"]}}),
        (["a.csv", "b.parquet"], [{"config_name": "csv", "data_files": "a.csv"}], {}),
    ],
)  # fmt: skip
def test_files_are_divided_as_the_hub_divides_them(paths, card, found):
    siblings = [SimpleNamespace(rfilename=path) for path in paths]
    assert divide(SimpleNamespace(siblings=siblings, card_data={"configs": card})) == found
