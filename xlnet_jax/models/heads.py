"""Encoders and heads: hidden states, vocabulary logits, and finetuning heads (`function_builder.py`, `run_race.py`,
`run_squad.py`) for one label or number per text, one label per token, a choice among texts, the answer to a question,
and pairs of texts.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.errors import InputError
from xlnet_jax.kernels.arguments import MASKED
from xlnet_jax.models.bert import BertDetector, BertEncoder, Transform, places_BL
from xlnet_jax.models.checks import check_arrays
from xlnet_jax.models.inputs import Inputs, dense_inputs, text_inputs
from xlnet_jax.models.layers import (
    Dense,
    Dropout,
    Norm,
    Outputs,
    partitioned_param,
    partitioned_zeros,
    projection_DNH,
    take_rows_BPD,
    tied_logits_BPV,
)
from xlnet_jax.models.xlnet import Backbone
from xlnet_jax.settings.config import HeadConfig, ModelConfig

# By `ModelConfig.network`.
_ENCODERS: dict[str, Any] = {"xlnet": Backbone, "bert": BertEncoder}
DETECTORS: dict[str, Any] = {"bert": BertDetector}


def build_encoder(config: ModelConfig, name: str | None = None) -> Backbone | BertEncoder:
    """Build the network that returns hidden states. name: module name inside a compact method; None in `setup`."""
    return _ENCODERS[config.network](config, name=name)


def encoder_as_in_evaluation() -> AbstractContextManager[None]:
    """Return a context in which encoders have no dropout, and heads have it in training."""

    def call(method: Callable[..., Any], args: Any, settings: Any, context: nn.module.InterceptorContext) -> Any:
        if context.method_name == "__call__" and isinstance(context.module, tuple(_ENCODERS.values())):
            settings = settings | {"train": False}
        return method(*args, **settings)

    return nn.intercept_methods(call)


class XLNetLM(nn.Module):
    """Encoder and vocabulary logits of the predicting stream. The output matrix is the word embedding; the bias is a
    separate parameter (`lm_loss` of modeling.py). BERT's hidden states are transformed before."""

    config: ModelConfig

    def setup(self) -> None:
        self.backbone = build_encoder(self.config)
        if self.config.has_transform:
            self.transform = Transform(self.config)
        self.output_bias = partitioned_zeros(self, "output_bias", (self.config.vocab_size,), ("vocab",))

    def __call__(
        self,
        inputs: Inputs,
        mems_ZBMD: jnp.ndarray | None = None,
        *,
        at_BP: jnp.ndarray | None = None,
        reuse_len: int | None = None,
        needs_content: bool = True,
        train: bool = False,
    ) -> tuple[jnp.ndarray, Outputs]:
        """Return (float32 logits, outputs): logits [B, P, V] of the query stream, or, without one, [B, L, V] of the
        content stream. Memory, reuse_len and train are those of `Backbone`.

        at: positions that the content stream predicts, int32; None = all; needs_content: False = the content stream of
        the last layer may be missing from the outputs.
        """
        outputs = self.backbone(inputs, mems_ZBMD, reuse_len=reuse_len, needs_content=needs_content, train=train)
        hidden = outputs.content_BLD if outputs.query_BPD is None else outputs.query_BPD
        if at_BP is not None:
            check_arrays({"B": hidden.shape[0], "T": hidden.shape[1]}, at_BP=at_BP)
            hidden = take_rows_BPD(hidden, at_BP)
        if self.config.has_transform:
            hidden = self.transform(hidden)
        return tied_logits_BPV(hidden, self.backbone.word_embedding, self.output_bias), outputs


class SequenceSummary(nn.Module):
    """The last, first or mean hidden state, or an attention pool; then an optional tanh projection.

    Last, first and mean count real tokens only; with the profile paper2019, all positions.
    """

    config: ModelConfig
    head: HeadConfig
    train: bool

    @nn.compact
    def __call__(self, hidden_BLD: jnp.ndarray, attention_mask_BL: jnp.ndarray, example_B: jnp.ndarray) -> jnp.ndarray:
        """Return float [B, D]. attention_mask: 1 = real token; example_B: index of each example in the global batch."""
        c, kind = self.config, self.head.summary
        real_BL = attention_mask_BL.astype(bool)
        if kind == "attn":
            summary_BD = AttentionPool(c, self.train, name="attention")(hidden_BLD, real_BL, example_B)
        else:
            counted_BL = jnp.ones_like(real_BL) if c.profile == "paper2019" else real_BL
            summary_BD = _POOLS[kind](hidden_BLD, counted_BL)
        if self.head.use_projection:
            summary_BD = jnp.tanh(Dense(c, c.d_model, ("embed", None), name="projection")(summary_BD))
        return Dropout(c.dropout, self.train)(summary_BD, example_B)


def _last_BD(hidden_BLD: jnp.ndarray, counted_BL: jnp.ndarray) -> jnp.ndarray:
    index_B = counted_BL.shape[1] - 1 - counted_BL[:, ::-1].argmax(1)
    return jnp.take_along_axis(hidden_BLD, index_B[:, None, None], axis=1)[:, 0]


def _first_BD(hidden_BLD: jnp.ndarray, counted_BL: jnp.ndarray) -> jnp.ndarray:
    return jnp.take_along_axis(hidden_BLD, counted_BL.argmax(1)[:, None, None], axis=1)[:, 0]


def _mean_BD(hidden_BLD: jnp.ndarray, counted_BL: jnp.ndarray) -> jnp.ndarray:
    """Return the mean, or 0 for a row of padding: NaN would remain NaN even with weight 0."""
    sum_BD = hidden_BLD.sum(1, jnp.float32, where=counted_BL[:, :, None])
    return (sum_BD / jnp.maximum(counted_BL.sum(1, keepdims=True), 1)).astype(hidden_BLD.dtype)


_POOLS = {"last": _last_BD, "first": _first_BD, "mean": _mean_BD}


class AttentionPool(nn.Module):
    """Pool by a learned query that attends to the real tokens (`multihead_attn` of modeling.py, without residual)."""

    config: ModelConfig
    train: bool

    @nn.compact
    def __call__(self, hidden_BLD: jnp.ndarray, real_BL: jnp.ndarray, example_B: jnp.ndarray) -> jnp.ndarray:
        c = self.config
        query_D = partitioned_param(self, "query", (c.d_model,), ("embed",), c.init_std).astype(c.dtype)
        q_DNH, k_DNH, v_DNH, o_DNH = (projection_DNH(self, name, c) for name in "qkvo")
        query_NH = jnp.einsum("D,DNH->NH", query_D, q_DNH)
        key_BLNH, value_BLNH = (jnp.einsum("BLD,DNH->BLNH", hidden_BLD, w) for w in (k_DNH, v_DNH))
        scores_BNL = jnp.einsum("NH,BLNH->BNL", query_NH, key_BLNH, preferred_element_type=jnp.float32)
        scores_BNL = scores_BNL / c.d_head**0.5 + jnp.where(real_BL[:, None], 0.0, MASKED)
        probs_BNL = jax.nn.softmax(scores_BNL, axis=-1).astype(c.dtype)
        probs_BNL = Dropout(c.attention_dropout, self.train)(probs_BNL, example_B)
        read_BNH = jnp.einsum("BNL,BLNH->BNH", probs_BNL, value_BLNH)
        out_BD = jnp.einsum("BNH,DNH->BD", read_BNH, o_DNH)
        out_BD = Dropout(c.dropout, self.train)(out_BD, example_B)
        return Norm(c, name="norm")(out_BD)


class PairHead(nn.Module):
    """Logits from <cls>, the last token of a window."""

    config: ModelConfig

    @nn.compact
    def __call__(self, content_BLD: jnp.ndarray) -> jnp.ndarray:
        """Return float32 logits [B, 2]: [0] B continues A (data.pair_loss order: comes after A), [1] it does not."""
        pooled_BD = nn.tanh(Dense(self.config, self.config.d_model, ("embed", None), name="pooler")(content_BLD[:, -1]))
        return Dense(self.config, 2, ("embed", None), name="logits")(pooled_BD).astype(jnp.float32)


class XLNetForQuestionAnswering(nn.Module):
    """Encoder with scores of starts and ends; `__call__` trains, `beam` predicts.

    cls_index_B: position of <cls>; excluded_BL: 1 = not a possible start or end (p_mask of the original).
    """

    config: ModelConfig

    def setup(self) -> None:
        c = self.config
        self.backbone = build_encoder(c)
        self.start = Dense(c, 1, ("embed", None))
        self.end_inner = Dense(c, c.d_model, ("embed", None))
        self.end_norm = Norm(c)
        self.end_outer = Dense(c, 1, ("embed", None))
        self.answer_inner = Dense(c, c.d_model, ("embed", None))
        self.answer_outer = Dense(c, 1, ("embed", None), use_bias=False)
        self.drop = Dropout(c.dropout, train=True)

    def __call__(
        self,
        inputs: Inputs,
        cls_index_B: jnp.ndarray,
        excluded_BL: jnp.ndarray,
        start_B: jnp.ndarray,
        *,
        train: bool = False,
    ) -> tuple[jnp.ndarray, jnp.ndarray, jnp.ndarray]:
        """Return log-probabilities of starts [B, L], of ends [B, L] given the true start, and logits of "unanswerable"
        [B]. start_B: the true first position of the answer."""
        hidden_BLD = self._read_BLD(inputs, train, cls_index_B=cls_index_B, excluded_BL=excluded_BL, start_B=start_B)
        start_BL = self._start_BL(hidden_BLD, excluded_BL)
        end_BL = self._end_BIL(hidden_BLD, _states_BID(hidden_BLD, start_B[:, None]), excluded_BL)[:, 0]
        example_B = inputs.example_B if train else None
        return start_BL, end_BL, self._unanswerable_B(hidden_BLD, start_BL, cls_index_B, example_B)

    def beam(
        self, inputs: Inputs, cls_index_B: jnp.ndarray, excluded_BL: jnp.ndarray, start_n_top: int, end_n_top: int
    ) -> dict[str, jnp.ndarray]:
        """Return the I = start_n_top likeliest starts, and for each start the J = end_n_top likeliest ends:
        start_log_probs and start_index [B, I], end_log_probs and end_index [B, I, J], unanswerable [B] (a logit)."""
        hidden_BLD = self._read_BLD(inputs, train=False, cls_index_B=cls_index_B, excluded_BL=excluded_BL)
        for name, count in (("start_n_top", start_n_top), ("end_n_top", end_n_top)):
            if not 0 < count <= (length := hidden_BLD.shape[1]):
                raise InputError(name, count, f"must be from 1 to the number of positions, {length}")
        start_BL = self._start_BL(hidden_BLD, excluded_BL)
        start_top_BI, start_index_BI = jax.lax.top_k(start_BL, start_n_top)
        end_BIL = self._end_BIL(hidden_BLD, _states_BID(hidden_BLD, start_index_BI), excluded_BL)
        end_top_BIJ, end_index_BIJ = jax.lax.top_k(end_BIL, end_n_top)
        return {
            "start_log_probs": start_top_BI,
            "start_index": start_index_BI,
            "end_log_probs": end_top_BIJ,
            "end_index": end_index_BIJ,
            "unanswerable": self._unanswerable_B(hidden_BLD, start_BL, cls_index_B, None),
        }

    def _read_BLD(self, inputs: Inputs, train: bool, **arrays: jnp.ndarray) -> jnp.ndarray:
        hidden_BLD = self.backbone(inputs, train=train).content_BLD
        check_arrays({"B": hidden_BLD.shape[0], "L": hidden_BLD.shape[1]}, **arrays)
        return hidden_BLD

    def _start_BL(self, hidden_BLD: jnp.ndarray, excluded_BL: jnp.ndarray) -> jnp.ndarray:
        return _log_probs(self.start(hidden_BLD)[:, :, 0], excluded_BL)

    def _end_BIL(self, hidden_BLD: jnp.ndarray, start_BID: jnp.ndarray, excluded_BL: jnp.ndarray) -> jnp.ndarray:
        batch, length, width = hidden_BLD.shape
        shape = (batch, start_BID.shape[1], length, width)
        start_BILD = jnp.broadcast_to(start_BID.astype(jnp.float32)[:, :, None], shape).astype(hidden_BLD.dtype)
        both = [jnp.broadcast_to(hidden_BLD[:, None], shape), start_BILD]
        inner_BILD = self.end_norm(jnp.tanh(self.end_inner(jnp.concatenate(both, axis=-1))))
        return _log_probs(self.end_outer(inner_BILD)[..., 0], excluded_BL[:, None])

    def _unanswerable_B(
        self, hidden_BLD: jnp.ndarray, start_BL: jnp.ndarray, cls_index_B: jnp.ndarray, example_B: jnp.ndarray | None
    ) -> jnp.ndarray:
        """example_B: indices of the examples, for dropout; None = no dropout."""
        expected_BD = jnp.einsum("BL,BLD->BD", jnp.exp(start_BL).astype(hidden_BLD.dtype), hidden_BLD)
        cls_BD = _states_BID(hidden_BLD, cls_index_B[:, None])[:, 0]
        inner_BD = jnp.tanh(self.answer_inner(jnp.concatenate([expected_BD, cls_BD], axis=-1)))
        if example_B is not None:
            inner_BD = self.drop(inner_BD, example_B)
        return self.answer_outer(inner_BD)[:, 0].astype(jnp.float32)


def _states_BID(hidden_BLD: jnp.ndarray, index_BI: jnp.ndarray) -> jnp.ndarray:
    return jnp.take_along_axis(hidden_BLD, index_BI[:, :, None], axis=1)


def _log_probs(logits: jnp.ndarray, excluded: jnp.ndarray) -> jnp.ndarray:
    excluded = excluded.astype(jnp.float32)
    return jax.nn.log_softmax(logits.astype(jnp.float32) * (1 - excluded) + MASKED * excluded, axis=-1)


class XLNetForSequence(nn.Module):
    """Scores of a text from its summary, for classification and regression, and for each option of multiple choice; or
    its summary alone, for embedding."""

    config: ModelConfig
    head: HeadConfig

    @nn.compact
    def __call__(
        self, inputs: Inputs, attention_mask_BL: jnp.ndarray, *, earlier: Sequence[Inputs] = (), train: bool = False
    ) -> jnp.ndarray:
        """Return float32 scores: [B, labels], for multilabel one logit each; regression [B]; multiple choice [B /
        options, options], where the options of a question are consecutive input rows; embedding: vectors [B, D].

        attention_mask: 1 = real token; earlier: the windows of the text before this one, read only for their memory
        (`text_windows`); train: apply dropout (needs the rng "dropout").
        """
        head = self.head
        backbone, mems_ZBMD = build_encoder(self.config, "backbone"), None
        for window in earlier:
            mems_ZBMD = backbone(window, mems_ZBMD, train=train).new_mems_ZBMD
        hidden_BLD = backbone(inputs, mems_ZBMD, train=train).content_BLD
        batch, length, _ = hidden_BLD.shape
        check_arrays({"B": batch, "L": length}, attention_mask_BL=attention_mask_BL)
        if head.task == "multiple_choice" and batch % head.num_labels:
            raise InputError("inputs", "", f"have {batch} rows: give {head.num_labels} for each question, its options")
        if head.task == "embedding":
            return _POOLS[head.summary](hidden_BLD.astype(jnp.float32), attention_mask_BL.astype(bool))
        if head.summary == "first" and self.config.reads_cls_first:
            attention_mask_BL = attention_mask_BL * (places_BL(inputs) == 0)  # selects <cls>
        summary_BD = SequenceSummary(self.config, head, train, name="summary")(
            hidden_BLD, attention_mask_BL, inputs.example_B
        )
        has_labels = head.task in ("classification", "multilabel")
        outputs = head.num_labels if has_labels else 1
        scores_BC = Dense(self.config, outputs, ("embed", None), name="logits")(summary_BD).astype(jnp.float32)
        if has_labels:
            return scores_BC
        return scores_BC[:, 0] if head.task == "regression" else scores_BC.reshape(-1, head.num_labels)


class XLNetForTokens(nn.Module):
    """Scores for every token, for tagging."""

    config: ModelConfig
    head: HeadConfig

    @nn.compact
    def __call__(self, inputs: Inputs, *, train: bool = False) -> jnp.ndarray:
        """Return float32 scores [B, L, labels]."""
        hidden_BLD = build_encoder(self.config, "backbone")(inputs, train=train).content_BLD
        dense = Dense(self.config, self.head.num_labels, ("embed", None), name="logits")
        return dense(hidden_BLD).astype(jnp.float32)


def init_params(config: ModelConfig, head: HeadConfig | None, key: jax.Array) -> Any:
    """Draw the parameters of a network and its head (None = language modeling): nested dicts, boxed with the logical
    names of their axes."""
    model, ids = build_model(config, head), jnp.zeros((1, 2), jnp.int32)
    if isinstance(model, XLNetLM) and config.positions == "relative":
        return model.init(key, dense_inputs(ids, segment_ids_BL=ids, predicted_BL=ids))["params"]
    if isinstance(model, XLNetForQuestionAnswering):
        return model.init(key, text_inputs(ids, segment_ids_BL=ids), ids[:, 0], ids, ids[:, 0])["params"]
    if isinstance(model, XLNetForSequence):
        if model.head.task == "multiple_choice":  # one row per option
            ids = jnp.tile(ids, (model.head.num_labels, 1))
        return model.init(key, text_inputs(ids, segment_ids_BL=ids), jnp.ones_like(ids))["params"]
    return model.init(key, text_inputs(ids, segment_ids_BL=ids))["params"]


def build_model(config: ModelConfig, head: HeadConfig | None) -> nn.Module:
    """Build the network of a checkpoint. head: None = language modeling."""
    if head is None:
        return XLNetLM(config)
    if head.task == "question_answering":
        return XLNetForQuestionAnswering(config)
    return XLNetForTokens(config, head) if head.task == "token_classification" else XLNetForSequence(config, head)
