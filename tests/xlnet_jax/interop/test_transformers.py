"""Against Hugging Face itself: what we write it loads, what it writes we load, and both give the same numbers."""

import dataclasses
import io
import json
import pickle
import warnings
import zipfile

import jax
import numpy as np
import pytest

import xlnet_jax
from tests.xlnet_jax.random_models import HEADS, SMALL, random_model
from xlnet_jax.models.heads import XLNetLM
from xlnet_jax.models.inputs import dense_inputs, text_inputs

torch = pytest.importorskip("torch", reason="needs the extra [bench]: pip install -e '.[bench]'")
transformers = pytest.importorskip("transformers", reason="needs the extra [bench]: pip install -e '.[bench]'")

LOGITS = 1e-5  # absolute, float32
UNUSUAL = {
    "pad_token_id": 3, "bos_token_id": 7, "eos_token_id": 8, "initializer_range": 0.05, "layer_norm_eps": 1e-6,
    "classifier_dropout": 0.25, "summary_last_dropout": 0.35, "summary_type": "first", "use_mems_eval": False,
    "start_n_top": 4, "problem_type": "single_label_classification",
}  # fmt: skip
"""Settings of theirs, with and without a meaning for us; all others are dropped (test_strangers_settings.py)"""
CLASSES = {
    "classification": "XLNetForSequenceClassification",
    "no_projection": "XLNetForSequenceClassification",
    "regression": "XLNetForSequenceClassification",
    "multiple_choice": "XLNetForMultipleChoice",
    "token_classification": "XLNetForTokenClassification",
    "span": "XLNetForQuestionAnsweringSimple",
}


def settings_in(folder):
    settings = json.loads((folder / "config.json").read_text())
    return {name: value for name, value in settings.items() if name != "transformers_version"}  # not written by us


def loaded_by_transformers(folder, name):
    model, info = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    return model.eval()


def random_window(seed=0):
    rng = np.random.default_rng(seed)
    ids = rng.integers(9, SMALL.vocab_size, (2, 8)).astype(np.int32)
    order = rng.random((2, 8)).argsort(1)
    perm_mask = (order[:, None, :] >= order[:, :, None]).astype(np.float32)
    positions = np.sort(rng.random((2, 8)).argsort(1)[:, :3], axis=1)
    mapping = np.eye(8, dtype=np.float32)[positions]
    segments = (np.arange(8) > 4).astype(np.int32)[None].repeat(2, 0)
    mems = rng.normal(size=(SMALL.num_layers, 2, SMALL.mem_len, SMALL.d_model)).astype(np.float32)
    return ids, segments, perm_mask, mapping, mems


def as_torch(array):
    return torch.as_tensor(np.asarray(array)).long() if np.asarray(array).dtype.kind == "i" else torch.as_tensor(array)


@pytest.mark.parametrize("changes", [{}, {"untie_r": False, "activation": "relu"}, {"activation": "gelu_erf"}])
def test_our_language_model_gives_the_same_logits_and_memory_there(tmp_path, changes):
    ours = random_model(dataclasses.replace(SMALL, **changes))
    xlnet_jax.save(ours, tmp_path / "hf", "hf")
    theirs = loaded_by_transformers(tmp_path / "hf", "XLNetLMHeadModel")
    ids, segments, perm_mask, mapping, mems = random_window()
    with torch.no_grad():
        expected = theirs(
            as_torch(ids),
            token_type_ids=as_torch(segments),
            perm_mask=as_torch(perm_mask),
            target_mapping=as_torch(mapping),
            mems=[as_torch(m.swapaxes(0, 1).copy()) for m in mems],
            use_mems=True,
        )

    @jax.jit
    def run(params):
        inputs = dense_inputs(
            ids, segment_ids_BL=segments, perm_mask_BLL=perm_mask, target_mapping_BPL=mapping,
            memory_BM=np.ones(mems.shape[1:3], bool),
        )  # fmt: skip
        return XLNetLM(ours.model).apply({"params": params}, inputs, mems, reuse_len=ours.reuse_len)

    logits, outputs = jax.device_get(run(ours.params))
    np.testing.assert_allclose(logits, expected.logits, rtol=0, atol=LOGITS)
    for layer, their_mems in enumerate(expected.mems):
        np.testing.assert_allclose(outputs.new_mems_ZBMD[layer], their_mems.swapaxes(0, 1), rtol=0, atol=LOGITS)


def our_scores(model, ids, segments):
    extra = () if model.head.task == "token_classification" else (np.ones_like(ids),)

    @jax.jit
    def run(params):
        return model.network.apply({"params": params}, text_inputs(ids, segment_ids_BL=segments), *extra)

    return np.asarray(run(model.params))


def their_scores(model, name, ids, segments):
    shape = (1, 4, 8) if name == "multiple_choice" else ids.shape
    with torch.no_grad():
        outputs = model(as_torch(ids).reshape(shape), token_type_ids=as_torch(segments).reshape(shape))
    if name == "span":
        return torch.stack([outputs.start_logits, outputs.end_logits], -1).numpy()
    return outputs.logits.numpy()


@pytest.mark.parametrize("name", CLASSES)
def test_heads_give_the_same_scores_both_ways(tmp_path, name):
    """Ours written and loaded there; theirs, written there, loaded here."""
    ids = np.random.default_rng(0).integers(9, 40, (4, 8)).astype(np.int32)
    segments = (np.arange(8) > 4).astype(np.int32)[None].repeat(4, 0)
    ours = random_model(head=HEADS[name])
    xlnet_jax.save(ours, tmp_path / "ours", "hf")
    theirs = loaded_by_transformers(tmp_path / "ours", CLASSES[name])
    expected = their_scores(theirs, name, ids, segments)
    scores = our_scores(ours, ids, segments)
    np.testing.assert_allclose(scores, expected.reshape(scores.shape), rtol=0, atol=LOGITS)
    theirs.save_pretrained(tmp_path / "theirs")
    back = xlnet_jax.load(tmp_path / "theirs")
    assert back.head.task == ours.head.task
    np.testing.assert_array_equal(our_scores(back, ids, segments), scores)


def test_question_answering_gives_the_same_start_beam_there(tmp_path):
    ours = random_model(head=HEADS["question_answering"])
    xlnet_jax.save(ours, tmp_path / "hf", "hf")
    theirs = loaded_by_transformers(tmp_path / "hf", "XLNetForQuestionAnswering")
    ids, segments, *_ = random_window()
    cls_index, excluded = np.array([7, 7], np.int32), np.zeros((2, 8), np.float32)
    with torch.no_grad():
        expected = theirs(as_torch(ids), token_type_ids=as_torch(segments), cls_index=as_torch(cls_index))

    @jax.jit
    def run(params):
        inputs = text_inputs(ids, segment_ids_BL=segments)
        return ours.network.apply({"params": params}, inputs, cls_index, excluded, 5, 5, method="beam")

    beam = jax.device_get(run(ours.params))
    np.testing.assert_array_equal(beam["start_index"], expected.start_top_index)
    np.testing.assert_allclose(np.exp(beam["start_log_probs"]), expected.start_top_log_probs, rtol=0, atol=LOGITS)
    np.testing.assert_allclose(beam["unanswerable"], expected.cls_logits, rtol=0, atol=LOGITS)


@pytest.mark.parametrize("kind", ["sharded", "torch", "bfloat16", "bare"])
def test_what_transformers_writes_is_read(tmp_path, kind):
    config = transformers.XLNetConfig(
        vocab_size=40, d_model=24, n_layer=3, n_head=4, d_inner=20, ff_activation="gelu_new", mem_len=5
    )
    theirs = transformers.XLNetModel(config) if kind == "bare" else transformers.XLNetLMHeadModel(config)
    theirs = theirs.eval().to(torch.bfloat16) if kind == "bfloat16" else theirs.eval()
    theirs.save_pretrained(tmp_path, **({"max_shard_size": "8KB"} if kind == "sharded" else {}))
    if kind == "sharded":
        assert (tmp_path / "model.safetensors.index.json").exists()
    if kind == "torch":
        (tmp_path / "model.safetensors").unlink()
        torch.save(theirs.state_dict(), tmp_path / "pytorch_model.bin")
    loaded = xlnet_jax.load(tmp_path, partial=kind == "bare")
    ids, segments, *_ = random_window()
    with torch.no_grad():
        body = theirs if kind == "bare" else theirs.transformer
        expected = body.float()(as_torch(ids), token_type_ids=as_torch(segments)).last_hidden_state
    hidden = loaded.hidden_states(ids, np.ones_like(ids), segments)
    np.testing.assert_allclose(hidden, expected, rtol=0, atol=LOGITS)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("pickle", ""),
        ("views", r"it claims [\d,]+ bytes"),
        ("compression", "is compressed or larger than the file"),
    ],
)
def test_a_hostile_torch_file_is_refused_without_a_warning(tmp_path, kind, message):
    theirs = transformers.XLNetLMHeadModel(transformers.XLNetConfig(vocab_size=40, d_model=24, n_layer=1, n_head=4))
    theirs.config.save_pretrained(tmp_path)
    tensors, file = dict(theirs.state_dict()), tmp_path / "pytorch_model.bin"
    if kind == "views":
        tensors["lm_loss.bias"] = torch.zeros(1).expand(10**12)
    torch.save(tensors, file)
    if kind == "pickle":
        file.write_bytes(pickle.dumps(print, protocol=4))
    elif kind == "compression":
        given = zipfile.ZipFile(io.BytesIO(file.read_bytes()))
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
            for name in given.namelist():
                packed.writestr(name, given.read(name))
    refused = pytest.raises(xlnet_jax.InputError, match=rf"pytorch_model\.bin is damaged: .*{message}")
    with warnings.catch_warnings(record=True) as warned, refused:
        warnings.simplefilter("always")
        xlnet_jax.load(tmp_path)
    assert warned == []


@pytest.mark.parametrize(
    "name", ["XLNetLMHeadModel", "XLNetForSequenceClassification", "XLNetForQuestionAnsweringSimple"]
)
def test_every_setting_of_theirs_comes_back_by_a_native_checkpoint(name, tmp_path):
    kind = getattr(transformers, name)
    unusual = UNUSUAL | {"num_labels": 3, "mem_len": 7, "reuse_len": 3, "clamp_len": 9, "dropout": 0.13}
    sizes = {"vocab_size": 40, "d_model": 24, "n_layer": 1, "n_head": 4, "d_inner": 20}
    kind(transformers.XLNetConfig(**unusual, **sizes)).save_pretrained(tmp_path / "theirs")
    xlnet_jax.save(xlnet_jax.load(tmp_path / "theirs"), tmp_path / "ours")
    xlnet_jax.save(xlnet_jax.load(tmp_path / "ours"), tmp_path / "again", "hf")
    again = settings_in(tmp_path / "again")
    assert ("auto_map" in again) == (name == "XLNetLMHeadModel")  # test_any_order_code.py
    again.pop("auto_map", None)
    expected = settings_in(tmp_path / "theirs") | {"untie_r": True}  # 5 does not write it
    if name == "XLNetLMHeadModel":  # which has no labels
        del expected["id2label"], expected["label2id"]
    assert again == expected
