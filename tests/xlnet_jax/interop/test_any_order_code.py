"""The code in an exported folder: with trust_remote_code, transformers scores in any order as we do, and reads from
left to right as a causal language model; without it nothing changes."""

import dataclasses
import json

import numpy as np
import pytest

import xlnet_jax
from data_pipelines.tokenizer import BOS
from tests.xlnet_jax.random_models import HEADS, SMALL, random_model
from xlnet_jax.interop.hf_xlnet import ANY_ORDER

torch = pytest.importorskip("torch", reason="needs the extra [bench]: pip install -e '.[bench]'")
transformers = pytest.importorskip("transformers", reason="needs the extra [bench]: pip install -e '.[bench]'")

SAME = 1e-5  # nats, float32
TEXTS = ["She opened the letter and read it aloud.", "It was a dark night.", "No"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hf") / "exported"
    notes = xlnet_jax.save(xlnet_jax.load("tiny"), folder, "hf")
    assert any("trust_remote_code=True" in note for note in notes)
    return folder


@pytest.fixture(scope="module")
def theirs(folder, tmp_path_factory):
    torch.set_num_threads(1)  # the matrices are small, and other tests need the other cores
    with pytest.MonkeyPatch.context() as patch:  # where transformers copies the code to
        patch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path_factory.mktemp("modules")))
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    assert type(model).__name__ == "AnyOrderXLNet"
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def tokenizer(folder):
    return transformers.AutoTokenizer.from_pretrained(folder)


def ids_of(tokenizer, text):
    return tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("order", ["left-to-right", "right-to-left", "shuffled"])
def test_any_order_scores_as_ours(theirs, tokenizer, text, order):
    """Including the first piece of the order, which sees nothing."""
    ids = ids_of(tokenizer, text)
    orders = {
        "left-to-right": None,
        "right-to-left": list(range(ids.shape[1]))[::-1],
        "shuffled": np.random.default_rng(0).permutation(ids.shape[1]).tolist(),
    }
    ours = " ".join(map(str, orders[order])) if order == "shuffled" else order
    (expected,) = xlnet_jax.score_texts(xlnet_jax.load("tiny"), text, ours)
    np.testing.assert_allclose(theirs.score(ids, orders[order]), expected.log_probs_OP, rtol=0, atol=SAME)


def test_positions_outside_of_the_order_are_context_that_all_see(theirs, tokenizer):
    context, text = map(tokenizer.convert_tokens_to_ids, (["▁She", "▁was"], ["▁not", "▁at", "▁home"]))
    (expected,) = xlnet_jax.score_texts(xlnet_jax.load("tiny"), "not at home", "2 0 1", context="She was")
    assert expected.pieces == ["▁not", "▁at", "▁home"]
    scores = theirs.score(torch.tensor([context + text]), order=[4, 2, 3])
    np.testing.assert_allclose(scores[:, 2:], expected.log_probs_OP, rtol=0, atol=SAME)
    assert not scores[:, :2].any()


def test_the_logits_are_those_of_a_causal_language_model(theirs, tokenizer):
    """Position i predicts piece i + 1 given the pieces up to i; after <s> the first piece is predicted from nothing."""
    for text in TEXTS:
        ids = ids_of(tokenizer, text)
        scores = theirs.score(ids)
        begun = torch.cat([torch.full((1, 1), BOS), ids], dim=1)
        found = theirs(begun).logits[:, :-1].log_softmax(-1).gather(2, ids[..., None])[..., 0]
        np.testing.assert_allclose(found, scores, rtol=0, atol=SAME)
        np.testing.assert_allclose(theirs(ids).logits, theirs(begun).logits[:, 1:], rtol=0, atol=SAME)
    np.testing.assert_allclose(theirs.score(begun)[:, 1:], scores, rtol=0, atol=SAME)
    ids = ids_of(tokenizer, TEXTS[0])
    assert theirs(ids, labels=ids).loss.item() == pytest.approx(-theirs.score(ids)[0, 1:].mean().item(), abs=SAME)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(theirs, tokenizer, side):
    tokenizer.padding_side = side
    batch = tokenizer(TEXTS, add_special_tokens=False, return_tensors="pt", padding=True)
    logits, scores = theirs(**batch).logits, theirs.score(batch.input_ids, attention_mask=batch.attention_mask)
    for row, text in enumerate(TEXTS):
        ids, real = ids_of(tokenizer, text), batch.attention_mask[row].bool()
        np.testing.assert_allclose(logits[row, real], theirs(ids).logits[0], rtol=0, atol=SAME)
        np.testing.assert_allclose(scores[row, real], theirs.score(ids)[0], rtol=0, atol=SAME)
        assert not scores[row, ~real].any()


def test_generation_takes_the_likeliest_piece_given_all_before_it(theirs, tokenizer):
    tokenizer.padding_side = "left"
    batch = tokenizer(TEXTS, add_special_tokens=False, return_tensors="pt", padding=True)
    drawn = theirs.generate(**batch, max_new_tokens=5, do_sample=False)[:, -5:]
    for row, text in enumerate(TEXTS):
        ids = ids_of(tokenizer, text)
        for _ in range(5):
            ids = torch.cat([ids, theirs(ids).logits[:, -1:].argmax(-1)], dim=1)
        assert ids[0, -5:].tolist() == drawn[row].tolist()


def test_without_trust_the_model_is_the_one_of_transformers(folder, theirs, tokenizer, tmp_path):
    """Bit for bit that of a folder without the code, as is the forward with masks of one's own."""
    bare = tmp_path / "bare"
    bare.mkdir()
    config = json.loads((folder / "config.json").read_text())
    del config["auto_map"]
    (bare / "config.json").write_text(json.dumps(config))
    (bare / "model.safetensors").symlink_to(folder / "model.safetensors")
    ids = ids_of(tokenizer, TEXTS[0])
    masks = {"perm_mask": torch.ones(1, *2 * ids.shape[1:]).triu(), "target_mapping": torch.eye(ids.shape[1])[None, 1:]}
    models = [
        transformers.XLNetLMHeadModel.from_pretrained(bare),
        transformers.XLNetLMHeadModel.from_pretrained(folder),
        transformers.AutoModelForCausalLM.from_pretrained(folder),
        transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False),
    ]
    with torch.no_grad():
        plain, masked = ([model.eval()(ids, **given).logits for model in models] for given in ({}, masks))
    for found in (*plain[1:], *masked[1:], theirs(ids, **masks).logits):
        assert torch.equal(found, plain[0] if found.shape == plain[0].shape else masked[0])


def test_a_text_with_special_pieces_is_refused(theirs, tokenizer):
    """A harness that adds <sep> <cls> to context and text would count the wrong pieces."""
    with pytest.raises(ValueError, match="a text has no <cls>: give add_special_tokens=False to the tokenizer, or"):
        theirs(**tokenizer(TEXTS, padding=True, return_tensors="pt"))


@pytest.mark.parametrize("kind", ["causal", "masked", "head"])
def test_networks_that_predict_in_no_order_have_no_code(tmp_path, kind):
    config = dataclasses.replace(SMALL, attn_type="uni" if kind == "causal" else "bi")
    model = random_model(config, HEADS["classification"] if kind == "head" else None)
    if kind == "masked":
        model = dataclasses.replace(model, objective="mlm")
    if kind == "head":  # started from a folder that has the code
        xlnet_jax.save(random_model(), tmp_path / "start", "hf")
        assert (tmp_path / "start" / f"{ANY_ORDER}.py").exists()
        model = dataclasses.replace(model, extra=xlnet_jax.load(tmp_path / "start").extra)
    notes = xlnet_jax.save(model, tmp_path / "hf", "hf")
    assert not (tmp_path / "hf" / f"{ANY_ORDER}.py").exists()
    assert "auto_map" not in json.loads((tmp_path / "hf" / "config.json").read_text())
    assert not any(ANY_ORDER in note for note in notes)
