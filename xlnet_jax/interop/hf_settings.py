"""Settings in config.json that all Hugging Face networks share (transformers, configuration_utils.py)."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from xlnet_jax.errors import InputError, shown
from xlnet_jax.interop.contents import (
    LABEL_THRESHOLD,
    NULL_THRESHOLD,
    Pretrained,
    Thresholds,
    describe_thresholds,
    read_thresholds,
)
from xlnet_jax.interop.weights import SAME, TRANSPOSED, Weight
from xlnet_jax.settings.config import HeadConfig, ModelConfig
from xlnet_jax.storage.reading import Positive, with_version, without_version

SPAN_SCOPE, TAG_SCOPE = "qa_outputs", "classifier"  # last layers for simple question answering and for tagging
ACTIVATIONS = {"gelu": "gelu_new", "gelu_erf": "gelu", "relu": "relu"}  # ours -> theirs
_ACTIVATIONS_BACK = {theirs: ours for ours, theirs in ACTIVATIONS.items()} | {"gelu_pytorch_tanh": "gelu"}
OURS = "xlnet_jax"  # key for what transformers has no name for
MULTILABEL = "multi_label_classification"  # problem_type
# `to_config` writes these anew.
WRITTEN = {
    "architectures", "model_type", "dtype", "torch_dtype", "tie_word_embeddings", OURS, "tf1_scope", "id2label",
    "label2id", "transformers_version",
}  # fmt: skip
_ARCHITECTURES = {  # ends of the names of transformers' classes
    "classification": "ForSequenceClassification",
    "regression": "ForSequenceClassification",
    "multilabel": "ForSequenceClassification",
    "multiple_choice": "ForMultipleChoice",
    "question_answering": "ForQuestionAnswering",
    "token_classification": "ForTokenClassification",
    "embedding": "Model",
}
_Id = Annotated[int, msgspec.Meta(ge=-1, lt=2**31)]
_Dropout = Annotated[float, msgspec.Meta(ge=0, le=1)]
# Numbers and words of a fixed list only: by a text, transformers may load code, kernels, files or other repositories.
_KEPT: dict[str, Any] = {
    "bos_token_id": _Id | None,
    "eos_token_id": _Id | list[_Id] | None,
    "pad_token_id": _Id | None,
    "problem_type": Literal["regression", "single_label_classification", "multi_label_classification"] | None,
    "summary_type": Literal["last", "first", "mean"],
    "summary_activation": Literal["tanh", "gelu", "linear"] | None,
    **dict.fromkeys(("summary_last_dropout", "classifier_dropout", "classifier_dropout_prob"), _Dropout | None),
    **dict.fromkeys(("start_n_top", "end_n_top", "num_hidden_groups", "inner_group_num"), Positive),
    **dict.fromkeys(
        ("summary_use_proj", "bi_data", "use_mems_eval", "use_mems_train", "use_cache", "is_decoder",
         "add_cross_attention"), bool,
    ),
    "position_embedding_type": Literal["absolute"],
}  # fmt: skip


def keep_settings(theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a config.json that mean nothing to us but are kept for converting back."""
    kept = {}
    for name, form in _KEPT.items():
        with contextlib.suppress(KeyError, msgspec.ValidationError):
            kept[name] = msgspec.convert(theirs[name], form)
    return kept


def activation_of(theirs: Mapping[str, Any], name: str, default: str, where: str) -> Any:
    """Return our name for the activation. Raises InputError on an unsupported one."""
    activation = theirs.get(name, default)
    if activation not in _ACTIVATIONS_BACK:
        raise InputError(f"{where}: {name} {activation} is not supported, only {', '.join(_ACTIVATIONS_BACK)}")
    return _ACTIVATIONS_BACK[activation]


def drop_copy(variables: dict[str, np.ndarray], copy: str, original: str, where: str) -> None:
    """Remove an array that some files hold as a copy of another one. Raises InputError if they differ."""
    copied = variables.pop(copy, None) if copy != original else None
    if copied is not None and not np.array_equal(copied, variables.get(original, ())):
        raise InputError(f"{where}: {copy} differs from {original}; only tied weights are supported")


def tagging_head(theirs: Mapping[str, Any], variables: Mapping[str, np.ndarray], scope: str, where: str) -> HeadConfig:
    """Return the tagging head with this name of its last layer."""
    num_labels = len(variables[f"{scope}.weight"])
    return HeadConfig("token_classification", num_labels, labels=_labels_of(theirs, num_labels, where), scope=scope)


def sequence_head(
    theirs: Mapping[str, Any], num_labels: int, summary: Any, use_projection: bool, where: str
) -> HeadConfig:
    """Return the head of a sequence: one label means regression, as in transformers, unless problem_type is
    multi-label."""
    task: Literal["regression", "classification", "multilabel"] = "regression" if num_labels == 1 else "classification"
    if theirs.get("problem_type") == MULTILABEL:
        task = "multilabel"
    labels = _labels_of(theirs, num_labels, where)
    return HeadConfig(task, num_labels, summary, use_projection, labels, scope_of(theirs, where))


def _labels_of(theirs: Mapping[str, Any], num_labels: int, where: str) -> tuple[str, ...]:
    """Return the names of the labels, or () for the default LABEL_0, LABEL_1, … Raises InputError if the weights have
    another number of labels."""
    by_index = {int(i): name for i, name in theirs.get("id2label", {}).items()}
    labels = tuple(by_index[i] for i in range(len(by_index)))
    if all(name == f"LABEL_{i}" for i, name in enumerate(labels)):
        return ()
    if len(labels) != num_labels:
        raise InputError(f"{where}: id2label names {len(labels)} labels, but the weights have {num_labels}")
    return labels


def config_json(
    pretrained: Pretrained, prefix: str, language_model: str, settings: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the config.json of a network and its head.

    prefix, language_model: beginning of the names of transformers' classes, and its end without a head. settings: of
    the network. defaults: settings whose values a checkpoint of Hugging Face keeps.
    """
    head = pretrained.head
    kind = language_model if head is None else _ARCHITECTURES[head.task]
    if head and head.scope == SPAN_SCOPE:
        kind = "ForQuestionAnsweringSimple" if prefix == "XLNet" else "ForQuestionAnswering"
    return {
        **defaults,
        **({"problem_type": "regression"} if head and head.task == "regression" else {}),
        **pretrained.extra,
        "architectures": [prefix + kind],
        "tie_word_embeddings": True,
        **settings,
        **(_head_settings(head) if head else {}),
        # transformers keeps the thresholds, but does not apply them.
        **({OURS: with_version("thresholds", pretrained.thresholds)} if pretrained.thresholds else {}),
    }


def _head_settings(head: HeadConfig) -> dict[str, Any]:
    """Return the settings of a head: its label names, and the scope of its layer in a 2019 checkpoint."""
    theirs: dict[str, Any] = {}
    if head.task == "multilabel":
        theirs["problem_type"] = MULTILABEL
    if head.scope and head.scope not in (SPAN_SCOPE, TAG_SCOPE):
        theirs["tf1_scope"] = head.scope
    if not head.has_weights:
        theirs |= {"summary_type": head.summary, "summary_use_proj": False}
    elif head.task not in ("question_answering", "multiple_choice"):
        names = head.labels or tuple(f"LABEL_{i}" for i in range(head.num_labels))
        theirs["id2label"] = dict(enumerate(names))
        theirs["label2id"] = {name: i for i, name in enumerate(names)}
    return theirs


def scope_of(theirs: Mapping[str, Any], where: str) -> str:
    """Return the scope of a head's layer in a 2019 checkpoint. Raises InputError if it is not one word."""
    scope: str = theirs.get("tf1_scope", "")
    if not re.fullmatch(r"[\w.-]*", scope):
        raise InputError(f"{where}: tf1_scope {shown(scope)} is not the name of one layer")
    return scope


def embedding_head(theirs: Mapping[str, Any]) -> HeadConfig | None:
    """Return the head for embedding that `_head_settings` describes; None if it is another."""
    is_bare = "".join(theirs.get("architectures") or ()).lower() == f"{theirs.get('model_type', 'xlnet')}model"
    if is_bare and theirs.get("summary_use_proj") is False:
        return HeadConfig("embedding", summary=theirs.get("summary_type", "last"), use_projection=False)
    return None


def thresholds_of(theirs: Mapping[str, Any], where: str) -> Thresholds:
    """Return the thresholds in a config.json. Raises an error if they are malformed."""
    if OURS not in theirs:
        return {}
    return read_thresholds(without_version("thresholds", theirs[OURS], f"{where}: {OURS}"))


def notes_on_thresholds(thresholds: Thresholds) -> list[str]:
    """Return a note on thresholds that transformers does not apply."""
    rules = {
        NULL_THRESHOLD: "a question is unanswerable if the largest cls_logits of its windows exceeds it",
        LABEL_THRESHOLD: "a text has the labels with at least that probability",
    }
    found = describe_thresholds(thresholds)
    rule = "; ".join(rules[name] for name in thresholds)
    return [f"{found} is in config.json, but transformers does not apply it: {rule}"] if found else []


def require_head_width(config: ModelConfig) -> None:
    """Raise InputError if d_head is not d_model / num_heads, which Hugging Face requires."""
    if config.d_model != config.num_heads * config.d_head:
        heads = f"num_heads {config.num_heads} x d_head {config.d_head}"
        raise InputError(f"Hugging Face cannot hold {heads} with d_model {config.d_model}: use `to` native")


def dense(theirs: str, ours: str, required: bool = True) -> Iterator[Weight]:
    """Yield the weights of a dense layer with a bias."""
    yield Weight(f"{theirs}.weight", f"{ours}/kernel", (), TRANSPOSED, required)
    yield Weight(f"{theirs}.bias", f"{ours}/bias", (), SAME, required)


def norm(theirs: str, ours: str) -> Iterator[Weight]:
    """Yield the weights of a layer norm."""
    yield Weight(f"{theirs}.weight", f"{ours}/LayerNorm_0/scale")
    yield Weight(f"{theirs}.bias", f"{ours}/LayerNorm_0/bias")
