"""Checkpoints by the names that they have on the Hugging Face Hub, against a stand-in of it on this machine."""

import contextlib
import json
from dataclasses import replace

import pytest

import xlnet_jax
from data_pipelines.tokenizer import Tokenizer
from tests.hub import stand_in
from tests.web import TOKEN
from tests.xlnet_jax.random_models import BERT, SMALL, random_model
from xlnet_jax.interop.weights import flatten
from xlnet_jax.storage import hub as names

pytest.importorskip("huggingface_hub", reason="needs huggingface_hub: pip install -e '.[hub]'")

BASE, OTHER = "xlnet/xlnet-base-cased", "me/other"
NEEDED = ["config.json", "model.safetensors", "spiece.model", "tokenizer.json", "tokenizer_config.json"]
USELESS = ("tf_model.h5", "flax_model.msgpack", "rust_model.ot", "onnx/model.onnx", "pytorch_model.bin")


@pytest.fixture(scope="module")
def xlnet(tmp_path_factory):
    """A small XLNet, and the folder of Hugging Face that holds it."""
    tokenizer = Tokenizer.train(["the cat sat on a mat", "and purred"], 40, "none", token_level="character")
    model = random_model(replace(SMALL, vocab_size=tokenizer.vocab_size), tokenizer=tokenizer)
    folder = tmp_path_factory.mktemp("models") / "xlnet"
    xlnet_jax.save(model, folder, "hf")
    return model, folder


@pytest.fixture(scope="module")
def hub_and_client(tmp_path_factory, xlnet):
    with stand_in(tmp_path_factory.mktemp("home")) as (hub, client):
        hub.add(BASE, xlnet[1])
        for useless in USELESS:
            hub.models[BASE]["main"][useless] = b"not to be fetched"
        yield hub, client


@pytest.fixture
def hub(hub_and_client):
    hub = hub_and_client[0]
    hub.asked.clear()
    return hub


@pytest.fixture
def client(hub_and_client, hub):
    return hub_and_client[1]


@contextlib.contextmanager
def changed(client, **constants):
    """Change constants of the library in the client, which it reads from its environment when it is imported."""
    before = client(f"{{name: getattr(huggingface_hub.constants, name) for name in {list(constants)!r}}}")
    client(f"huggingface_hub.constants.__dict__.update({constants!r})")
    try:
        yield
    finally:
        client(f"huggingface_hub.constants.__dict__.update({before})")


def folder_with(folder, **files):
    folder.mkdir()
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)
    return folder


def bias(expression):
    return f"{expression}.params['output_bias'].tobytes().hex()"


@pytest.mark.parametrize(
    ("named", "texts"),
    [
        (True, ["xlnet/xlnet-base-cased", "xlnet-base-cased", "owner/name.v2@refs/pr/4"]),
        (False, ["./x", "/x", "a/b/c", "x/", "runs/mine", "x/y.json", "gs://b/c", "mine", "a@b/c"]),
    ],
)
def test_what_looks_like_a_path_is_no_name(named, texts):
    assert {names.is_name(text) for text in texts} == {named}


def test_a_model_is_loaded_by_its_name_and_only_needed_files_are_fetched(hub, client, xlnet):
    assert client(bias(f"xlnet_jax.load({BASE!r})")) == xlnet[0].params["output_bias"].tobytes().hex()
    assert hub.fetched() == sorted([".gitattributes", *NEEDED])
    assert client(bias("xlnet_jax.load('xlnet-base-cased')")) == xlnet[0].params["output_bias"].tobytes().hex()
    assert hub.fetched() == []  # the short name is the same model, and in the cache


def test_a_revision_is_that_of_the_name(hub, client, xlnet, tmp_path):
    changed = {**xlnet[0].params, "output_bias": xlnet[0].params["output_bias"] + 1}
    xlnet_jax.save(replace(xlnet[0], params=changed), tmp_path / "tuned", "hf")
    hub.add(BASE, tmp_path / "tuned", "refs/pr/4")
    expected = changed["output_bias"].tobytes().hex()
    assert client(bias(f"xlnet_jax.load('{BASE}@refs/pr/4')")) == expected
    assert client(bias(f"xlnet_jax.load('xlnet-base-cased@{hub.commit(BASE, 'refs/pr/4')}')")) == expected
    assert client(f"xlnet_jax.load('{BASE}@v9')") == f"{BASE} has no revision v9 on the Hugging Face Hub"


def test_a_path_wins(hub, client, xlnet):
    assert client(bias(f"xlnet_jax.load({str(xlnet[1])!r})")) == xlnet[0].params["output_bias"].tobytes().hex()
    assert "no such folder" in client(f"xlnet_jax.load(__import__('pathlib').Path({BASE!r}))")
    assert "no such folder" in client("xlnet_jax.load('runs/mine')")
    assert not hub.asked


def test_shards_are_fetched_by_their_index_and_only_those_that_are_missing(hub, client, tmp_path):
    model = random_model(BERT)
    xlnet_jax.save(model, tmp_path / "bert", "hf")
    from safetensors.numpy import load_file, save_file

    tensors = load_file(tmp_path / "bert" / "model.safetensors")
    (tmp_path / "bert" / "model.safetensors").unlink()
    where = {name: f"model-0000{i % 2 + 1}-of-00002.safetensors" for i, name in enumerate(sorted(tensors))}
    for shard in set(where.values()):
        save_file({name: t for name, t in tensors.items() if where[name] == shard}, tmp_path / "bert" / shard)
    (tmp_path / "bert" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    (tmp_path / "bert" / "model-00009-of-00009.safetensors").write_bytes(b"of another checkpoint")
    hub.add("google-bert/bert-base-uncased", tmp_path / "bert")
    hub.broken.add("model-00002-of-00002.safetensors")
    said = client("xlnet_jax.load('bert-base-uncased')")
    assert said.startswith("google-bert/bert-base-uncased: the download broke off: the Hugging Face Hub answered: ")
    assert [f for f in hub.fetched() if f.endswith(".safetensors")] == ["model-00001-of-00002.safetensors"]
    hub.broken.clear()
    assert client(bias("xlnet_jax.load('bert-base-uncased')")) == flatten(model.params)["output_bias"].tobytes().hex()
    assert [f for f in hub.fetched() if f.endswith(".safetensors")] == ["model-00002-of-00002.safetensors"]


def test_what_cannot_be_read_is_refused_before_weights_are_fetched(hub, client, tmp_path):
    hub.add("me/keras", folder_with(tmp_path / "keras", config__json="{}", tf_model__h5="", README__md=""))
    assert client("xlnet_jax.load('me/keras')") == (
        f"me/keras@{hub.commit('me/keras')} is not a readable checkpoint: looked for model.safetensors or "
        "pytorch_model.bin; found README.md, config.json, tf_model.h5"
    )
    hub.add("me/gpt", folder_with(tmp_path / "gpt", config__json='{"model_type": "gpt2"}', model__safetensors="x"))
    assert "model_type gpt2 is not supported, only xlnet, bert" in client("xlnet_jax.load('me/gpt')")
    assert not {"tf_model.h5", "model.safetensors"} & set(hub.fetched())


@pytest.mark.parametrize("pattern", ["*", "*.h5", "tf_model.h?", "tf_[m]odel.h5", "onnx/", "**"])
def test_an_index_fetches_no_more_than_the_files_that_it_names(hub, client, tmp_path, pattern):
    files = {"config__json": '{"model_type": "bert"}', "tf_model__h5": "large"}
    index = json.dumps({"weight_map": {"x": pattern}})
    folder = folder_with(tmp_path / "greedy", **files, model__safetensors__index__json=index)
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_text("large")
    hub.add("me/greedy", folder)
    said = client("xlnet_jax.load('me/greedy')")
    assert f"names {pattern!r}, which is a pattern and not a file" in said
    assert not {"tf_model.h5", "onnx/model.onnx"} & set(hub.fetched())


def test_a_name_is_no_pattern_to_the_library(hub, client, tmp_path):
    hub.add("me/plain", folder_with(tmp_path / "plain", **{"a[1]__bin": "1", "a1__bin": "2"}))
    client("hub.find('me/plain', ()).fetch(['a[1].bin'])")
    assert "a1.bin" not in hub.fetched()
    assert client("(hub.find('me/plain', ()).folder / 'a[1].bin').read_text()") == "1"


def test_a_name_that_nobody_knows_is_one_line_with_both_readings(hub, client, xlnet):
    neither = "there is no such file or folder here, and no such model on the Hugging Face Hub"
    private = "; a private model needs a token: run `hf auth login`, or set HF_TOKEN"
    assert client("xlnet_jax.load('me/nothing')") == f"me/nothing: {neither}{private}"
    assert client("xlnet_jax.load('xlnet/xlnet-base-case')").endswith("; did you mean xlnet-base-cased?")
    hub.add("me/gated", xlnet[1])
    hub.gated.add("me/gated")
    assert client("xlnet_jax.load('me/gated')") == (
        "me/gated: its owner has to grant you access: request it at "
        "https://huggingface.co/me/gated, then run `hf auth login`, or set HF_TOKEN"
    )


def test_without_network_the_cache_serves_what_it_has(hub, client, xlnet):
    client(f"xlnet_jax.load({BASE!r})")
    hub.add("me/half", xlnet[1])
    client("hub.find('me/half', ('config.json',))")
    hub.asked.clear()
    reasons = {
        "HF_HUB_OFFLINE": "HF_HUB_OFFLINE is set",
        "ENDPOINT": "the Hugging Face Hub cannot be reached",
    }
    for constant, value in {"HF_HUB_OFFLINE": True, "ENDPOINT": "http://127.0.0.1:1"}.items():  # nobody listens there
        with changed(client, **{constant: value}):
            assert client(bias(f"xlnet_jax.load({BASE!r})")) == xlnet[0].params["output_bias"].tobytes().hex()
            assert client("xlnet_jax.load('me/half')").endswith("pytorch_model.bin; found config.json")
            said = client("xlnet_jax.load('me/never')")
        there = "me/never: there is no such file or folder here, and the Hub gave none: "
        assert said.startswith(there + reasons[constant])
    assert not hub.asked


def test_a_run_keeps_the_commit_that_it_began_from(hub, client, xlnet):
    hub.add("me/start", xlnet[1])
    began = "[c := xlnet_jax.Config(), r := __import__('xlnet_jax.settings.resolution').settings.resolution.Resolution"
    began += ", b := __import__('xlnet_jax.training.initial').training.initial.begin_from]"
    first = f"me/start@{hub.commit('me/start')}"
    begin = "s := r(__import__('dataclasses').replace(c, init={!r})), b(s, {}), s.config.init)[-1]".format
    assert client(f"({began}, {begin('me/start', None)}") == first
    hub.models["me/start"]["main"]["README.md"] = b"moved on"
    there = f"__import__('dataclasses').replace(c, init={first!r})"
    hub.asked.clear()
    assert client(f"({began}, {begin('me/start', there)}") == first
    assert client(f"({began}, {begin(first, there)}") == first
    assert not hub.asked
    assert client(f"({began}, {begin('me/start@main', there)}") == f"me/start@{hub.commit('me/start')}" != first


def test_a_converted_model_is_uploaded_with_its_card(hub, client, xlnet, tmp_path):
    native, target = tmp_path / "native", tmp_path / "out"
    xlnet_jax.save(xlnet[0], native)
    convert = "__import__('importlib').import_module('xlnet_jax.__main__').COMMANDS['convert'].main({})".format
    words = [str(native), str(target), "--to", "hf", "--push", "me/mine"]
    token = "__import__('os').environ.{}".format
    assert client(convert(words)).startswith("--push me/mine: no Hugging Face token")
    client(token("update(HF_TOKEN='hf_wrong')"))
    assert client(convert(words)).startswith("--push me/mine: nothing can be uploaded: the Hugging Face Hub answered")
    assert not target.exists()
    client(token(f"update(HF_TOKEN={TOKEN!r})"))
    try:
        assert client(convert([*words[:2], "--to", "tf1", *words[4:]])).endswith("give --to hf")
        assert client(convert(words)) == "0"
        assert f"uploaded to {hub.url}/me/mine" in client.printed
        assert {f: c for f, c in hub.models["me/mine"]["main"].items() if f != ".gitattributes"} == {
            file.name: file.read_bytes() for file in target.iterdir()
        }
        assert client(bias("xlnet_jax.load('me/mine')")) == xlnet[0].params["output_bias"].tobytes().hex()
        hub.may_write = False
        again = tmp_path / "again"
        said = client(convert([words[0], str(again), *words[2:]]))
        assert "the Hugging Face Hub answered: 403 Forbidden" in said
        assert f"{again} is complete, `hf upload me/mine {again}` uploads it later" in said
    finally:
        hub.may_write = True
        client(token("pop('HF_TOKEN')"))
    assert 'xlnet_jax.load("me/mine")' in (target / "README.md").read_text()
