"""A config.json of Hugging Face comes back as it was: also what only transformers reads."""

import json

import pytest

import xlnet_jax

torch = pytest.importorskip("torch", reason="needs the extra [bench]: pip install -e '.[bench]'")
transformers = pytest.importorskip("transformers", reason="needs the extra [bench]: pip install -e '.[bench]'")

BERT = {
    "vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 20,
    "max_position_embeddings": 18, "hidden_act": "gelu",
}  # fmt: skip
NARROW = {**BERT, "embedding_size": 8}
XLNET = {"vocab_size": 40, "d_model": 24, "n_layer": 1, "n_head": 4, "d_inner": 20, "untie_r": True}
NETWORKS = {
    **{f"XLNet{kind}": XLNET for kind in ("LMHeadModel", "ForSequenceClassification", "ForQuestionAnsweringSimple")},
    **{f"BertFor{kind}": BERT for kind in ("PreTraining", "MultipleChoice", "TokenClassification")},
    "RobertaForSequenceClassification": BERT,
    "AlbertForMaskedLM": NARROW,
    "ElectraForMaskedLM": NARROW,
    "ElectraForPreTraining": NARROW,
}
UNUSUAL = {
    "pad_token_id": 3, "bos_token_id": 7, "eos_token_id": 8, "num_labels": 3, "initializer_range": 0.05,
    "layer_norm_eps": 1e-6, "hidden_dropout_prob": 0.11, "attention_probs_dropout_prob": 0.12, "dropout": 0.13,
    "classifier_dropout": 0.25, "classifier_dropout_prob": 0.2, "summary_last_dropout": 0.35, "summary_type": "first",
    "mem_len": 7, "reuse_len": 3, "clamp_len": 9, "use_mems_eval": False, "start_n_top": 4, "end_n_top": 6,
    "problem_type": "single_label_classification", "finetuning_task": "mnli", "unknown": {"a": [1]},
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_every_setting_of_theirs_comes_back_by_a_native_checkpoint(name, tmp_path):
    kind = getattr(transformers, name)
    kind(kind.config_class(**UNUSUAL, **NETWORKS[name])).save_pretrained(tmp_path / "theirs")
    xlnet_jax.save(xlnet_jax.load(tmp_path / "theirs"), tmp_path / "ours")
    xlnet_jax.save(xlnet_jax.load(tmp_path / "ours"), tmp_path / "again", "hf")
    before, after = (json.loads((tmp_path / folder / "config.json").read_text()) for folder in ("theirs", "again"))
    del before["transformers_version"]  # transformers did not write ours
    if name.startswith("XLNet"):
        before["untie_r"] = True  # transformers 5 does not write it, and older ones read it
    assert after == before
