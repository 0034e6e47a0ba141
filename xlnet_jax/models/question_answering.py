"""Head of question answering: where an answer starts and ends, and whether there is one (`model_fn` of run_squad.py,
`get_qa_outputs`)."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.kernels.numerics import MASKED
from xlnet_jax.models.encoder import build_encoder
from xlnet_jax.models.inputs import Inputs
from xlnet_jax.models.layers import Dense, Dropout, Norm
from xlnet_jax.settings.config import ModelConfig


class SpanLogProbs(NamedTuple):
    """Outputs in training, where the end is conditioned on the true start."""

    start_BL: jnp.ndarray  # float32
    end_BL: jnp.ndarray  # float32
    unanswerable_B: jnp.ndarray  # float32 logits


class SpanBeam(NamedTuple):
    """Outputs in prediction: the I likeliest starts, and for each start the J likeliest ends."""

    start_log_probs_BI: jnp.ndarray
    start_index_BI: jnp.ndarray  # int32
    end_log_probs_BIJ: jnp.ndarray
    end_index_BIJ: jnp.ndarray  # int32
    unanswerable_B: jnp.ndarray  # float32 logits


class XLNetForQuestionAnswering(nn.Module):
    """Encoder with scores of starts and ends; `__call__` trains, `beam` predicts.

    cls_index_B: position of <cls>; excluded_BL: 1 = can be neither start nor end (p_mask of the original).
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
    ) -> SpanLogProbs:
        """Return log-probabilities [B, L] of starts and ends. start_B: the true first position of the answer."""
        hidden_BLD = self.backbone(inputs, train=train).content_BLD
        start_BL = self._start_BL(hidden_BLD, excluded_BL)
        end_BL = self._end_BIL(hidden_BLD, _states_BID(hidden_BLD, start_B[:, None]), excluded_BL)[:, 0]
        example_B = inputs.example_B if train else None
        return SpanLogProbs(start_BL, end_BL, self._unanswerable_B(hidden_BLD, start_BL, cls_index_B, example_B))

    def beam(
        self, inputs: Inputs, cls_index_B: jnp.ndarray, excluded_BL: jnp.ndarray, start_n_top: int, end_n_top: int
    ) -> SpanBeam:
        """Return the likeliest starts and ends. start_n_top: I, number of starts; end_n_top: J, number of ends of each
        start."""
        hidden_BLD = self.backbone(inputs, train=False).content_BLD
        start_BL = self._start_BL(hidden_BLD, excluded_BL)
        start_top_BI, start_index_BI = jax.lax.top_k(start_BL, start_n_top)
        end_BIL = self._end_BIL(hidden_BLD, _states_BID(hidden_BLD, start_index_BI), excluded_BL)
        end_top_BIJ, end_index_BIJ = jax.lax.top_k(end_BIL, end_n_top)
        unanswerable_B = self._unanswerable_B(hidden_BLD, start_BL, cls_index_B, None)
        return SpanBeam(start_top_BI, start_index_BI, end_top_BIJ, end_index_BIJ, unanswerable_B)

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
        """example_B: places of the examples, for dropout; None = no dropout."""
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
