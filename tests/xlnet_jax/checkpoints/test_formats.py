"""Checkpoints go from format to format and come back bit for bit; what does not fit is named and refused."""

import dataclasses
import functools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import xlnet_jax
from tests.xlnet_jax.random_models import HEADS, SMALL, random_model
from tests.xlnet_jax.reference_cases import padded_at_the_end
from xlnet_jax.checkpoints import formats
from xlnet_jax.errors import InputError
from xlnet_jax.interop import tf1
from xlnet_jax.interop.weights import flatten, to_theirs
from xlnet_jax.models.heads import XLNetLM
from xlnet_jax.models.inputs import dense_inputs
from xlnet_jax.settings.config import HeadConfig


def assert_same(ours, theirs):
    assert flatten(ours.params).keys() == flatten(theirs.params).keys()
    jax.tree.map(np.testing.assert_array_equal, ours.params, theirs.params)


def holds(fmt, head):
    if fmt == "hf":
        return head is None or head.summary != "attn"
    return fmt == "native" or head is None or head.task != "token_classification"


@pytest.mark.parametrize(("name", "untie_r"), [*((name, True) for name in HEADS), ("lm", False)])
@pytest.mark.parametrize("fmt", ["native", "hf", "tf1"])
def test_every_network_comes_back_bit_for_bit(tmp_path, fmt, name, untie_r):
    head = HEADS[name]
    model = random_model(dataclasses.replace(SMALL, untie_r=untie_r), head)
    if not holds(fmt, head):
        with pytest.raises(InputError, match=r"cannot hold|has no head"):
            xlnet_jax.save(model, tmp_path / "x", fmt)
        assert not list(tmp_path.iterdir())
        return
    xlnet_jax.save(model, tmp_path / "x", fmt)
    back = xlnet_jax.load(tmp_path / "x")
    assert_same(back, model)
    sizes = {"mem_len", "dropout", "attention_dropout"} if fmt == "tf1" else set()
    for field in dataclasses.fields(SMALL):
        if field.name not in sizes:
            assert getattr(back.model, field.name) == getattr(model.model, field.name), field.name
    if fmt == "native":
        read = formats.load(tmp_path / "x")
        assert read == dataclasses.replace(model, params=read.params)
    elif fmt == "hf":
        assert back.head == head
        assert back.reuse_len == 4
    elif head:
        assert (back.head.task, back.head.num_labels) == (head.task, head.num_labels)
        assert back.head.scope == head.scope


@pytest.mark.parametrize("source", ["tf/xlnet_model.ckpt", "tf_train"])
def test_tf1_native_hf_native_tf1_is_bit_exact(reference, tmp_path, source):
    model = xlnet_jax.load(reference / "ckpt" / source)
    for i, fmt in enumerate(("native", "hf", "native", "tf1")):
        xlnet_jax.save(model, tmp_path / str(i), fmt)
        model = xlnet_jax.load(tmp_path / str(i))
    expected = np.load(reference / "ckpt" / "expected.npz")
    variables = to_theirs(model.params, tf1.weights(model.model, None))
    theirs = {k.removeprefix("weights/"): expected[k] for k in expected.files if k.startswith("weights/")}
    assert variables.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(variables[name], value)


@pytest.mark.parametrize("source", ["tf", "hf"])
def test_a_loaded_checkpoint_gives_the_originals_logits_and_memory(reference, source):
    model = xlnet_jax.load(reference / "ckpt" / source)
    arrays = np.load(reference / "ckpt" / "expected.npz")
    given = {k.rpartition("/")[2]: jnp.asarray(arrays[k]) for k in arrays.files if k.startswith("pretrain/inputs/")}
    mems = jnp.stack([jnp.swapaxes(given[f"mems_{i}"], 0, 1) for i in range(3)])
    rows = len(given["input_k"])
    inputs = dense_inputs(
        given["input_k"],
        segment_ids_BL=given["seg_id"],
        perm_mask_BLL=given["perm_mask"],
        target_mapping_BPL=padded_at_the_end(given["target_mapping"]),
        is_reversed_B=jnp.arange(rows) >= rows // 2,
        memory_BM=jnp.ones((rows, mems.shape[2]), bool),
    )
    network = XLNetLM(dataclasses.replace(model.model, mem_len=12))
    read = jax.jit(functools.partial(network.apply, reuse_len=8))
    logits, outputs = jax.device_get(read({"params": model.params}, inputs, mems))
    real = np.asarray(given["target_mapping"].any(-1))
    expected = np.swapaxes(arrays["pretrain/outputs/logits"], 0, 1)
    np.testing.assert_allclose(logits[real], expected[real], rtol=0, atol=2e-5)
    for i in range(3):
        theirs = np.swapaxes(arrays[f"pretrain/outputs/new_mems_{i}"], 0, 1)
        np.testing.assert_allclose(outputs.new_mems_ZBMD[i], theirs, rtol=0, atol=2e-5)

    ids, padding, segments = (arrays[f"finetune/inputs/{k}"] for k in ("input_ids", "input_mask", "segment_ids"))
    hidden = model.hidden_states(ids, 1 - padding, segments)
    theirs = np.swapaxes(arrays["finetune/outputs/final"], 0, 1)
    np.testing.assert_allclose(hidden[padding == 0], theirs[padding == 0], rtol=0, atol=2e-5)


def edit_hf(folder, change):
    file = folder / "model.safetensors"
    tensors = dict(safetensors.numpy.load_file(file))
    change(tensors)
    safetensors.numpy.save_file(tensors, file, metadata={"format": "pt"})


def edit_config(folder, **changes):
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | changes))


@pytest.fixture
def hf_folder(tmp_path):
    xlnet_jax.save(random_model(), tmp_path / "hf", "hf")
    return tmp_path / "hf"


def test_what_does_not_fit_is_listed_and_refused_unless_partial(hf_folder):
    def change(tensors):
        tensors["transformer.layer.1.rel_attn.new"] = np.zeros(3, np.float32)
        del tensors["lm_loss.bias"]
        tensors["transformer.layer.2.ff.layer_2.bias"] = np.zeros(25, np.float32)

    edit_hf(hf_folder, change)
    with pytest.raises(InputError) as refused:
        xlnet_jax.load(hf_folder)
    assert "1 missing: lm_loss.bias" in str(refused.value)
    assert "1 unknown: transformer.layer.1.rel_attn.new" in str(refused.value)
    assert "transformer.layer.2.ff.layer_2.bias is 25, not 24" in str(refused.value)

    loaded = xlnet_jax.load(hf_folder, partial=True)
    assert any("lm_loss.bias" in note for note in loaded.notes)
    assert any("newly initialized" in note for note in loaded.notes)
    whole = random_model().params
    kept, expected = (p["backbone"]["layers"]["feed_forward"]["outer"]["bias"] for p in (loaded.params, whole))
    np.testing.assert_array_equal(kept[:2], expected[:2])  # only layer 2 was of another shape
    assert not kept[2].any()
    assert not loaded.params["output_bias"].any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_layer": 4}, r"incomplete: 17 missing: transformer\.layer\.3\.rel_attn\.q, .*, …"),
        ({"n_layer": 10**9}, r"declares 1,000,000,000 layers, but holds only \d+ arrays"),
        ({"n_head": None}, "num_heads` None must be a whole number"),
        ({"ff_activation": "silu"}, "ff_activation silu is not supported"),
        ({"reuse_len": "all"}, "reuse_len 'all'"),
    ],
)
def test_a_config_that_contradicts_the_weights_or_has_wrong_kinds_is_refused(hf_folder, changes, message):
    edit_config(hf_folder, **changes)
    with pytest.raises(InputError, match=message):
        xlnet_jax.load(hf_folder)


def test_hugging_faces_gelu_is_the_exact_one_unless_told_otherwise(hf_folder, tmp_path):
    edit_config(hf_folder, ff_activation="gelu")
    loaded = xlnet_jax.load(hf_folder)
    assert loaded.model.activation == "gelu_erf"
    assert any("for those give `activation` gelu" in note for note in loaded.notes)
    with pytest.raises(InputError, match="the 2019 code cannot hold activation gelu_erf"):
        xlnet_jax.save(loaded, tmp_path / "tf", "tf1")
    assert xlnet_jax.load(hf_folder, activation="gelu").model.activation == "gelu"


def test_an_output_embedding_of_its_own_is_refused(hf_folder):
    edit_hf(hf_folder, lambda t: t.update({"lm_loss.weight": t["transformer.word_embedding.weight"] + 1}))
    with pytest.raises(InputError, match=r"lm_loss\.weight differs from transformer\.word_embedding\.weight"):
        xlnet_jax.load(hf_folder)


def test_a_folder_without_a_checkpoint_says_what_was_looked_for(tmp_path):
    (tmp_path / "readme.txt").write_text("nothing")
    with pytest.raises(InputError, match=r"no checkpoint in .*looked for params/ .*\*\.index .*model\.safetensors"):
        xlnet_jax.load(tmp_path)
    with pytest.raises(InputError, match=r"no such folder.*base-cased\)$"):
        xlnet_jax.load(tmp_path / "nowhere")
    (tmp_path / "austen-demo").mkdir()
    with pytest.raises(InputError, match=rf"no such folder.*; did you mean {tmp_path / 'austen-demo'}\?$"):
        xlnet_jax.load(tmp_path / "austen-dmo")


@pytest.mark.parametrize(
    ("fmt", "file"),
    [("hf", "model.safetensors"), ("tf1", "*.data-00000-of-00001"), ("tf1", "*.index"), ("native", "params/**/d/*")],
)
def test_a_truncated_file_ends_in_one_line(tmp_path, fmt, file):
    xlnet_jax.save(random_model(), tmp_path / "x", fmt)
    victim = next((tmp_path / "x").glob(file))
    victim.write_bytes(victim.read_bytes()[: victim.stat().st_size // 2])
    with pytest.raises(InputError, match="is damaged: ") as refused:
        xlnet_jax.load(tmp_path / "x")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("task", "labels"), [("regression", 1), ("classification", 2), ("multilabel", 2)])
def test_one_label_is_a_number_and_two_are_classes(tmp_path, task, labels):
    head = HeadConfig(task, labels, labels=("bad", "good")[:labels] if labels > 1 else ())
    xlnet_jax.save(random_model(SMALL, head), tmp_path / "x", "hf")
    assert xlnet_jax.load(tmp_path / "x").head == head


def test_labels_have_the_numbers_of_the_file_in_whatever_order_they_stand(tmp_path):
    xlnet_jax.save(random_model(SMALL, HEADS["classification"]), tmp_path / "x", "hf")
    config = json.loads((tmp_path / "x" / "config.json").read_text())
    config["id2label"] = {"2": "c", "0": "a", "1": "b"}
    (tmp_path / "x" / "config.json").write_text(json.dumps(config))
    assert xlnet_jax.load(tmp_path / "x").head.labels == ("a", "b", "c")


@pytest.mark.parametrize("changes", [{"layer_norm_eps": 1e-6}, {"activation": "gelu_erf"}])
def test_what_the_2019_code_cannot_hold_is_refused(tmp_path, changes):
    with pytest.raises(InputError, match="the 2019 code cannot hold"):
        xlnet_jax.save(random_model(dataclasses.replace(SMALL, **changes)), tmp_path / "x", "tf1")


def test_the_newest_checkpoint_of_2019_is_that_of_the_latest_step(tmp_path):
    for step in (9, 10):
        (tmp_path / f"model.ckpt-{step}.index").touch()
    assert tf1._newest(tmp_path).name == "model.ckpt-10"


@pytest.mark.parametrize("name", ["run[1]", "*", "?"])
def test_the_name_of_a_checkpoint_of_2019_is_no_pattern(tmp_path, name):
    (tmp_path / f"{name}.ckpt.index").write_bytes(b"")
    with pytest.raises(InputError, match=r"TensorFlow takes a name with \*, \? or \[ for a pattern: rename it"):
        xlnet_jax.load(tmp_path)


def test_a_tokenizer_of_another_vocabulary_is_refused(hf_folder, reference):
    shutil.copy(reference / "data" / "spiece.model", hf_folder)
    with pytest.raises(InputError, match=r"tokenizer has 800 pieces and its weights 40: they do not belong together"):
        xlnet_jax.load(hf_folder)


def test_an_index_is_believed_or_refused(hf_folder):
    (hf_folder / "model.safetensors").rename(hf_folder / "a.safetensors")
    names = list(safetensors.numpy.load_file(hf_folder / "a.safetensors"))
    index = hf_folder / "model.safetensors.index.json"
    for weight_map, message in (
        ({"x": 3}, r"index\.json is damaged"),
        ({"x": "../a.safetensors"}, "which is not in"),
        ({"x": "b.safetensors"}, r"b\.safetensors is missing"),
    ):
        index.write_text(json.dumps({"weight_map": weight_map}))
        with pytest.raises(InputError, match=message):
            xlnet_jax.load(hf_folder)
    index.write_text(json.dumps({"weight_map": dict.fromkeys(names, "a.safetensors")}))
    assert_same(xlnet_jax.load(hf_folder), random_model())


def test_what_contradicts_itself_is_not_written(tmp_path):
    model = random_model()
    short = dataclasses.replace(model, params={"backbone": model.params["backbone"]})
    with pytest.raises(InputError, match="1 missing: output_bias"):
        xlnet_jax.save(short, tmp_path / "x")
    with pytest.raises(InputError, match="num_layers` 0 must be at least 1"):
        xlnet_jax.save(dataclasses.replace(model, model=dataclasses.replace(SMALL, num_layers=0)), tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_an_os_error_that_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(OSError, match="No space left"):
        xlnet_jax.save(random_model(), tmp_path / "x")
    assert not list(tmp_path.iterdir())
