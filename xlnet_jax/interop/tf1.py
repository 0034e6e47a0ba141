"""Names and layouts of the 2019 TensorFlow 1 variables (modeling.py, function_builder.py, run_squad.py)."""

from collections.abc import Iterable, Iterator
from typing import Literal

from xlnet_jax.config import HeadConfig, ModelConfig
from xlnet_jax.interop.weights import TWO_LEADING_ONES, Weight

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
    """The table of a network: one entry a variable."""
    return [*_body(config, head), *_top(head)]


def _body(config: ModelConfig, head: HeadConfig | None) -> Iterator[Weight]:
    yield Weight(f"{BODY}/word_embedding/lookup_table", "backbone/word_embedding")
    # The original makes it only where there is a query stream.
    mask, without_query_stream = f"{BODY}/mask_emb/mask_emb", head is not None
    yield Weight(mask, "backbone/mask_embedding", (), TWO_LEADING_ONES, required=not without_query_stream)
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
    """Of the last layer: the one that it came with, or the original's for a task without a name."""
    return head.scope or f"{head.task}_task"


def head_of(names: Iterable[str], num_labels: int | None) -> HeadConfig | None:
    """The head whose variables these are; None = language modelling, or the backbone alone.

    num_labels: columns of the last layer. The original does not store which summary it took; where no variable tells,
    it is its default, the last token.
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
        return HeadConfig("regression", 1, summary, use_projection, scopes[0])
    return HeadConfig("classification", num_labels or 2, summary, use_projection, scopes[0])
