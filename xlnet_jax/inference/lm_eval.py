"""Checkpoints as models of lm-evaluation-harness, which finds no models of other packages by itself (0.4.13):

    python -m xlnet_jax.inference.lm_eval --model xlnet_jax --model_args pretrained=tiny --tasks TASK …

is its command `lm_eval` with the model `xlnet_jax`. In Python, import this module before `lm_eval.simple_evaluate`.

`loglikelihood` is log p(continuation | context). Pieces of the context see each other and are seen by all pieces of the
continuation, as in `score` and `generate`; or the whole is read from left to right, as by a causal model.
`loglikelihood_rolling` is `score_texts`; `generate_until` draws as `generate`.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np
from lm_eval.__main__ import cli_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text

from data_pipelines.tokenizer import EOD
from xlnet_jax.checkpoints.formats import load_with_tokenizer
from xlnet_jax.checkpoints.native import PretrainingRun, trained_mem_len
from xlnet_jax.checkpoints.pretrained import on_device
from xlnet_jax.errors import USER_ERROR, InputError
from xlnet_jax.inference.log_probs import Query, beside_likeliest, causal_beside_likeliest
from xlnet_jax.inference.orders import LEFT_TO_RIGHT, RANDOM, RIGHT_TO_LEFT, permutations
from xlnet_jax.inference.requests import GenerateSettings, Request, continue_ids, fill
from xlnet_jax.inference.sampler import Sampler
from xlnet_jax.inference.score import BATCH_TOKENS, MAX_LEN, require_orders, score_texts
from xlnet_jax.settings.common import CheckpointSettings
from xlnet_jax.settings.fields import at_least, setting
from xlnet_jax.settings.parser import with_keywords

TEXTS_AT_ONCE = 8  # drawn together


@dataclass(frozen=True)
class HarnessSettings(CheckpointSettings):
    """Values of --model_args, where `checkpoint` is called `pretrained`, as for all models of the harness."""

    order: str = LEFT_TO_RIGHT
    """order in which pieces are scored: left-to-right, right-to-left, or random:N, the mean over N orders"""
    context: Literal["whole", "left-to-right"] = "whole"
    """whole = pieces of a context see each other, as in pretraining; left-to-right = only earlier ones, as in a causal
    model and with the code of an exported folder"""
    max_len: int = setting(MAX_LEN, at_least(1))
    """pieces read at once; of a longer context the newest are read, and a longer document is read with memory, as by
    `score`"""
    max_gen_toks: int = setting(256, at_least(1))
    """pieces to generate at most, if the task does not say"""
    seed: int = setting(0, at_least(0))
    """seed of the orders and draws"""


@register_model("xlnet_jax")
class XLNetJax(TemplateLM):
    """A checkpoint that predicts pieces in any order, or from left to right."""

    eot_token_id = EOD  # before a text without context; `_loglikelihood_tokens` takes it away

    def __init__(
        self, pretrained: str, batch_size: Any = None, max_batch_size: Any = None, device: Any = None, **settings: Any
    ) -> None:
        """Load a checkpoint. settings: fields of HarnessSettings. The other arguments come from the harness and are not
        used: batches are counted in tokens, and jax chooses the device.

        Raises InputError for invalid settings, and for a checkpoint that cannot score in this order.
        """
        super().__init__()
        self.settings = with_keywords(HarnessSettings(pretrained), settings)
        order = self.settings.order
        if order not in (LEFT_TO_RIGHT, RIGHT_TO_LEFT) and not re.fullmatch(rf"{RANDOM}[1-9]\d*", order):
            raise InputError("order", order, f": give {LEFT_TO_RIGHT}, {RIGHT_TO_LEFT} or {RANDOM}8 (any number)")
        if self.settings.context == LEFT_TO_RIGHT != order:
            raise InputError("context", LEFT_TO_RIGHT, f"is only for `order` {LEFT_TO_RIGHT}, not {order}")
        loaded = load_with_tokenizer(pretrained, self.settings.tokenizer)
        self._tokenizer = require_orders(loaded, [order])
        self._mem_len = trained_mem_len(loaded, PretrainingRun.of(pretrained))
        self._pretrained = on_device(loaded)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Return the ids of a text, without special pieces."""
        return self._tokenizer.encode_lines([string])[0].tolist()

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """Return (log-likelihood of each continuation in nats, whether all its pieces are the likeliest ones)."""
        queries, s = [], self.settings
        for (context, continuation), context_ids, ids in requests:
            if not ids:
                raise InputError(f"the continuation {continuation!r} tokenizes to nothing")
            given = context_ids[: None if context else 0]
            row_L = np.array([*given[max(len(given) + len(ids) - s.max_len, 0) :], *ids], np.int32)
            places_P = np.arange(len(row_L))[0 if s.context == LEFT_TO_RIGHT else -len(ids) :]
            orders = permutations(s.order, len(places_P), len(places_P), (s.seed, 0, 0), "the continuation")
            queries += [Query(row_L, places_P, np.argsort(order_P)) for order_P in orders]
        if self._pretrained.is_causal:
            begun = [np.concatenate([[EOD], query.ids_L]) for query in queries]
            found = causal_beside_likeliest(self._pretrained, begun, BATCH_TOKENS)
        else:
            found = beside_likeliest(self._pretrained, queries, BATCH_TOKENS)
        answers, of_request = [], len(found) // max(len(requests), 1)
        for i, (_, _, ids) in enumerate(requests):
            own = found[i * of_request : (i + 1) * of_request]
            scores_OP2 = np.stack([scores_P2[-len(ids) :] for scores_P2 in own]).astype(np.float64)
            is_greedy = bool((scores_OP2[..., 0] >= scores_OP2[..., 1]).all())
            answers.append((float(scores_OP2[..., 0].sum(1).mean()), is_greedy))
        return answers

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihood of each document, nats."""
        texts, s = [request.args[0] for request in requests], self.settings
        scores = score_texts(
            self._pretrained, texts, s.order, seed=s.seed, max_len=s.max_len, mem_len=self._mem_len,
        )  # fmt: skip
        return [score.log_likelihood if score.pieces else 0.0 for score in scores]  # no piece to predict

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return the text generated after each context, before the first of its `until` strings. Without a temperature
        each piece is the likeliest."""
        found = [""] * len(requests)
        wanted = [normalize_gen_kwargs(request.args[1], self.settings.max_gen_toks) for request in requests]
        alike: dict[tuple[Any, ...], list[int]] = {}
        for i, w in enumerate(wanted):
            temperature = w["temperature"] if w["do_sample"] else 0.0
            usual = {"top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}
            limits = temperature, *(w.get(name, value) for name, value in usual.items())
            alike.setdefault((*limits, w["max_gen_toks"]), []).append(i)
        for (*drawn_by, count), indices in alike.items():
            draws = dict(zip(("temperature", *usual), drawn_by, strict=True))
            sampler = Sampler(self._pretrained, with_keywords(GenerateSettings("loaded"), draws))
            for first in range(0, len(indices), TEXTS_AT_ONCE):
                batch = indices[first : first + TEXTS_AT_ONCE]
                texts = [self._request(requests[i].args[0], count, sampler) for i in batch]
                for _ in sampler.draw(texts, jax.random.key(self.settings.seed), first):
                    is_done = True
                    for i, text in zip(batch, texts, strict=True):
                        whole = fill(self._tokenizer, text)
                        found[i] = postprocess_generated_text(whole, wanted[i]["until"], None)
                        is_done &= text.is_done or found[i] != whole
                    if is_done:
                        break
        return found

    def _request(self, context: str, count: int, sampler: Sampler) -> Request:
        """Return the request to continue the newest pieces of a context, in which ___ is not a gap."""
        ids = self.tok_encode(context) or [EOD]
        request = continue_ids(ids[-(sampler.context - count if count < sampler.context else sampler.context) :], count)
        sampler.require_room(request)
        return request


def main() -> int:
    """Run the command of the harness; return the exit code."""
    try:
        cli_evaluate()
    except InputError as mistake:
        print("error:", mistake, file=sys.stderr)
        return USER_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main())
