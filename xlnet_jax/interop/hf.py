"""Names, layouts and settings of Hugging Face's XLNet (transformers, modeling_xlnet.py and configuration_xlnet.py)."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from xlnet_jax.config import HeadConfig, InputError, ModelConfig
from xlnet_jax.interop.weights import SAME, TRANSPOSED, TWO_LEADING_ONES, Layout, Weight
from xlnet_jax.rules import validate_network

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
_DENSE = (("kernel", "weight", TRANSPOSED), ("bias", "bias", SAME))
_ACTIVATIONS = {"gelu": "gelu_new", "gelu_erf": "gelu", "relu": "relu"}  # ours -> theirs
_ACTIVATIONS_BACK = {theirs: ours for ours, theirs in _ACTIVATIONS.items()} | {"gelu_pytorch_tanh": "gelu"}
_NO_ACTIVATION = "linear"
SPAN_SCOPE, TAG_SCOPE = "qa_outputs", "classifier"  # last layers of the simple question answering, and of tagging
_SIZES = {  # ours -> theirs
    "vocab_size": "vocab_size", "num_layers": "n_layer", "d_model": "d_model", "num_heads": "n_head",
    "d_ff": "d_inner", "init_std": "initializer_range", "layer_norm_eps": "layer_norm_eps", "clamp_len": "clamp_len",
    "attn_type": "attn_type", "same_length": "same_length", "untie_r": "untie_r",
}  # fmt: skip


def weights(config: ModelConfig, head: HeadConfig | None) -> list[Weight]:
    """The table of a network: one entry a tensor. Hugging Face has r biases in every layer, tied or not."""
    return [*_body(config, head), *_top(head)]


def _body(config: ModelConfig, head: HeadConfig | None) -> Iterator[Weight]:
    yield Weight(f"{BODY}.word_embedding.weight", "backbone/word_embedding")
    mask = f"{BODY}.mask_emb"
    yield Weight(mask, "backbone/mask_embedding", (), TWO_LEADING_ONES, required=head is None)
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
        yield from _dense("start_logits.dense", "start")
        yield from _dense("end_logits.dense_0", "end_inner")
        yield Weight("end_logits.LayerNorm.weight", "end_norm/LayerNorm_0/scale")
        yield Weight("end_logits.LayerNorm.bias", "end_norm/LayerNorm_0/bias")
        yield from _dense("end_logits.dense_1", "end_outer")
        yield from _dense("answer_class.dense_0", "answer_inner")
        yield Weight("answer_class.dense_1.weight", "answer_outer/kernel", (), TRANSPOSED)
    elif head.task == "token_classification":
        yield from _dense(SPAN_SCOPE if head.scope == SPAN_SCOPE else TAG_SCOPE, "logits")
    else:
        if head.use_projection:
            yield from _dense("sequence_summary.summary", "summary/projection")
        yield from _dense("logits_proj", "logits")


def _dense(theirs: str, ours: str) -> Iterator[Weight]:
    for our_leaf, their_leaf, layout in _DENSE:
        yield Weight(f"{theirs}.{their_leaf}", f"{ours}/{our_leaf}", (), layout)


def sizes_of(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The sizes that the weights have, by the names of our settings; those that no tensor tells are left out."""
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
    """Our settings of a config.json; missing ones are Hugging Face's defaults. InputError on what we do not have."""
    activation = theirs.get("ff_activation", "gelu")
    if activation not in _ACTIVATIONS_BACK:
        raise InputError(f"{where}: ff_activation {activation} is none of {', '.join(_ACTIVATIONS_BACK)}")
    if theirs.get("tie_word_embeddings") is False:
        raise InputError(f"{where}: tie_word_embeddings false; the scores of our pieces are by the embedding itself")
    defaults = {
        "vocab_size": 32_000, "n_layer": 24, "d_model": 1024, "n_head": 16, "d_inner": 4096, "initializer_range": 0.02,
        "layer_norm_eps": 1e-12, "clamp_len": -1, "attn_type": "bi", "same_length": False, "untie_r": True,
    }  # fmt: skip
    given = {ours: theirs.get(name, defaults[name]) for ours, name in _SIZES.items()}
    dropout = theirs.get("dropout", 0.1)
    return ModelConfig(
        **given,
        d_head=theirs.get("d_head") or given["d_model"] // given["num_heads"],
        activation=_ACTIVATIONS_BACK[activation],  # type: ignore[arg-type]
        mem_len=theirs.get("mem_len") or 0,
        dropout=dropout,
        attention_dropout=dropout,
    )


def head_config(theirs: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: str) -> HeadConfig | None:
    """The head whose tensors these are; None = language modelling. InputError on a summary that we do not have."""
    labels = _label_names(theirs)
    if "start_logits.dense.weight" in shapes:
        return HeadConfig("question_answering")
    for scope in (TAG_SCOPE, SPAN_SCOPE):
        if f"{scope}.weight" in shapes:
            num_labels = shapes[f"{scope}.weight"][0]
            named = _of_all(labels, num_labels, where)
            return HeadConfig("token_classification", num_labels, labels=named, scope=scope)
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
    task: Literal["regression", "classification"] = "regression" if num_labels == 1 else "classification"
    return HeadConfig(task, num_labels, summary, use_projection, _of_all(labels, num_labels, where), scope)


def _label_names(theirs: Mapping[str, Any]) -> tuple[str, ...]:
    by_index = {int(i): name for i, name in theirs.get("id2label", {}).items()}
    names = [by_index[i] for i in range(len(by_index))]
    return () if names == [f"LABEL_{i}" for i in range(len(names))] else tuple(names)


def _of_all(labels: tuple[str, ...], num_labels: int, where: str) -> tuple[str, ...]:
    if labels and len(labels) != num_labels:
        raise InputError(f"{where}: id2label names {len(labels)} labels, and the weights have {num_labels}")
    return labels


def settings_of(
    theirs: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: str
) -> tuple[ModelConfig, HeadConfig | None]:
    """Our settings of a config.json and of the tensors beside it. InputError on what we do not have, or that is not
    what it should be."""
    try:
        config, head = model_config(theirs, where), head_config(theirs, shapes, where)
    except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{where}: a setting is not what it should be ({type(error).__name__}: {error})") from None
    validate_network(config, head, where)
    if not isinstance(theirs.get("reuse_len") or 0, int):
        raise InputError(f"{where}: reuse_len {theirs['reuse_len']!r} is not a number of positions")
    return config, head


# What `to_config` writes; the rest of a config.json is kept for the way back.
_OURS = {
    *_SIZES.values(), "d_head", "ff_activation", "dropout", "mem_len", "reuse_len", "architectures", "model_type",
    "bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype", "tie_word_embeddings", "id2label",
    "label2id", "summary_type", "summary_use_proj", "summary_activation", "tf1_scope", "transformers_version",
}  # fmt: skip


def extra_of(theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that only transformers has a use for, as bi_data, start_n_top or problem_type."""
    return {name: value for name, value in theirs.items() if name not in _OURS}


_ARCHITECTURES = {
    "classification": "XLNetForSequenceClassification",
    "regression": "XLNetForSequenceClassification",
    "multiple_choice": "XLNetForMultipleChoice",
    "question_answering": "XLNetForQuestionAnswering",
    "token_classification": "XLNetForTokenClassification",
}


def to_config(
    config: ModelConfig, head: HeadConfig | None, reuse_len: int | None, extra: Mapping[str, Any]
) -> dict[str, Any]:
    """The config.json of a network; `extra`: as `extra_of` kept it. InputError on what Hugging Face cannot hold."""
    if config.d_model != config.num_heads * config.d_head:
        raise InputError(
            f"Hugging Face cannot hold num_heads {config.num_heads} x d_head {config.d_head} beside d_model "
            f"{config.d_model}: it has d_head = d_model / n_head alone; --to tf1 or native can"
        )
    if head and head.summary == "attn" and head.task in ("classification", "regression", "multiple_choice"):
        raise InputError("Hugging Face cannot hold a summary of type attn: it has none; --to tf1 or native can")
    theirs: dict[str, Any] = {
        "bi_data": False,
        "summary_last_dropout": config.dropout,
        **extra,
        "architectures": ["XLNetLMHeadModel" if head is None else _ARCHITECTURES[head.task]],
        "model_type": "xlnet",
        **{name: getattr(config, ours) for ours, name in _SIZES.items()},
        "d_head": config.d_head,
        "ff_activation": _ACTIVATIONS[config.activation],
        "dropout": config.dropout,
        "mem_len": config.mem_len or None,
        "reuse_len": reuse_len,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 5,
        "dtype": "float32",
        "tie_word_embeddings": True,
    }
    if head is None:
        return theirs
    if head.scope == SPAN_SCOPE:
        theirs["architectures"] = ["XLNetForQuestionAnsweringSimple"]
    if head.scope and head.scope not in (SPAN_SCOPE, TAG_SCOPE):
        theirs["tf1_scope"] = head.scope
    if head.task not in ("question_answering", "multiple_choice"):
        names = head.labels or tuple(f"LABEL_{i}" for i in range(head.num_labels))
        theirs["id2label"] = dict(enumerate(names))
        theirs["label2id"] = {name: i for i, name in enumerate(names)}
    if head.task == "regression":
        theirs.setdefault("problem_type", "regression")
    return theirs | {
        "summary_type": head.summary,
        "summary_use_proj": head.use_projection,
        "summary_activation": "tanh" if head.use_projection else _NO_ACTIVATION,
    }
