"""Names, layouts and settings of Hugging Face's BERT, RoBERTa, ALBERT and ELECTRA (transformers, modeling_bert.py and
its relatives): one network under four sets of names."""

import dataclasses
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np

from data_pipelines.tokenizer import PAD, SPECIAL_PIECES
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
    sequence_head,
    tagging_head,
)
from xlnet_jax.interop.weights import Layout, Weight, stack
from xlnet_jax.settings.config import HeadConfig, ModelConfig

MODEL_TYPES = ("bert", "roberta", "albert", "electra")
_OTHER_NAMES = {  # by model_type: replacements in BERT's names, applied in order; its body is named by the type
    "bert": {},
    "roberta": {
        "cls.predictions.transform.dense": "lm_head.dense",
        "cls.predictions.transform.LayerNorm": "lm_head.layer_norm",
        "cls.predictions.": "lm_head.",
    },
    "albert": {
        "encoder.layer.0.": "encoder.albert_layer_groups.0.albert_layers.0.",
        "embeddings_project": "encoder.embedding_hidden_mapping_in",
        "pooler.dense": "pooler",
        "attention.self.": "attention.",
        "attention.output.": "attention.",
        "intermediate.dense": "ffn",
        ".output.dense": ".ffn_output",
        ".output.LayerNorm": ".full_layer_layer_norm",
        "cls.predictions.transform.": "predictions.",
        "cls.predictions.": "predictions.",
        "cls.seq_relationship": "sop_classifier.classifier",
    },
    "electra": {
        "pooler.dense": "pooler",
        "cls.predictions.transform.": "generator_predictions.",
        "cls.predictions.decoder.": "generator_lm_head.",
        "cls.predictions.": "generator_lm_head.",
    },
}
_EMBEDDINGS = {"word": "vocab_size", "position": "max_positions", "token_type": "num_segments"}  # theirs -> ours
_DISCRIMINATOR = "discriminator_predictions"
_PAIRS = "cls.seq_relationship"
"""scores of next sentence prediction or of sentence order"""
_HAVE_PAIRS = ("bert", "albert")
_ARE_NARROW = ("albert", "electra")  # embeddings may be narrower than the layers
_HAVE_EXACT_GELU = ("roberta", "electra")  # before their scores, whatever hidden_act says

_SETTINGS: dict[str, tuple[str, Any]] = {  # ours -> theirs, and BERT's default
    "vocab_size": ("vocab_size", 30_522),
    "num_layers": ("num_hidden_layers", 12),
    "d_model": ("hidden_size", 768),
    "num_heads": ("num_attention_heads", 12),
    "d_ff": ("intermediate_size", 3072),
    "max_positions": ("max_position_embeddings", 512),
    "num_segments": ("type_vocab_size", 2),
    "init_std": ("initializer_range", 0.02),
    "layer_norm_eps": ("layer_norm_eps", 1e-12),
    "dropout": ("hidden_dropout_prob", 0.1),
    "attention_dropout": ("attention_probs_dropout_prob", 0.1),
}
_OTHER_DEFAULTS: dict[str, dict[str, Any]] = {
    "albert": {
        "vocab_size": 30_000, "d_model": 4096, "num_heads": 64, "d_ff": 16_384, "dropout": 0.0,
        "attention_dropout": 0.0,
    },
    "electra": {"d_model": 256, "num_heads": 4, "d_ff": 1024},
}  # fmt: skip
_ONLY_HERE = {
    "is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute", "num_hidden_groups": 1,
    "inner_group_num": 1,
}  # fmt: skip
KNOWN = WRITTEN | {theirs for theirs, _ in _SETTINGS.values()} | {"hidden_act", "embedding_size"}


def _model_type(config: ModelConfig, detects: bool) -> str:
    if config.share_layers == "all":
        return "albert"
    if config.embedding_width or detects:
        return "electra"
    return "roberta" if config.position_offset else "bert"


def tokenizer_settings(config: ModelConfig) -> dict[str, Any]:
    """Return the settings in tokenizer_config.json that depend on the network."""
    # transformers counts positions from the first column; RoBERTa's skip the padding token, whose id is the offset - 1.
    pad = {"pad_token": SPECIAL_PIECES[config.position_offset - 1]} if config.position_offset else {}
    return {"padding_side": "right", "model_input_names": ["input_ids", "token_type_ids", "attention_mask"], **pad}


def around(config: ModelConfig) -> dict[str, tuple[tuple[str, int], ...]]:
    """Return the special pieces around one text and two, and the segment of each part."""
    b = min(1, config.num_segments - 1)
    single = (("<cls>", 0), ("A", 0), ("<sep>", 0))
    return {"single": single, "pair": (*single, ("B", b), ("<sep>", b))}


def weights(pretrained: Pretrained) -> Iterator[Weight]:
    """Yield the table of a network: one entry per tensor."""
    model, detects = pretrained.model, pretrained.is_discriminator
    return _table(model, pretrained.head, _model_type(model, detects), detects)


def _table(config: ModelConfig, head: HeadConfig | None, model_type: str, detects: bool) -> Iterator[Weight]:
    for weight in chain(_body(config), _detector() if detects else _top(head, model_type)):
        yield dataclasses.replace(weight, name=_rename(weight.name, model_type))


def _rename(name: str, model_type: str) -> str:
    """Return the name in another network of a part of BERT."""
    for ours, theirs in _OTHER_NAMES[model_type].items():
        name = name.replace(ours, theirs)
    return model_type + name.removeprefix("bert") if name.startswith("bert.") else name


def _detector() -> Iterator[Weight]:
    yield from dense(f"{_DISCRIMINATOR}.dense", "detector/dense")
    yield from dense(f"{_DISCRIMINATOR}.dense_prediction", "detector/logits")


def _body(config: ModelConfig) -> Iterator[Weight]:
    for theirs, size in _EMBEDDINGS.items():
        if getattr(config, size):
            ours = {"token_type": "segment"}.get(theirs, theirs)
            yield Weight(f"bert.embeddings.{theirs}_embeddings.weight", f"backbone/{ours}_embedding")
    yield from norm("bert.embeddings.LayerNorm", "backbone/embedding_norm")
    if config.embedding_width:
        yield from dense("bert.embeddings_project", "backbone/embedding_projection")
    shares_all = config.share_layers == "all"
    for number in range(1 if shares_all else config.num_layers):
        part = () if shares_all else (number,)
        yield from stack(_layer(config, f"bert.encoder.layer.{number}"), part)


def _layer(config: ModelConfig, prefix: str) -> Iterator[Weight]:
    heads = (config.num_heads, config.d_head)
    by_heads = Layout(lambda a: a.reshape(len(a), -1).T, lambda a: a.T.reshape(-1, *heads))
    bias_by_heads = Layout(np.ravel, lambda a: a.reshape(heads))
    for name in ("query", "key", "value"):
        yield Weight(f"{prefix}.attention.self.{name}.weight", f"attention/{name[0]}/kernel", (), by_heads)
        yield Weight(f"{prefix}.attention.self.{name}.bias", f"attention/{name[0]}/bias", (), bias_by_heads)
    yield from dense(f"{prefix}.attention.output.dense", "attention/o")
    yield from norm(f"{prefix}.attention.output.LayerNorm", "attention/norm")
    yield from dense(f"{prefix}.intermediate.dense", "feed_forward/inner")
    yield from dense(f"{prefix}.output.dense", "feed_forward/outer")
    yield from norm(f"{prefix}.output.LayerNorm", "feed_forward/norm")


def _top(head: HeadConfig | None, model_type: str) -> Iterator[Weight]:
    if head is None:
        yield from dense("cls.predictions.transform.dense", "transform/dense")
        yield from norm("cls.predictions.transform.LayerNorm", "transform/norm")
        yield Weight("cls.predictions.bias", "output_bias")
        if model_type in _HAVE_PAIRS:
            yield from dense("bert.pooler.dense", "pair_head/pooler", required=False)
            yield from dense(_PAIRS, "pair_head/logits", required=False)
    elif head.task == "token_classification":
        yield from dense(SPAN_SCOPE if head.scope == SPAN_SCOPE else TAG_SCOPE, "logits")
    elif head.has_weights:
        projection, logits = _sequence_layers(model_type, head.task == "multiple_choice")
        yield from dense(projection, "summary/projection")
        yield from dense(logits, "logits")


def _sequence_layers(model_type: str, chooses: bool) -> tuple[str, str]:
    """Return the projection and the last layer of a sequence head."""
    if model_type == "roberta" and not chooses:
        return "classifier.dense", "classifier.out_proj"
    return "bert.pooler.dense", TAG_SCOPE


def read(
    theirs: Mapping[str, Any], tensors: dict[str, np.ndarray], where: str
) -> tuple[Pretrained, Iterator[Weight], dict[str, np.ndarray]]:
    """Read a config.json and its tensors. Return what they say without parameters and objective, the table, and the
    tensors in its names.

    Raises InputError on what this project does not support, and other errors on settings of a wrong type.
    """
    model_type, notes = theirs["model_type"], []
    variables = _in_todays_names(tensors, model_type)
    for copy, original in (
        ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ):
        drop_copy(variables, _rename(copy, model_type), _rename(original, model_type), where)
    detects = f"{_DISCRIMINATOR}.dense.weight" in variables
    config = _model_config(theirs, model_type, detects, where)
    head = _head_config(theirs, variables, model_type, where)
    projection, _ = _sequence_layers(model_type, head is not None and head.task == "multiple_choice")
    reads_pooler = projection == "bert.pooler.dense" and head is not None and head.reads_summary and head.has_weights
    pooler = _rename("bert.pooler.dense.", model_type)
    if not (reads_pooler or f"{_rename(_PAIRS, model_type)}.weight" in variables):
        found = [name for name in variables if name.startswith(pooler)]
        for name in found:
            del variables[name]
        notes = [f"{pooler[:-1]} is dropped: nothing in these weights uses it"] if found else []
    contents = Pretrained(config, {}, "", head, notes=tuple(notes))
    return contents, _table(config, head, model_type, detects), variables


def _in_todays_names(tensors: Mapping[str, np.ndarray], model_type: str) -> dict[str, np.ndarray]:
    # Old files have a tensor of position ids and TensorFlow's names of layer norms; a bare model has no prefix.
    is_bare = not any(name.startswith(f"{model_type}.") for name in tensors)
    found = {}
    for name, value in tensors.items():
        if not name.endswith(("embeddings.position_ids", "embeddings.token_type_ids")):
            today = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
            found[f"{model_type}.{today}" if is_bare else today] = value
    return found


def _model_config(theirs: Mapping[str, Any], model_type: str, detects: bool, where: str) -> ModelConfig:
    for name, only in _ONLY_HERE.items():
        if theirs.get(name, only) != only:
            raise InputError(f"{where}: {name} {theirs[name]} is not supported, only {only}")
    is_albert = model_type == "albert"
    activation = activation_of(theirs, "hidden_act", "gelu_new" if is_albert else "gelu", where)
    if model_type in _HAVE_EXACT_GELU and not detects and activation != "gelu_erf":
        raise InputError(
            f"{where}: hidden_act {theirs['hidden_act']} is not supported: {model_type}'s scores use the exact gelu"
        )
    defaults = _OTHER_DEFAULTS.get(model_type, {})
    given = {ours: theirs.get(name, defaults.get(ours, bert)) for ours, (name, bert) in _SETTINGS.items()}
    width = theirs.get("embedding_size", 128)
    if given["d_model"] % given["num_heads"]:
        raise InputError(
            f"{where}: num_attention_heads {given['num_heads']} does not divide hidden_size {given['d_model']}"
        )
    return ModelConfig(
        **given,
        d_head=given["d_model"] // given["num_heads"],
        activation=activation,
        mem_len=0,
        positions="learned",
        # RoBERTa's positions start after the padding id.
        position_offset=theirs.get("pad_token_id", 1) + 1 if model_type == "roberta" else 0,
        embedding_width=width if is_albert or (model_type == "electra" and width != given["d_model"]) else None,
        share_layers="all" if is_albert else "none",
    )


def _head_config(
    theirs: Mapping[str, Any], variables: Mapping[str, np.ndarray], model_type: str, where: str
) -> HeadConfig | None:
    architecture = "".join(theirs.get("architectures") or ())
    if f"{SPAN_SCOPE}.weight" in variables:
        return tagging_head(theirs, variables, SPAN_SCOPE, where)
    if f"{TAG_SCOPE}.weight" in variables and "MultipleChoice" in architecture:
        return HeadConfig("multiple_choice", 4, "first")
    projection, logits = (f"{_rename(name, model_type)}.weight" for name in _sequence_layers(model_type, chooses=False))
    if logits in variables and projection in variables and "Token" not in architecture:
        return sequence_head(theirs, len(variables[logits]), "first", True, where)
    is_tagger = f"{TAG_SCOPE}.weight" in variables
    return tagging_head(theirs, variables, TAG_SCOPE, where) if is_tagger else embedding_head(theirs)


def to_config(pretrained: Pretrained) -> dict[str, Any]:
    """Return the config.json of a network. Raises InputError on what Hugging Face's format cannot hold."""
    config, head, detects = pretrained.model, pretrained.head, pretrained.is_discriminator
    model_type = _model_type(config, detects)
    require_head_width(config)
    for what in _beyond(config, head, model_type, detects):
        raise InputError(f"Hugging Face's {model_type} cannot hold {what}: use `to` native")
    has_both = "pair_head" in pretrained.params and model_type in _HAVE_PAIRS
    foreign = pretrained.tokenizer and pretrained.tokenizer.foreign
    settings = {
        "model_type": model_type,
        **{name: getattr(config, ours) for ours, (name, _) in _SETTINGS.items()},
        **({"embedding_size": config.embedding_width or config.d_model} if model_type in _ARE_NARROW else {}),
        "hidden_act": ACTIVATIONS[config.activation],
        # The padding token has no position.
        **({"pad_token_id": config.position_offset - 1} if config.position_offset else {}),
    }
    language_model = "ForPreTraining" if has_both or detects else "ForMaskedLM"
    defaults = {"pad_token_id": int(foreign.theirs[PAD]) if foreign else PAD}
    return config_json(pretrained, model_type.capitalize(), language_model, settings, defaults)


def _beyond(config: ModelConfig, head: HeadConfig | None, model_type: str, detects: bool) -> Iterator[str]:
    if not config.num_segments:
        yield "a network without segments"
    if detects and model_type != "electra":
        yield "a detector with `model.share_layers` all"
    if config.share_layers in ("attention", "feed_forward"):
        yield f"layers that share only a part, `model.share_layers` {config.share_layers}"
    if model_type in _HAVE_EXACT_GELU and not detects and config.activation != "gelu_erf":
        yield f"activation {config.activation}, only gelu_erf"
    if config.position_offset and model_type != "roberta":
        yield f"`model.position_offset` {config.position_offset}"
    if config.share_layers == "all" and not config.embedding_width:
        yield "embeddings as wide as the layers, without a projection"
    if head is None or not head.has_weights:
        return
    if head.task == "question_answering" or (head.reads_summary and model_type == "electra"):
        yield f"this head for {head.task}"
    if head.reads_summary and not (head.summary in ("first", "last") and head.use_projection):
        yield f"a head with summary {head.summary}: it reads its first token, through a projection"
