"""BERT, RoBERTa, ALBERT and ELECTRA against Hugging Face itself, on weights drawn at random there: equal logits, both
ways."""

import dataclasses
import json

import jax
import numpy as np
import pytest

import xlnet_jax
from tests.xlnet_jax.interop.test_transformers import UNUSUAL, loaded_by_transformers, settings_in
from tests.xlnet_jax.random_models import BERT, HEADS, ROBERTA, random_model
from xlnet_jax.errors import InputError
from xlnet_jax.interop.weights import flatten
from xlnet_jax.models.heads import PairHead
from xlnet_jax.models.inputs import text_inputs
from xlnet_jax.objectives.language_model import objective_of
from xlnet_jax.objectives.presets import demo, with_objective
from xlnet_jax.objectives.registry import validate
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.settings.fields import with_values
from xlnet_jax.settings.resolution import Resolution
from xlnet_jax.training.initial import begin_from, params_of

torch = pytest.importorskip("torch", reason="needs the extra [bench]: pip install -e '.[bench]'")
transformers = pytest.importorskip("transformers", reason="needs the extra [bench]: pip install -e '.[bench]'")

LOGITS = 1e-5  # absolute, float32
IDS = np.random.default_rng(0).integers(9, BERT.vocab_size, (4, 8)).astype(np.int32)
MASK = np.array([[1] * 8, [1] * 5 + [0] * 3, [1] * 8, [1] * 7 + [0]], np.int32)
SEGMENTS = (np.arange(8) > 4).astype(np.int32)[None].repeat(4, 0)
SIZES = {
    "vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 20,
    "max_position_embeddings": 18,
}  # fmt: skip
HEADED = {
    "ForPreTraining": None,
    "ForMaskedLM": None,
    "ForSequenceClassification": "classification",
    "ForTokenClassification": "token_classification",
    "ForMultipleChoice": "multiple_choice",
    "ForQuestionAnswering": "token_classification",
}
CASES = [
    *(("Bert", kind) for kind in HEADED),
    *(("Roberta", kind) for kind in ("ForMaskedLM", "ForSequenceClassification", "ForMultipleChoice")),
    *(("Albert", kind) for kind in ("ForPreTraining", "ForSequenceClassification")),
    ("Electra", "ForMaskedLM"),
]


def theirs(name, **settings):
    """A network of theirs whose weights, normalisation and biases too, are drawn at random."""
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    narrow = {"embedding_size": 8} if name.startswith(("Albert", "Electra")) else {}
    network = kind(
        kind.config_class(**{**SIZES, "num_labels": 3 if "Classification" in name else 2, **narrow, **settings})
    ).eval()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return network


def their_outputs(network, name):
    shape = (1, 4, 8) if "Choice" in name else (4, 8)
    ids, mask, segments = (torch.as_tensor(a).long().reshape(shape) for a in (IDS, MASK, SEGMENTS))
    with torch.no_grad():
        return network(ids, attention_mask=mask, token_type_ids=segments)


def our_outputs(loaded):
    extra = (MASK,) if loaded.head and loaded.head.task != "token_classification" else ()
    return jax.jit(loaded.network.apply)({"params": loaded.params}, text_inputs(IDS, MASK, SEGMENTS), *extra)


def assert_goes_back(loaded, network, name, folder):
    """Assert that transformers reads the weights of its network again from what we write, bit for bit."""
    xlnet_jax.save(loaded, folder, "hf")
    back = loaded_by_transformers(folder, name).state_dict()
    for tensor, value in network.state_dict().items():
        np.testing.assert_array_equal(back[tensor], value, err_msg=tensor)


@pytest.mark.parametrize(("family", "kind"), CASES, ids=lambda word: word)
def test_logits_are_theirs_and_weights_and_settings_go_back_bit_for_bit(tmp_path, family, kind):
    name = family + kind
    network = theirs(name, **UNUSUAL, hidden_dropout_prob=0.11)
    network.save_pretrained(tmp_path / "theirs")
    xlnet_jax.save(xlnet_jax.load(tmp_path / "theirs"), tmp_path / "native")
    loaded = xlnet_jax.load(tmp_path / "native")
    assert (loaded.head.task if loaded.head else None) == HEADED[kind]
    ours, expected = our_outputs(loaded), their_outputs(network, name)
    if loaded.head is None:
        ours, outputs = ours
    real = MASK == 1
    if kind == "ForQuestionAnswering":
        expected = np.stack([expected.start_logits, expected.end_logits], -1)[real]
        np.testing.assert_allclose(ours[real], expected, rtol=0, atol=LOGITS)
    elif kind == "ForPreTraining":
        np.testing.assert_allclose(ours[real], expected.prediction_logits[real], rtol=0, atol=LOGITS)
        # Theirs reads the first token, ours the last: of a window that ends where it begins, the same.
        pairs = PairHead(loaded.model).apply({"params": loaded.params["pair_head"]}, outputs.content_BLD[:, :1])
        of_pairs = expected.sop_logits if family == "Albert" else expected.seq_relationship_logits
        np.testing.assert_allclose(pairs, of_pairs, rtol=0, atol=LOGITS)
    else:
        per_text = kind in ("ForSequenceClassification", "ForMultipleChoice")
        at = ... if per_text else real
        np.testing.assert_allclose(ours[at], expected.logits[at], rtol=0, atol=LOGITS)
    assert_goes_back(loaded, network, name, tmp_path / "ours")
    assert settings_in(tmp_path / "ours").items() >= settings_in(tmp_path / "theirs").items()


def test_files_of_old_versions_and_of_the_bare_network_are_read(tmp_path):
    """TensorFlow's names of normalisation, places as a tensor, and no prefix; what is missing is named."""
    network = theirs("BertModel")
    network.config.save_pretrained(tmp_path)
    old = {n.replace("LayerNorm.weight", "LayerNorm.gamma"): t for n, t in network.state_dict().items()}
    old = {n.replace("LayerNorm.bias", "LayerNorm.beta"): t for n, t in old.items()}
    torch.save(old | {"embeddings.position_ids": torch.arange(18)[None]}, tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"incomplete: 5 missing: cls\.predictions.*--partial"):
        xlnet_jax.load(tmp_path)
    loaded = xlnet_jax.load(tmp_path, partial=True)
    assert any("bert.pooler.dense is dropped" in note for note in loaded.notes)
    expected = their_outputs(network, "BertModel").last_hidden_state
    real = MASK == 1
    np.testing.assert_allclose(loaded.hidden_states(IDS, MASK, SEGMENTS)[real], expected[real], rtol=0, atol=LOGITS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"position_embedding_type": "relative_key"},
            "position_embedding_type relative_key is not supported, only absolute",
        ),
        ({"hidden_act": "silu"}, "hidden_act silu is not supported, only gelu_new, gelu, relu"),
        ({"num_attention_heads": 5}, "num_attention_heads 5 does not divide hidden_size 24"),
        ({"num_hidden_layers": 2}, "incomplete: 16 unknown: bert.encoder.layer.2"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings false"),
        ({"hidden_size": "wide"}, "config.json is damaged: "),
        ({"type_vocab_size": 3}, r"num_segments` 3 \(type_vocab_size .* a text has two segments"),
        ({"model_type": "deberta"}, "model_type deberta is not supported, only xlnet, bert, roberta, albert, electra"),
    ],
)
def test_settings_that_we_do_not_have_are_refused_by_name(tmp_path, changes, message):
    xlnet_jax.save(random_model(BERT), tmp_path / "hf", "hf")
    content = json.loads((tmp_path / "hf" / "config.json").read_text())
    (tmp_path / "hf" / "config.json").write_text(json.dumps(content | changes))
    with pytest.raises(InputError, match=message) as refused:
        xlnet_jax.load(tmp_path / "hf")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "settings",
    [{}, {"embedding_size": 24}, {"hidden_act": "gelu_new"}],
    ids=["narrow embeddings", "wide embeddings", "another activation"],
)
def test_an_electra_discriminator_comes_with_the_scores_of_its_tokens_and_goes_back(tmp_path, settings):
    name = "ElectraForPreTraining"
    network = theirs(name, **settings)
    network.save_pretrained(tmp_path / "theirs")
    loaded = xlnet_jax.load(tmp_path / "theirs")
    assert loaded.objective == "rtd"
    ours, outputs = our_outputs(loaded)
    real = MASK == 1
    np.testing.assert_allclose(ours[real], their_outputs(network, name).logits[real], rtol=0, atol=LOGITS)
    hidden = their_outputs(network.electra, "ElectraModel").last_hidden_state
    np.testing.assert_allclose(outputs.content_BLD[real], hidden[real], rtol=0, atol=LOGITS)
    generator = {"output_bias": np.zeros(40, np.float32)}
    paired = dataclasses.replace(loaded, params={**loaded.params, "generator": generator})
    xlnet_jax.save(paired, tmp_path / "native")
    assert_goes_back(xlnet_jax.load(tmp_path / "native"), network, name, tmp_path / "ours")


@pytest.mark.parametrize("pair_loss", ["none", "next"])
def test_pretraining_starts_from_all_of_their_weights(tmp_path, pair_loss):
    theirs("BertForPreTraining").save_pretrained(tmp_path)
    windows = {"data.seq_len": 16, "data.perm_size": 16, "data.num_predict": 2, "data.pair_loss": pair_loss}
    start = with_values(with_objective(demo(), "mlm"), windows)
    settings = Resolution(dataclasses.replace(start, init=str(tmp_path)))
    loaded, config = begin_from(settings, None), settings.final()
    validate(config)
    assert config.model == dataclasses.replace(loaded.model, init_std=0.08, dropout=0.0, attention_dropout=0.0)
    params, lacking = params_of(loaded, objective_of(config))
    assert not lacking
    assert ("pair_head" in params) == (pair_loss == "next")
    assert flatten(params).keys() <= flatten(loaded.params).keys()


@pytest.mark.parametrize(
    ("config", "head", "message"),
    [
        (BERT, HEADS["question_answering"], "bert cannot hold this head for question_answering"),
        (BERT, HeadConfig("classification", 3, "mean"), "head with summary mean: it reads its first token"),
        (dataclasses.replace(BERT, d_head=5), None, "cannot hold num_heads 4 x d_head 5"),
        (dataclasses.replace(ROBERTA, activation="relu"), None, "roberta cannot hold activation relu"),
        (dataclasses.replace(BERT, num_segments=0), None, "cannot hold a network without segments"),
    ],
)
def test_what_they_cannot_hold_is_refused(tmp_path, config, head, message):
    model = random_model(config, head)
    for form, refusal in (("hf", message), ("tf1", "2019 code cannot hold")):
        with pytest.raises(InputError, match=refusal):
            xlnet_jax.save(model, tmp_path / form, form)
    assert not list(tmp_path.iterdir())
