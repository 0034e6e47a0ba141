"""Names and layouts of the 2019 TensorFlow 1 variables (modeling.py, function_builder.py, run_squad.py)."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from xlnet_jax.errors import InputError
from xlnet_jax.interop.weights import TWO_LEADING_ONES, Weight, refuse_beyond_xlnet
from xlnet_jax.settings.config import HeadConfig, ModelConfig

BODY = "model/transformer"
SUMMARY = "model/sequnece_summary"  # as the original spells it
RACE_SCOPE = "logits/dense"

_LAYER = {  # our path in a layer -> name under layer_<i>
    "attention/q": "rel_attn/q/kernel",
    "attention/k": "rel_attn/k/kernel",
    "attention/v": "rel_attn/v/kernel",
    "attention/r": "rel_attn/r/kernel",
    "attention/o": "rel_attn/o/kernel",
    "attention/norm/LayerNorm_0/scale": "rel_attn/LayerNorm/gamma",
    "attention/norm/LayerNorm_0/bias": "rel_attn/LayerNorm/beta",
    "feed_forward/inner/kernel": "ff/layer_1/kernel",
    "feed_forward/inner/bias": "ff/layer_1/bias",
    "feed_forward/outer/kernel": "ff/layer_2/kernel",
    "feed_forward/outer/bias": "ff/layer_2/bias",
    "feed_forward/norm/LayerNorm_0/scale": "ff/LayerNorm/gamma",
    "feed_forward/norm/LayerNorm_0/bias": "ff/LayerNorm/beta",
}
_BIASES = ("r_w_bias", "r_r_bias", "r_s_bias")
_POOL = {
    "summary/attention/query": "summary_bias",
    **{f"summary/attention/{x}": f"abs_attn/{x}/kernel" for x in "qkvo"},
    "summary/attention/norm/LayerNorm_0/scale": "abs_attn/LayerNorm/gamma",
    "summary/attention/norm/LayerNorm_0/bias": "abs_attn/LayerNorm/beta",
}
_PROJECTION = {f"summary/projection/{x}": f"summary/{x}" for x in ("kernel", "bias")}
_SPAN = {
    "start/kernel": "start_logits/dense/kernel",
    "start/bias": "start_logits/dense/bias",
    "end_inner/kernel": "end_logits/dense_0/kernel",
    "end_inner/bias": "end_logits/dense_0/bias",
    "end_norm/LayerNorm_0/scale": "end_logits/LayerNorm/gamma",
    "end_norm/LayerNorm_0/bias": "end_logits/LayerNorm/beta",
    "end_outer/kernel": "end_logits/dense_1/kernel",
    "end_outer/bias": "end_logits/dense_1/bias",
    "answer_inner/kernel": "answer_class/dense_0/kernel",
    "answer_inner/bias": "answer_class/dense_0/bias",
    "answer_outer/kernel": "answer_class/dense_1/kernel",
}


def weights(config: ModelConfig, head: HeadConfig | None) -> list[Weight]:
    """Return the table of a network: one entry a variable."""
    return [*_body(config), *_top(head)]


def _body(config: ModelConfig) -> Iterator[Weight]:
    yield Weight(f"{BODY}/word_embedding/lookup_table", "backbone/word_embedding")
    # The original makes it only where there is a query stream.
    yield Weight(f"{BODY}/mask_emb/mask_emb", "backbone/mask_embedding", (), TWO_LEADING_ONES, required=False)
    for number, name in enumerate(_BIASES):
        if config.untie_r:
            yield Weight(f"{BODY}/{name}", "backbone/layers/attention/biases", (slice(None), number))
        else:
            yield Weight(f"{BODY}/{name}", "backbone/biases", (number,))
    yield Weight(f"{BODY}/seg_embed", "backbone/layers/attention/segment_embedding")
    for layer in range(config.num_layers):
        for ours, theirs in _LAYER.items():
            yield Weight(f"{BODY}/layer_{layer}/{theirs}", f"backbone/layers/{ours}", (layer,))


def _top(head: HeadConfig | None) -> Iterator[Weight]:
    if head is None:
        yield Weight("model/lm_loss/bias", "output_bias")
    elif head.task == "question_answering":
        yield from (Weight(theirs, ours) for ours, theirs in _SPAN.items())
    else:
        if head.task != "token_classification":
            summary = (_POOL if head.summary == "attn" else {}) | (_PROJECTION if head.use_projection else {})
            yield from (Weight(f"{SUMMARY}/{theirs}", ours) for ours, theirs in summary.items())
        scope = RACE_SCOPE if head.task == "multiple_choice" else f"model/{scope_of(head)}/logit"
        yield from (Weight(f"{scope}/{x}", f"logits/{x}") for x in ("kernel", "bias"))


def scope_of(head: HeadConfig) -> str:
    """Return the scope of the last layer: that of its checkpoint, or the original's for a task without a name."""
    return head.scope or f"{head.task}_task"


def head_of(names: Iterable[str], num_labels: int | None) -> HeadConfig | None:
    """Return the head that has these variables; None = language modelling, or the backbone alone.

    num_labels: columns of the last layer. The original does not store the type of its summary; where no variable shows
    it, it is the default, the last token.
    """
    names = set(names)
    if "start_logits/dense/kernel" in names:
        return HeadConfig("question_answering")
    scopes = [n.split("/")[1] for n in sorted(names) if n.startswith("model/") and n.endswith("/logit/kernel")]
    if not scopes and f"{RACE_SCOPE}/kernel" not in names:
        return None
    summary: Literal["attn", "last"] = "attn" if f"{SUMMARY}/summary_bias" in names else "last"
    use_projection = f"{SUMMARY}/summary/kernel" in names
    if not scopes:
        return HeadConfig("multiple_choice", 4, summary, use_projection)
    if num_labels == 1:
        return HeadConfig("regression", 1, summary, use_projection, scope=scopes[0])
    return HeadConfig("classification", num_labels or 2, summary, use_projection, scope=scopes[0])


SIZES = {  # ours -> theirs, in xlnet_config.json
    "vocab_size": "n_token", "num_layers": "n_layer", "d_model": "d_model", "num_heads": "n_head",
    "d_head": "d_head", "d_ff": "d_inner", "untie_r": "untie_r",
}  # fmt: skip


def sizes_of(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Return the sizes of the variables, under the names of our settings."""
    sizes: dict[str, Any] = {}
    known = "|".join(_LAYER.values())
    if layers := {match[1] for name in shapes if (match := re.fullmatch(rf"{BODY}/layer_(\d+)/({known})", name))}:
        sizes["num_layers"] = len(layers)
    for name, shape in shapes.items():
        if name == f"{BODY}/word_embedding/lookup_table" and len(shape) == 2:
            sizes["vocab_size"] = shape[0]
        elif name.endswith("/rel_attn/q/kernel") and len(shape) == 3:
            sizes["d_model"], sizes["num_heads"], sizes["d_head"] = shape
        elif name.endswith("/ff/layer_1/kernel") and len(shape) == 2:
            sizes["d_ff"] = shape[1]
        elif name == f"{BODY}/r_w_bias" and len(shape) in (2, 3):
            sizes["untie_r"] = len(shape) == 3
    return sizes


def model_config(theirs: Mapping[str, Any], where: str) -> ModelConfig:
    """Return our settings for an xlnet_config.json. Raises InputError where one is missing or unknown."""
    if missing := [name for name in (*SIZES.values(), "ff_activation") if name not in theirs]:
        raise InputError(f"{where}: {', '.join(missing)} missing")
    if theirs["ff_activation"] not in ("gelu", "relu"):
        raise InputError(f"{where}: ff_activation {theirs['ff_activation']} is neither gelu nor relu")
    sizes = {ours: theirs[name] for ours, name in SIZES.items()}
    return ModelConfig(**sizes, activation=theirs["ff_activation"])


def to_config(config: ModelConfig, head: HeadConfig | None) -> dict[str, Any]:
    """Return the xlnet_config.json of a network. Raises InputError on what the original cannot hold."""
    refuse_beyond_xlnet(config, "the original")
    if config.activation == "gelu_erf":
        raise InputError(
            "the original cannot hold activation gelu_erf: its gelu is the tanh form; `activation` gelu takes these "
            "weights for that"
        )
    if config.layer_norm_eps != 1e-12:
        raise InputError(f"the original cannot hold layer_norm_eps {config.layer_norm_eps}: its own is 1e-12")
    if head and head.task in ("token_classification", "multilabel"):
        raise InputError(f"the original has no head for {head.task}; `to` hf or native")
    return {name: getattr(config, ours) for ours, name in SIZES.items()} | {"ff_activation": config.activation}
