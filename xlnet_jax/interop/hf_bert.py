"""Names, layouts and settings of Hugging Face's BERT, RoBERTa, ALBERT and ELECTRA (transformers, modeling_bert.py and
its relatives): one network under four sets of names."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from data_pipelines.tokenizer import PAD, Tokenizer
from data_pipelines.tokenizer.symbols import SPECIAL_PIECES
from xlnet_jax.errors import InputError
from xlnet_jax.interop.contents import Found, Pretrained, check_sizes
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
from xlnet_jax.interop.weights import Layout, Weight
from xlnet_jax.settings.config import HeadConfig, ModelConfig


@dataclass(frozen=True)
class Dialect:
    """Names of the parts of a network."""

    body: str
    classes: str  # prefix of its classes
    transform: tuple[str, str]  # its dense layer and its normalisation
    output_bias: str
    copies: tuple[str, str]  # of the embedding and of the bias, in some files
    pooler: str
    pairs: str | None  # the scores of next sentence prediction, or of sentence order
    sequence: tuple[str, str] | None  # projection and last layer of a head for texts; None: it is no such head
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of its settings, by our names, where not BERT's
    projection: str | None = None  # of narrow embeddings
    layer: str = "encoder.layer.{}"
    heads: str = "attention.self"
    layer_parts: tuple[str, ...] = (
        "attention.output.dense", "attention.output.LayerNorm", "intermediate.dense", "output.dense",
        "output.LayerNorm",
    )  # fmt: skip
    exact_gelu: bool = False  # whatever hidden_act says, its scores go through that


DIALECTS = {
    "bert": Dialect(
        "bert",
        "Bert",
        ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm"),
        "cls.predictions.bias",
        ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias"),
        "bert.pooler.dense",
        "cls.seq_relationship",
        ("bert.pooler.dense", "classifier"),
    ),
    "roberta": Dialect(
        "roberta",
        "Roberta",
        ("lm_head.dense", "lm_head.layer_norm"),
        "lm_head.bias",
        ("lm_head.decoder.weight", "lm_head.decoder.bias"),
        "roberta.pooler.dense",
        None,
        ("classifier.dense", "classifier.out_proj"),
        exact_gelu=True,
    ),
    "albert": Dialect(
        "albert",
        "Albert",
        ("predictions.dense", "predictions.LayerNorm"),
        "predictions.bias",
        ("predictions.decoder.weight", "predictions.decoder.bias"),
        "albert.pooler",
        "sop_classifier.classifier",
        ("albert.pooler", "classifier"),
        {
            "vocab_size": 30_000,
            "d_model": 4096,
            "num_heads": 64,
            "d_ff": 16_384,
            "dropout": 0.0,
            "attention_dropout": 0.0,
            "embedding_width": 128,
            "activation": "gelu_new",
        },
        "encoder.embedding_hidden_mapping_in",
        "encoder.albert_layer_groups.0.albert_layers.0",
        "attention",
        ("attention.dense", "attention.LayerNorm", "ffn", "ffn_output", "full_layer_layer_norm"),
    ),
    "electra": Dialect(
        "electra",
        "Electra",
        ("generator_predictions.dense", "generator_predictions.LayerNorm"),
        "generator_lm_head.bias",
        ("generator_lm_head.weight", ""),
        "electra.pooler",
        None,
        None,
        {"d_model": 256, "num_heads": 4, "d_ff": 1024, "embedding_width": 128},
        "embeddings_project",
        exact_gelu=True,
    ),
}

_SIZES = {  # ours -> theirs
    "vocab_size": "vocab_size", "num_layers": "num_hidden_layers", "d_model": "hidden_size",
    "num_heads": "num_attention_heads", "d_ff": "intermediate_size", "max_positions": "max_position_embeddings",
    "num_segments": "type_vocab_size", "init_std": "initializer_range", "layer_norm_eps": "layer_norm_eps",
    "dropout": "hidden_dropout_prob", "attention_dropout": "attention_probs_dropout_prob",
}  # fmt: skip
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 30_522, "num_layers": 12, "d_model": 768, "num_heads": 12, "d_ff": 3072, "max_positions": 512,
    "num_segments": 2, "init_std": 0.02, "layer_norm_eps": 1e-12, "dropout": 0.1, "attention_dropout": 0.1,
    "activation": "gelu",
}  # fmt: skip
_EMBEDDINGS = {"word": "vocab_size", "position": "max_positions", "token_type": "num_segments"}  # theirs -> ours
_EMBEDDING_OF = {"word": "word", "position": "position", "token_type": "segment"}
_NOT_OURS = {
    "is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute", "num_hidden_groups": 1,
    "inner_group_num": 1,
}  # fmt: skip
_NARROW = ("albert", "electra")  # whose embeddings have a width of their own
_DISCRIMINATOR = "discriminator_predictions"


def _dialect(config: ModelConfig, detects: bool) -> str:
    if config.share_layers:
        return "albert"
    if config.embedding_width or detects:
        return "electra"
    return "roberta" if config.position_offset else "bert"


def tokenizer_settings(config: ModelConfig) -> dict[str, Any]:
    """Return what tokenizer_config.json says of the network."""
    # Places count from the first column there, or from the first token that is not the one before the offset.
    pad = {"pad_token": SPECIAL_PIECES[config.position_offset - 1]} if config.position_offset else {}
    return {"padding_side": "right", "model_input_names": ["input_ids", "token_type_ids", "attention_mask"], **pad}


def around(config: ModelConfig) -> dict[str, tuple[tuple[str, int], ...]]:
    """Return the special pieces around one text and two, and the segment of each part."""
    b = min(1, config.num_segments - 1)
    single = (("<cls>", 0), ("A", 0), ("<sep>", 0))
    return {"single": single, "pair": (*single, ("B", b), ("<sep>", b))}


def weights(pretrained: Pretrained) -> list[Weight]:
    """Return the table of a network: one entry a tensor."""
    detects = pretrained.judges_tokens
    names = DIALECTS[_dialect(pretrained.model, detects)]
    return _table(pretrained.model, pretrained.head, names, detects)


def _table(config: ModelConfig, head: HeadConfig | None, names: Dialect, detects: bool) -> list[Weight]:
    if detects:
        return [*_body(config, names), *_detector()]
    return [*_body(config, names), *_top(head, names)]


def _detector() -> Iterator[Weight]:
    yield from dense(f"{_DISCRIMINATOR}.dense", "detector/dense")
    yield from dense(f"{_DISCRIMINATOR}.dense_prediction", "detector/logits")


def _body(config: ModelConfig, names: Dialect) -> Iterator[Weight]:
    for theirs, size in _EMBEDDINGS.items():
        if getattr(config, size):
            ours = f"backbone/{_EMBEDDING_OF[theirs]}_embedding"
            yield Weight(f"{names.body}.embeddings.{theirs}_embeddings.weight", ours)
    yield from norm(f"{names.body}.embeddings.LayerNorm", "backbone/embedding_norm")
    if names.projection and config.embedding_width:
        yield from dense(f"{names.body}.{names.projection}", "backbone/embedding_projection")
    for number in range(1 if config.share_layers else config.num_layers):
        part = () if config.share_layers else (number,)
        for weight in _layer(config, f"{names.body}.{names.layer.format(number)}", names):
            yield Weight(weight.name, f"backbone/layers/{weight.path}", part, weight.layout)


def _layer(config: ModelConfig, prefix: str, names: Dialect) -> Iterator[Weight]:
    heads = (config.num_heads, config.d_head)
    by_heads = Layout(lambda a: a.reshape(len(a), -1).T, lambda a: a.T.reshape(-1, *heads))
    bias_by_heads = Layout(np.ravel, lambda a: a.reshape(heads))
    for name in ("query", "key", "value"):
        yield Weight(f"{prefix}.{names.heads}.{name}.weight", f"attention/{name[0]}/kernel", (), by_heads)
        yield Weight(f"{prefix}.{names.heads}.{name}.bias", f"attention/{name[0]}/bias", (), bias_by_heads)
    out, norm_of_out, inner, outer, norm_of_outer = (f"{prefix}.{part}" for part in names.layer_parts)
    yield from dense(out, "attention/o")
    yield from norm(norm_of_out, "attention/norm")
    yield from dense(inner, "feed_forward/inner")
    yield from dense(outer, "feed_forward/outer")
    yield from norm(norm_of_outer, "feed_forward/norm")


def _top(head: HeadConfig | None, names: Dialect) -> Iterator[Weight]:
    if head is None:
        yield from dense(names.transform[0], "transform/dense")
        yield from norm(names.transform[1], "transform/norm")
        yield Weight(names.output_bias, "output_bias")
        if names.pairs:
            yield from dense(names.pooler, "pair_head/pooler", required=False)
            yield from dense(names.pairs, "pair_head/logits", required=False)
    elif head.task == "token_classification":
        yield from dense(SPAN_SCOPE if head.scope == SPAN_SCOPE else TAG_SCOPE, "logits")
    else:
        assert names.sequence
        projection, logits = (names.pooler, TAG_SCOPE) if head.task == "multiple_choice" else names.sequence
        yield from dense(projection, "summary/projection")
        yield from dense(logits, "logits")


def read(theirs: Mapping[str, Any], tensors: dict[str, np.ndarray], folder: Path) -> Found:
    """Read a config.json and its tensors.

    Raises InputError on what this project does not have, and on a setting of the wrong type or value.
    """
    where, names = str(folder / "config.json"), DIALECTS[theirs["model_type"]]
    variables = _in_todays_names(tensors, names)
    _drop_copies(variables, names, folder)
    shapes = {name: tuple(value.shape) for name, value in variables.items()}
    sizes = _sizes_of(shapes, names)
    if "d_ff" not in sizes:
        raise InputError(f"{folder}: no layer of a {names.classes} is among its {len(tensors)} tensors")
    detects = f"{_DISCRIMINATOR}.dense.weight" in shapes
    config, head = read_checked(
        theirs,
        lambda: (_model_config(theirs, names, detects, where), _head_config(theirs, shapes, names, where)),
        where,
    )
    check_sizes(config, sizes, where)
    table, notes = _table(config, head, names, detects), []
    reads_pooler = any(
        weight.name == f"{names.pooler}.weight" and (weight.required or f"{names.pairs}.weight" in shapes)
        for weight in table
    )
    if not reads_pooler and variables.keys() & {f"{names.pooler}.weight", f"{names.pooler}.bias"}:
        variables = {name: a for name, a in variables.items() if not name.startswith(f"{names.pooler}.")}
        notes.append(f"{names.pooler} stays behind: nothing in these weights reads it")
    if head and head.task == "regression" and not theirs.get("architectures"):
        notes.append("config.json names no architecture: one score a text is taken for regression")
    extra = {name: value for name, value in theirs.items() if name not in _OURS}
    return Found(config, head, table, variables, None, None, extra, tuple(notes), thresholds_of(theirs, where))


def _in_todays_names(tensors: Mapping[str, np.ndarray], names: Dialect) -> dict[str, np.ndarray]:
    # Old files hold a tensor of position numbers and TensorFlow's names of normalisation; a bare network has no prefix.
    is_bare = not any(name.startswith(f"{names.body}.") for name in tensors)
    found = {}
    for name, value in tensors.items():
        if not name.endswith(("embeddings.position_ids", "embeddings.token_type_ids")):
            today = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
            found[f"{names.body}.{today}" if is_bare else today] = value
    return found


def _drop_copies(variables: dict[str, np.ndarray], names: Dialect, folder: Path) -> None:
    originals = (f"{names.body}.embeddings.word_embeddings.weight", names.output_bias)
    for copy, original in zip(names.copies, originals, strict=True):
        value = variables.pop(copy, None)
        if value is not None and not np.array_equal(value, variables.get(original, ())):
            raise InputError(f"{folder}: {copy} is not {original}; ours are tied")


def _sizes_of(shapes: Mapping[str, tuple[int, ...]], names: Dialect) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for theirs, ours in _EMBEDDINGS.items():
        shape = shapes.get(f"{names.body}.embeddings.{theirs}_embeddings.weight", ())
        if len(shape) == 2:
            sizes[ours] = shape[0]
    inner_of = f"{names.body}.{names.layer}.{names.layer_parts[2]}.weight"
    inner = shapes.get(inner_of.format(0), ())
    if len(inner) == 2:
        sizes["d_ff"], sizes["d_model"] = inner
    if inner_of != inner_of.format(0):
        sizes["num_layers"] = sum(inner_of.format(number) in shapes for number in range(len(shapes)))
    narrow = shapes.get(f"{names.body}.{names.projection}.weight", ())
    return sizes | ({"embedding_width": narrow[1]} if len(narrow) == 2 else {})


def _model_config(theirs: Mapping[str, Any], names: Dialect, detects: bool, where: str) -> ModelConfig:
    demand_tied(theirs, where)
    for name, only in _NOT_OURS.items():
        if theirs.get(name, only) != only:
            raise InputError(f"{where}: {name} {theirs[name]}; there is {only} alone here")
    defaults = {**_DEFAULTS, **names.defaults}
    activation = activation_of(theirs, "hidden_act", defaults["activation"], where)
    if names.exact_gelu and not detects and activation != "gelu_erf":
        raise InputError(
            f"{where}: hidden_act {theirs['hidden_act']}; {names.classes}'s scores go through the exact gelu"
        )
    given = {ours: theirs.get(name, defaults[ours]) for ours, name in _SIZES.items()}
    width = theirs.get("embedding_size", defaults.get("embedding_width"))
    has_projection = names.projection and (names.body == "albert" or width != given["d_model"])
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
        # RoBERTa counts from behind the place of its padding.
        position_offset=theirs.get("pad_token_id", 1) + 1 if names.body == "roberta" else 0,
        embedding_width=width if has_projection else None,
        share_layers=names.body == "albert",
    )


def _head_config(
    theirs: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], names: Dialect, where: str
) -> HeadConfig | None:
    architecture = "".join(theirs.get("architectures") or ())
    if f"{SPAN_SCOPE}.weight" in shapes:
        return tagging_head(theirs, shapes, SPAN_SCOPE, where)
    if f"{TAG_SCOPE}.weight" in shapes and "MultipleChoice" in architecture:
        return HeadConfig("multiple_choice", 4, "first")
    projection, logits = names.sequence or (names.pooler, TAG_SCOPE)
    if f"{logits}.weight" in shapes and f"{projection}.weight" in shapes and "Token" not in architecture:
        num_labels = shapes[f"{logits}.weight"][0]
        labels = labels_of(theirs, num_labels, where)
        return HeadConfig(
            sequence_task(theirs, num_labels), num_labels, "first", labels=labels, scope=theirs.get("tf1_scope", "")
        )
    return tagging_head(theirs, shapes, TAG_SCOPE, where) if f"{TAG_SCOPE}.weight" in shapes else None


_OURS = WRITTEN | set(_SIZES.values()) | {"hidden_act", "embedding_size"}
_ARCHITECTURES = {
    "classification": "SequenceClassification",
    "regression": "SequenceClassification",
    "multilabel": "SequenceClassification",
    "multiple_choice": "MultipleChoice",
    "token_classification": "TokenClassification",
}


def to_config(pretrained: Pretrained) -> dict[str, Any]:
    """Return the config.json of a network. Raises InputError on what Hugging Face cannot hold."""
    config, head, detects = pretrained.model, pretrained.head, pretrained.judges_tokens
    model_type = _dialect(config, detects)
    demand_head_width(config)
    if not config.num_segments:
        raise InputError(f"Hugging Face's {model_type} cannot hold a network without segments: `to` native can")
    names = DIALECTS[model_type]
    if detects and model_type != "electra":
        raise InputError("Hugging Face's electra cannot hold model.share-layers: `to` native can")
    if names.exact_gelu and not detects and config.activation != "gelu_erf":
        raise InputError(
            f"Hugging Face's {model_type} cannot hold activation {config.activation}: it has gelu_erf alone"
        )
    if config.position_offset and model_type != "roberta":
        raise InputError(f"Hugging Face's {model_type} cannot hold model.position-offset {config.position_offset}")
    if config.share_layers and not config.embedding_width:
        raise InputError("Hugging Face's albert cannot hold embeddings as wide as the layers, without a projection")
    if head is None:
        has_both = "pair_head" in pretrained.params and names.pairs
        kind = "PreTraining" if has_both or detects else "MaskedLM"
    else:
        _demand_theirs(head, model_type)
        kind = "QuestionAnswering" if head.scope == SPAN_SCOPE else _ARCHITECTURES[head.task]
    regression = {"problem_type": "regression"} if head and head.task == "regression" else {}
    offset = config.position_offset
    return {
        **regression,
        "pad_token_id": _pad_id(pretrained.tokenizer),
        **pretrained.extra,
        "architectures": [f"{names.classes}For{kind}"],
        "model_type": model_type,
        **{name: getattr(config, ours) for ours, name in _SIZES.items()},
        **({"embedding_size": config.embedding_width or config.d_model} if names.body in _NARROW else {}),
        "hidden_act": ACTIVATIONS[config.activation],
        **({"pad_token_id": offset - 1} if offset else {}),  # which is not counted as a place
        "tie_word_embeddings": True,
        **head_settings(head),
        **threshold_settings(pretrained.thresholds),
    }


def _pad_id(tokenizer: Tokenizer | None) -> int:
    return int(tokenizer.foreign.theirs[PAD]) if tokenizer and tokenizer.foreign else PAD


def _demand_theirs(head: HeadConfig, model_type: str) -> None:
    if head.task == "question_answering" or (head.reads_summary and not DIALECTS[model_type].sequence):
        raise InputError(f"Hugging Face's {model_type} cannot hold this head for {head.task}: native can")
    if head.reads_summary and not (head.summary in ("first", "last") and head.use_projection):
        raise InputError(
            f"Hugging Face's {model_type} reads its first token, through a projection; this head has summary "
            f"{head.summary}{'' if head.use_projection else ' without one'}: native can hold it"
        )


def notes_of(pretrained: Pretrained) -> list[str]:
    """Return notes on the padding that transformers needs."""
    notes = ["texts are <cls> A <sep> B <sep> there, and places counted from the first column: pad on the right"]
    notes += notes_on_thresholds(pretrained.thresholds)
    if pretrained.model.position_offset:
        notes += [
            f"places are counted there by what is not token {pretrained.model.position_offset - 1}: pad with that"
        ]
    return notes
