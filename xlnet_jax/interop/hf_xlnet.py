"""Names, layouts and settings of Hugging Face's XLNet (transformers, modeling_xlnet.py and configuration_xlnet.py)."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from xlnet_jax.errors import InputError
from xlnet_jax.interop.contents import Found, Pretrained, check_sizes, notes_on_padding
from xlnet_jax.interop.hf_settings import (
    ACTIVATIONS,
    SPAN_SCOPE,
    TAG_SCOPE,
    WRITTEN,
    activation_of,
    demand_head_width,
    demand_tied,
    dense,
    head_settings,
    labels_of,
    norm,
    notes_on_thresholds,
    read_checked,
    sequence_task,
    tagging_head,
    threshold_settings,
    thresholds_of,
)
from xlnet_jax.interop.weights import SAME, TRANSPOSED, TWO_LEADING_ONES, Layout, Weight, refuse_beyond_xlnet
from xlnet_jax.settings.config import HeadConfig, ModelConfig

BODY = "transformer"
TIED = "lm_loss.weight"  # the embedding once more, in some files

_LAYER: dict[str, tuple[str, Layout]] = {  # our path in a layer -> name under layer.<i>, layout
    **{f"attention/{x}": (f"rel_attn.{x}", SAME) for x in "qkvor"},
    "attention/segment_embedding": ("rel_attn.seg_embed", SAME),
    "attention/norm/LayerNorm_0/scale": ("rel_attn.layer_norm.weight", SAME),
    "attention/norm/LayerNorm_0/bias": ("rel_attn.layer_norm.bias", SAME),
    "feed_forward/inner/kernel": ("ff.layer_1.weight", TRANSPOSED),
    "feed_forward/inner/bias": ("ff.layer_1.bias", SAME),
    "feed_forward/outer/kernel": ("ff.layer_2.weight", TRANSPOSED),
    "feed_forward/outer/bias": ("ff.layer_2.bias", SAME),
    "feed_forward/norm/LayerNorm_0/scale": ("ff.layer_norm.weight", SAME),
    "feed_forward/norm/LayerNorm_0/bias": ("ff.layer_norm.bias", SAME),
}
_BIASES = ("r_w_bias", "r_r_bias", "r_s_bias")
_NO_ACTIVATION = "linear"
_SIZES = {  # ours -> theirs
    "vocab_size": "vocab_size", "num_layers": "n_layer", "d_model": "d_model", "num_heads": "n_head",
    "d_ff": "d_inner", "init_std": "initializer_range", "layer_norm_eps": "layer_norm_eps", "clamp_len": "clamp_len",
    "attn_type": "attn_type", "same_length": "same_length", "untie_r": "untie_r",
}  # fmt: skip


def weights(pretrained: Pretrained) -> list[Weight]:
    """Return the table of a network: one entry a tensor. Hugging Face has r biases in every layer, tied or not."""
    return _table(pretrained.model, pretrained.head)


def _table(config: ModelConfig, head: HeadConfig | None) -> list[Weight]:
    return [*_body(config), *_top(head)]


def _body(config: ModelConfig) -> Iterator[Weight]:
    yield Weight(f"{BODY}.word_embedding.weight", "backbone/word_embedding")
    yield Weight(f"{BODY}.mask_emb", "backbone/mask_embedding", (), TWO_LEADING_ONES, required=False)
    for layer in range(config.num_layers):
        prefix = f"{BODY}.layer.{layer}"
        for ours, (theirs, layout) in _LAYER.items():
            yield Weight(f"{prefix}.{theirs}", f"backbone/layers/{ours}", (layer,), layout)
        for number, name in enumerate(_BIASES):
            if config.untie_r:
                yield Weight(f"{prefix}.rel_attn.{name}", "backbone/layers/attention/biases", (layer, number))
            else:
                yield Weight(f"{prefix}.rel_attn.{name}", "backbone/biases", (number,))


def _top(head: HeadConfig | None) -> Iterator[Weight]:
    if head is None:
        yield Weight("lm_loss.bias", "output_bias")
    elif head.task == "question_answering":
        yield from dense("start_logits.dense", "start")
        yield from dense("end_logits.dense_0", "end_inner")
        yield from norm("end_logits.LayerNorm", "end_norm")
        yield from dense("end_logits.dense_1", "end_outer")
        yield from dense("answer_class.dense_0", "answer_inner")
        yield Weight("answer_class.dense_1.weight", "answer_outer/kernel", (), TRANSPOSED)
    elif head.task == "token_classification":
        yield from dense(SPAN_SCOPE if head.scope == SPAN_SCOPE else TAG_SCOPE, "logits")
    else:
        if head.use_projection:
            yield from dense("sequence_summary.summary", "summary/projection")
        yield from dense("logits_proj", "logits")


def tokenizer_settings(config: ModelConfig) -> dict[str, Any]:
    """Return what tokenizer_config.json says of the network."""
    # Without these names transformers 5 leaves out token_type_ids, and <cls> is not in the segment it was trained with.
    return {"padding_side": "left", "model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}


def around(config: ModelConfig) -> dict[str, tuple[tuple[str, int], ...]]:
    """Return the special pieces around one text and two, and the segment of each part."""
    return {
        "single": (("A", 0), ("<sep>", 0), ("<cls>", 2)),
        "pair": (("A", 0), ("<sep>", 0), ("B", 1), ("<sep>", 1), ("<cls>", 2)),
    }


def sizes_of(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Return the sizes of the tensors, under the names of our settings; sizes that no tensor shows are left out."""
    sizes: dict[str, int] = {}
    known = {name for name, _ in _LAYER.values()}
    parts = [name.removeprefix(f"{BODY}.layer.").split(".", 1) for name in shapes if name.startswith(f"{BODY}.layer.")]
    if layers := {number for number, *rest in parts if rest and rest[0] in known}:
        sizes["num_layers"] = len(layers)
    for name, shape in shapes.items():
        if name == f"{BODY}.word_embedding.weight" and len(shape) == 2:
            sizes["vocab_size"] = shape[0]
        elif name.endswith(".rel_attn.q") and len(shape) == 3:
            sizes["d_model"], sizes["num_heads"], sizes["d_head"] = shape
        elif name.endswith(".ff.layer_1.weight") and len(shape) == 2:
            sizes["d_ff"] = shape[0]
    return sizes


def model_config(theirs: Mapping[str, Any], where: str) -> ModelConfig:
    """Return our settings for a config.json; a missing one has Hugging Face's default. Raises InputError on what this
    project does not have."""
    demand_tied(theirs, where)
    defaults = {
        "vocab_size": 32_000, "n_layer": 24, "d_model": 1024, "n_head": 16, "d_inner": 4096, "initializer_range": 0.02,
        "layer_norm_eps": 1e-12, "clamp_len": -1, "attn_type": "bi", "same_length": False, "untie_r": True,
    }  # fmt: skip
    given = {ours: theirs.get(name, defaults[name]) for ours, name in _SIZES.items()}
    dropout = theirs.get("dropout", 0.1)
    return ModelConfig(
        **given,
        d_head=theirs.get("d_head") or given["d_model"] // given["num_heads"],
        activation=activation_of(theirs, "ff_activation", "gelu", where),
        mem_len=theirs.get("mem_len") or 0,
        dropout=dropout,
        attention_dropout=dropout,
    )


def head_config(theirs: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: str) -> HeadConfig | None:
    """Return the head that has these tensors; None = language modelling. Raises InputError on an unknown summary."""
    if "start_logits.dense.weight" in shapes:
        return HeadConfig("question_answering")
    for scope in (TAG_SCOPE, SPAN_SCOPE):
        if f"{scope}.weight" in shapes:
            return tagging_head(theirs, shapes, scope, where)
    if "logits_proj.weight" not in shapes:
        return None
    summary, use_projection = theirs.get("summary_type", "last"), "sequence_summary.summary.weight" in shapes
    if summary not in ("last", "first", "mean"):
        raise InputError(f"{where}: summary_type {summary} is none of last, first, mean")
    # Theirs applies it with a projection or without; ours, as the original, with one alone.
    activation = theirs.get("summary_activation", "tanh") or _NO_ACTIVATION
    if activation != (ours := "tanh" if use_projection else _NO_ACTIVATION):
        kind = "with" if use_projection else "without"
        raise InputError(f"{where}: summary_activation {activation} {kind} projection; ours is {ours}")
    scope = theirs.get("tf1_scope", "")
    if "/" in scope:
        raise InputError(f"{where}: tf1_scope {scope} is not the name of one layer")
    if "XLNetForMultipleChoice" in theirs.get("architectures", ()):
        return HeadConfig("multiple_choice", 4, summary, use_projection, scope=scope)
    num_labels = shapes["logits_proj.weight"][0]
    labels = labels_of(theirs, num_labels, where)
    return HeadConfig(sequence_task(theirs, num_labels), num_labels, summary, use_projection, labels, scope)


def read(theirs: Mapping[str, Any], tensors: dict[str, np.ndarray], folder: Path) -> Found:
    """Read a config.json and its tensors.

    Raises InputError on what this project does not have, and on a setting of the wrong type or value.
    """
    where, notes = str(folder / "config.json"), []
    if not any(name.startswith(BODY + ".") for name in tensors):
        tensors = {f"{BODY}.{name}": value for name, value in tensors.items()}  # saved by the bare XLNetModel
    tied = tensors.pop(TIED, None)
    if tied is not None and not np.array_equal(tied, tensors.get(f"{BODY}.word_embedding.weight", ())):
        raise InputError(f"{folder}: {TIED} is not the embedding; ours are tied")
    shapes = {name: tuple(value.shape) for name, value in tensors.items()}
    sizes = sizes_of(shapes)
    if "num_layers" not in sizes:
        raise InputError(f"{folder}: no layer of an XLNet is among its {len(tensors)} tensors")
    config, head = read_checked(
        theirs, lambda: (model_config(theirs, where), head_config(theirs, shapes, where)), where
    )
    check_sizes(config, sizes, where)
    reuse_len = theirs.get("reuse_len") or None
    if not isinstance(reuse_len or 0, int):
        raise InputError(f"{where}: reuse_len {reuse_len!r} is not a number of positions")
    if config.activation == "gelu_erf":
        notes.append(
            "config.json says ff_activation gelu, which is the exact one in transformers; the 2019 weights were "
            "trained with its tanh form: load with activation gelu if these are theirs"
        )
    if theirs.get("bi_data"):
        notes.append("bi_data: transformers reads the second half of a batch backwards; here each row has its own flag")
    if head and head.task == "regression" and not theirs.get("architectures"):
        notes.append("config.json names no architecture: one score a text is taken for regression")
    if not config.untie_r and not _alike_in_all_layers(tensors):
        config = dataclasses.replace(config, untie_r=True)
        notes.append("config.json says untie_r false, but the r biases differ from layer to layer: kept untied")
    extra = {name: value for name, value in theirs.items() if name not in _OURS}
    return Found(
        config, head, _table(config, head), tensors, None, reuse_len, extra, tuple(notes), thresholds_of(theirs, where)
    )


def _alike_in_all_layers(tensors: Mapping[str, np.ndarray]) -> bool:
    for name in _BIASES:
        layers = [v for k, v in tensors.items() if k.endswith(f"rel_attn.{name}")]
        if any(not np.array_equal(layers[0], other) for other in layers[1:]):
            return False
    return True


_OURS = WRITTEN | {
    *_SIZES.values(), "d_head", "ff_activation", "dropout", "mem_len", "reuse_len",
}  # fmt: skip
_ARCHITECTURES = {
    "classification": "XLNetForSequenceClassification",
    "regression": "XLNetForSequenceClassification",
    "multilabel": "XLNetForSequenceClassification",
    "multiple_choice": "XLNetForMultipleChoice",
    "question_answering": "XLNetForQuestionAnswering",
    "token_classification": "XLNetForTokenClassification",
}


def to_config(pretrained: Pretrained) -> dict[str, Any]:
    """Return the config.json of a network. Raises InputError on what Hugging Face cannot hold."""
    config, head = pretrained.model, pretrained.head
    refuse_beyond_xlnet(config, "Hugging Face's XLNet")
    demand_head_width(config)
    if head and head.reads_summary and head.summary == "attn":
        raise InputError("Hugging Face cannot hold a summary of type attn: it has none; `to` tf1 or native can")
    theirs: dict[str, Any] = {
        "bi_data": False,
        "summary_last_dropout": config.dropout,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 5,
        **pretrained.extra,
        "architectures": ["XLNetLMHeadModel" if head is None else _ARCHITECTURES[head.task]],
        "model_type": "xlnet",
        **{name: getattr(config, ours) for ours, name in _SIZES.items()},
        "d_head": config.d_head,
        "ff_activation": ACTIVATIONS[config.activation],
        "dropout": config.dropout,
        "mem_len": config.mem_len or None,
        "reuse_len": pretrained.reuse_len,
        "tie_word_embeddings": True,
    }
    if head is None:
        return theirs
    if head.scope == SPAN_SCOPE:
        theirs["architectures"] = ["XLNetForQuestionAnsweringSimple"]
    theirs |= head_settings(head) | threshold_settings(pretrained.thresholds)
    if head.task == "regression":
        theirs.setdefault("problem_type", "regression")
    if not head.reads_summary:
        return theirs
    return theirs | {
        "summary_type": head.summary,
        "summary_use_proj": head.use_projection,
        "summary_activation": "tanh" if head.use_projection else _NO_ACTIVATION,
    }


def notes_of(pretrained: Pretrained) -> list[str]:
    """Return notes on settings that transformers ignores or lacks."""
    model, notes = pretrained.model, notes_on_padding(pretrained.head, "transformers")
    notes += notes_on_thresholds(pretrained.thresholds)
    if model.profile != "default":
        notes.append("the profile paper2019 is not written: transformers attends to whatever memory it is given")
    if model.attention_dropout != model.dropout:
        notes.append(
            f"attention_dropout {model.attention_dropout} is not written: there is one dropout, {model.dropout}"
        )
    return notes
