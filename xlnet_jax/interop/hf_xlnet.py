"""Names, layouts and settings of Hugging Face's XLNet (transformers, modeling_xlnet.py and configuration_xlnet.py)."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from xlnet_jax.errors import InputError
from xlnet_jax.interop.contents import Pretrained
from xlnet_jax.interop.hf_settings import (
    ACTIVATIONS,
    SPAN_SCOPE,
    TAG_SCOPE,
    WRITTEN,
    activation_of,
    config_json,
    dense,
    drop_copy,
    embedding_head,
    norm,
    require_head_width,
    scope_of,
    sequence_head,
    tagging_head,
)
from xlnet_jax.interop.weights import TRANSPOSED, TWO_LEADING_ONES, Weight, refuse_beyond_xlnet, stack
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.settings.config import HeadConfig, ModelConfig

BODY = "transformer"

ANY_ORDER = "modeling_any_order"
"""Module of this folder that is copied into a Hugging Face folder, where transformers runs it with trust_remote_code"""
AUTO_MAP = {"AutoModelForCausalLM": f"{ANY_ORDER}.AnyOrderXLNet"}

_BIASES = ("r_w_bias", "r_r_bias", "r_s_bias")
_NO_ACTIVATION = "linear"
_SETTINGS: dict[str, tuple[str, Any]] = {  # ours -> theirs, and its default
    "vocab_size": ("vocab_size", 32_000),
    "num_layers": ("n_layer", 24),
    "d_model": ("d_model", 1024),
    "num_heads": ("n_head", 16),
    "d_ff": ("d_inner", 4096),
    "init_std": ("initializer_range", 0.02),
    "layer_norm_eps": ("layer_norm_eps", 1e-12),
    "clamp_len": ("clamp_len", -1),
    "attn_type": ("attn_type", "bi"),
    "same_length": ("same_length", False),
    "untie_r": ("untie_r", True),
}
KNOWN = WRITTEN | {theirs for theirs, _ in _SETTINGS.values()} | {
    "d_head", "ff_activation", "dropout", "mem_len", "reuse_len",
}  # fmt: skip


def weights(pretrained: Pretrained) -> Iterator[Weight]:
    """Yield the table of a network: one entry per tensor. Hugging Face has r biases in every layer, tied or not."""
    yield from _body(pretrained.model)
    yield from _top(pretrained.head)


def _body(config: ModelConfig) -> Iterator[Weight]:
    yield Weight(f"{BODY}.word_embedding.weight", "backbone/word_embedding")
    yield Weight(f"{BODY}.mask_emb", "backbone/mask_embedding", (), TWO_LEADING_ONES, required=False)
    for layer in range(config.num_layers):
        prefix = f"{BODY}.layer.{layer}"
        yield from stack(layer_weights(prefix), (layer,))
        segments = Weight(f"{prefix}.rel_attn.seg_embed", "attention/segment_embedding")
        yield from stack([segments], (layer,))
        for number, name in enumerate(_BIASES):
            if config.untie_r:
                yield Weight(f"{prefix}.rel_attn.{name}", "backbone/layers/attention/biases", (layer, number))
            else:
                yield Weight(f"{prefix}.rel_attn.{name}", "backbone/biases", (number,))


def layer_weights(prefix: str) -> Iterator[Weight]:
    """Yield the weights of a layer, without segments: the 2019 code stacks those of all layers."""
    for name in "qkvor":
        yield Weight(f"{prefix}.rel_attn.{name}", f"attention/{name}")
    yield from norm(f"{prefix}.rel_attn.layer_norm", "attention/norm")
    yield from dense(f"{prefix}.ff.layer_1", "feed_forward/inner")
    yield from dense(f"{prefix}.ff.layer_2", "feed_forward/outer")
    yield from norm(f"{prefix}.ff.layer_norm", "feed_forward/norm")


def _top(head: HeadConfig | None) -> Iterator[Weight]:
    if head is None:
        yield Weight("lm_loss.bias", "output_bias")
    elif head.task == "question_answering":
        yield from span_weights()
    elif head.task == "token_classification":
        yield from dense(SPAN_SCOPE if head.scope == SPAN_SCOPE else TAG_SCOPE, "logits")
    elif head.has_weights:
        if head.use_projection:
            yield from dense("sequence_summary.summary", "summary/projection")
        yield from dense("logits_proj", "logits")


def span_weights() -> Iterator[Weight]:
    """Yield the weights of the head for question answering."""
    yield from dense("start_logits.dense", "start")
    yield from dense("end_logits.dense_0", "end_inner")
    yield from norm("end_logits.LayerNorm", "end_norm")
    yield from dense("end_logits.dense_1", "end_outer")
    yield from dense("answer_class.dense_0", "answer_inner")
    yield Weight("answer_class.dense_1.weight", "answer_outer/kernel", (), TRANSPOSED)


def tokenizer_settings(config: ModelConfig) -> dict[str, Any]:
    """Return the settings in tokenizer_config.json that depend on the network."""
    # Without these names transformers 5 omits token_type_ids, and <cls> does not have the segment it was trained with.
    return {"padding_side": "left", "model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}


def around(config: ModelConfig) -> dict[str, tuple[tuple[str, int], ...]]:
    """Return the special pieces around one text and two, and the segment of each part."""
    return {
        "single": (("A", 0), ("<sep>", 0), ("<cls>", 2)),
        "pair": (("A", 0), ("<sep>", 0), ("B", 1), ("<sep>", 1), ("<cls>", 2)),
    }


def _model_config(theirs: Mapping[str, Any], where: str) -> ModelConfig:
    given = {ours: theirs.get(name, default) for ours, (name, default) in _SETTINGS.items()}
    dropout = theirs.get("dropout", 0.1)
    return ModelConfig(
        **given,
        d_head=theirs.get("d_head") or given["d_model"] // given["num_heads"],
        activation=activation_of(theirs, "ff_activation", "gelu", where),
        mem_len=theirs.get("mem_len") or 0,
        dropout=dropout,
        attention_dropout=dropout,
    )


def _head_config(theirs: Mapping[str, Any], variables: Mapping[str, np.ndarray], where: str) -> HeadConfig | None:
    if "start_logits.dense.weight" in variables:
        return HeadConfig("question_answering")
    for scope in (TAG_SCOPE, SPAN_SCOPE):
        if f"{scope}.weight" in variables:
            return tagging_head(theirs, variables, scope, where)
    if "logits_proj.weight" not in variables:
        return embedding_head(theirs)
    summary, use_projection = theirs.get("summary_type", "last"), "sequence_summary.summary.weight" in variables
    if summary not in ("last", "first", "mean"):
        raise InputError(f"{where}: summary_type {summary} is not supported, only last, first, mean")
    # transformers applies it with or without a projection; we, as the 2019 code, only with one.
    activation = theirs.get("summary_activation", "tanh") or _NO_ACTIVATION
    if activation != (ours := "tanh" if use_projection else _NO_ACTIVATION):
        kind = "with" if use_projection else "without"
        raise InputError(f"{where}: summary_activation {activation} {kind} projection is not supported, only {ours}")
    if "XLNetForMultipleChoice" in (theirs.get("architectures") or ()):
        return HeadConfig("multiple_choice", 4, summary, use_projection, scope=scope_of(theirs, where))
    return sequence_head(theirs, len(variables["logits_proj.weight"]), summary, use_projection, where)


def read(
    theirs: Mapping[str, Any], tensors: dict[str, np.ndarray], where: str
) -> tuple[Pretrained, Iterator[Weight], dict[str, np.ndarray]]:
    """Read a config.json and its tensors. Return what they say without parameters and objective, the table, and the
    tensors in its names.

    Raises InputError on what this project does not support, and other errors on settings of a wrong type.
    """
    notes = []
    if not any(name.startswith(BODY + ".") for name in tensors):
        tensors = {f"{BODY}.{name}": value for name, value in tensors.items()}  # saved by the bare XLNetModel
    drop_copy(tensors, "lm_loss.weight", f"{BODY}.word_embedding.weight", where)
    config, head = _model_config(theirs, where), _head_config(theirs, tensors, where)
    reuse_len = theirs.get("reuse_len") or None
    if not isinstance(reuse_len or 0, int):
        raise InputError(f"{where}: reuse_len {reuse_len!r} is not a number of positions")
    if config.activation == "gelu_erf":
        notes.append(
            "ff_activation gelu in config.json is the exact GELU of transformers, but the 2019 weights were trained "
            "with the tanh form: for those give `activation` gelu"
        )
    biases = [[v for k, v in tensors.items() if k.endswith(f"rel_attn.{name}")] for name in _BIASES]
    are_tied = all(np.array_equal(layers[0], other) for layers in biases for other in layers[1:])
    if not config.untie_r and not are_tied:
        config = dataclasses.replace(config, untie_r=True)
        notes.append("config.json has untie_r false, but the r biases differ between layers: kept untied")
    contents = Pretrained(config, {}, "", head, reuse_len=reuse_len, notes=tuple(notes))
    return contents, weights(contents), tensors


def predicts_in_any_order(pretrained: Pretrained) -> bool:
    """Return True if the query stream of a network predicts pieces in any order."""
    objective = objective_named(pretrained.objective)
    can_predict = pretrained.head is None and pretrained.model.attn_type == "bi" and objective.order == "any"
    return can_predict and objective.filling.stream == "query"


def to_config(pretrained: Pretrained) -> dict[str, Any]:
    """Return the config.json of a network. Raises InputError on what Hugging Face's format cannot hold."""
    config, head = pretrained.model, pretrained.head
    refuse_beyond_xlnet(config, "Hugging Face's XLNet")
    require_head_width(config)
    if head and head.reads_summary and head.summary == "attn":
        raise InputError("Hugging Face cannot hold a summary of type attn: use `to` tf1 or native")
    settings = {
        "model_type": "xlnet",
        **{name: getattr(config, ours) for ours, (name, _) in _SETTINGS.items()},
        "d_head": config.d_head,
        "ff_activation": ACTIVATIONS[config.activation],
        "dropout": config.dropout,
        "mem_len": config.mem_len or None,
        "reuse_len": pretrained.reuse_len,
    }
    if predicts_in_any_order(pretrained):
        settings["auto_map"] = AUTO_MAP
    if head and head.reads_summary:
        settings |= {
            "summary_type": head.summary,
            "summary_use_proj": head.use_projection,
            "summary_activation": "tanh" if head.use_projection else _NO_ACTIVATION,
        }
    special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 5}
    defaults = {"bi_data": False, "summary_last_dropout": config.dropout, **special}
    return config_json(pretrained, "XLNet", "LMHeadModel", settings, defaults)
