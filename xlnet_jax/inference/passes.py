"""Draw pieces on the device, pass by pass (sampler.py has the stages). Which open positions come next is a function:
`choose_next`, by the order of the text, or `choose_most_confident`, by the logits."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from data_pipelines.tokenizer import BOS, EOD, PAD, SPECIAL_PIECES
from xlnet_jax.inference.draws import Limits, draw_from, probabilities, sample
from xlnet_jax.inference.requests import AFTER
from xlnet_jax.models.decoding import decode, decode_masked, forget, prefill
from xlnet_jax.models.masks import HIGHEST
from xlnet_jax.settings.config import ModelConfig

CHUNK = 32  # most passes on the device between two checks by the host
NONE = -1  # number of a target that is not there


class Sampling(NamedTuple):
    """How pieces are drawn: what a program is compiled for."""

    config: ModelConfig
    is_masked: bool  # the network reads <mask>
    context: int
    by_confidence: bool
    apart: int  # least distance of the pieces of a pass, by confidence
    parallel: int  # pieces drawn in a pass; 0 = all
    is_exact: bool  # the pieces of a pass are drafts, which a second pass judges
    is_greedy: bool  # temperature 0
    top_k: int
    has_top_p: bool  # below 1
    has_penalty: bool  # on pieces that the text has
    in_order: bool  # given symbols of a record see those before them, as pretraining predicts them all
    chunk: int = CHUNK  # passes on the device between two checks by the host

    @property
    def columns(self) -> int:
        """C, pieces that a pass keeps at most. A pass that judges drafts draws one more."""
        return self.parallel + self.is_exact


class Targets(NamedTuple):
    """Open positions of texts in the order of drawing, and what may be drawn there: C columns for each pass; by
    confidence, a column for each position."""

    number_BP: Any  # int32, in the order of the text, or NONE where a pass has fewer than C
    position_BP: Any  # int32
    kind_BP: Any  # int32, a Kind
    keys_B: Any  # random key of each text
    limits: tuple[Any, Any, Any]  # temperature, top_p and penalty: numbers, so that all of them share a program
    allowed_XV: Any  # bool, pieces that may be drawn, by Kind
    stops_V: Any  # bool, pieces that end a text
    after_V: Any = None  # int32, the Kind of a position of Kind AFTER, by the piece before it; None in prose
    segment_BS: Any = None  # int32, the segment of each position; None = all have the same


@functools.partial(jax.jit, static_argnums=0)
def prefill_and_sample(
    sampling: Sampling, params: Any, layers: Any, ids_BL: jnp.ndarray, targets: Targets
) -> tuple[tuple[Any, ...], tuple[jnp.ndarray, ...]]:
    """Read the given tokens and draw in one pass; return (state, drawn) as `decode_and_sample` does."""
    nothing_BC = jnp.zeros((len(ids_BL), 1 if sampling.is_exact else sampling.parallel), jnp.int32)
    of_text = {"slots": sampling.context, "segment_BS": targets.segment_BS}
    if sampling.in_order:
        is_end_BL = (ids_BL == BOS) | (ids_BL == EOD)
        of_text["rank_BL"] = jnp.where(is_end_BL, 0, jnp.arange(ids_BL.shape[1])[None])
    predict: Any = functools.partial(prefill, sampling.config, params, ids_BL, **of_text)
    if sampling.is_masked:
        predict = functools.partial(decode_masked, sampling.config, params, ids_BL, ids_BL[:, :1], nothing_BC[:, :1])
    draw = functools.partial(_draw_exactly, layers=(params, layers)) if sampling.is_exact else _draw
    seen_BV = _seen_in(ids_BL, sampling.config.vocab_size) if sampling.has_penalty else None
    state, _, drawn = draw(sampling, predict, (nothing_BC, nothing_BC, seen_BV), targets, targets.number_BP != NONE)
    return state, drawn


@functools.partial(jax.jit, static_argnums=0, donate_argnums=3)
def decode_and_sample(
    sampling: Sampling, params: Any, layers: Any, state: tuple[Any, ...], targets: Targets
) -> tuple[tuple[Any, ...], tuple[jnp.ndarray, ...]]:
    """Draw up to `chunk` times; return (state, (numbers of targets [B, P], their pieces, their log-probabilities)), C
    for each pass, with the number NONE where no piece was drawn.

    state: (cache, or the text with <mask>; the pieces drawn last, which are not in it yet, [B, C]; their positions;
    which pieces a text has, bool [B, V], or None without a penalty).
    """
    read: Any = functools.partial(decode, sampling.config, params, layers, segment_BS=targets.segment_BS)
    if sampling.is_masked:
        read = functools.partial(decode_masked, sampling.config, params)
    draw = functools.partial(_draw_exactly, layers=(params, layers)) if sampling.is_exact else _draw

    def is_more(carry: tuple) -> jnp.ndarray:
        s, _, is_open_BP, _ = carry
        return (s < sampling.chunk) & is_open_BP.any()

    def draw_once(carry: tuple) -> tuple:
        s, state, is_open_BP, drawn = carry
        state, is_open_BP, new = draw(sampling, functools.partial(read, *state[:3]), state[1:], targets, is_open_BP)
        place = 0, s * sampling.columns
        return s + 1, state, is_open_BP, tuple(map(jax.lax.dynamic_update_slice, drawn, new, (place,) * 3))

    shape = len(state[1]), sampling.chunk * sampling.columns
    nothing = jnp.full(shape, NONE), jnp.full(shape, PAD), jnp.zeros(shape, jnp.float32)
    start = jnp.int32(0), state, targets.number_BP != NONE, nothing
    _, state, _, drawn = jax.lax.while_loop(is_more, draw_once, start)
    return state, drawn


def _draw(
    sampling: Sampling,
    predict: Callable[..., tuple[Any, jnp.ndarray]],
    last: tuple[Any, ...],
    targets: Targets,
    is_open_BP: jnp.ndarray,
) -> tuple[tuple[Any, ...], jnp.ndarray, tuple[jnp.ndarray, ...]]:
    """Predict the next positions, draw their pieces, and close them; return (state, which targets are open then,
    (numbers [B, C], pieces, log-probabilities)).

    predict: prefill or decode; returns (cache, logits [B, P, V]) for positions [B, P]. last: the rest of the state,
    which repeats token_BC and position_BC if no target of a text is open.
    """
    if sampling.by_confidence:
        cache, logits_BPV = predict(target_BP=targets.position_BP)
        best_BP = jnp.where(targets.allowed_XV[targets.kind_BP], logits_BPV, -jnp.inf).max(-1)
        confidence_BP = best_BP - jax.nn.logsumexp(logits_BPV, axis=-1)
        column_BC, is_new_BC = choose_most_confident(
            is_open_BP, sampling.parallel, confidence_BP, targets.position_BP, sampling.apart
        )
        logits_BCV = _at(column_BC, logits_BPV)
    else:
        column_BC, is_new_BC = choose_next(is_open_BP, sampling.parallel)
        cache, logits_BCV = predict(target_BP=_at(column_BC, targets.position_BP))
    number_BC, position_BC, kind_BC = (_at(column_BC, x) for x in targets[:3])
    if targets.after_V is not None:
        kind_BC = jnp.where(kind_BC == AFTER, targets.after_V[last[0]], kind_BC)
    keys_BC = _keys_of(targets.keys_B, number_BC)
    wanted_BCV = penalize(logits_BCV, last[2], targets)
    wanted_BCV = jnp.where(targets.allowed_XV[kind_BC], wanted_BCV, -jnp.inf)
    token_BC = sample(_limits_of(sampling, targets), wanted_BCV, keys_BC)
    token_BC = _at(jnp.where(is_new_BC, jnp.arange(sampling.parallel)[None], 0), token_BC)
    log_prob_BC = jnp.take_along_axis(jax.nn.log_softmax(logits_BCV), token_BC[..., None], axis=-1)[..., 0]
    is_open_BP = close(is_open_BP, targets, column_BC, is_new_BC, token_BC)
    drawn = jnp.where(is_new_BC, number_BC, NONE), token_BC, log_prob_BC
    read_next = (jnp.where(is_new_BC[:, :1], new, old) for new, old in zip((token_BC, position_BC), last, strict=False))
    return (cache, *read_next, _add_seen(last[2], token_BC, is_new_BC)), is_open_BP, drawn


def _draw_exactly(
    sampling: Sampling,
    predict: Callable[..., tuple[Any, jnp.ndarray]],
    last: tuple[Any, ...],
    targets: Targets,
    is_open_BP: jnp.ndarray,
    layers: tuple[Any, Any],
) -> tuple[tuple[Any, ...], jnp.ndarray, tuple[jnp.ndarray, ...]]:
    """Do what `_draw` does in two passes, with the distribution of one piece in a pass (Guo and Ermon 2025, "Reviving
    any-subset autoregressive models with principled parallel sampling and speculative decoding", algorithm 1).

    Let q_j be the distribution at the j-th of the next positions when no position of them is known. The first pass
    gives all q_j, from which drafts x_j are drawn. The second pass reads the drafts and gives the distributions p_j of
    one piece in a pass, in which x_j is judged by x_0 … x_{j-1}: draft x_j has rank j, so a row sees earlier drafts
    alone. x_j is kept with probability min(1, p_j(x_j) / q_j(x_j)). At the first one that is not, a piece is drawn from
    max(p_j - q_j, 0), normalized; after N kept drafts, from p_N. The first draft is always kept, because p_0 = q_0. So
    two passes give two pieces at least, and N + 1 at most.

    layers: the parameters of `decode`. last: as in `_draw`; token_BC is the piece that was drawn instead of a draft,
    [B, 1], which no pass has read.
    """
    drafts = sampling.parallel
    column_BC, is_new_BC = choose_next(is_open_BP, drafts + 1, passes=False)
    number_BC, position_BC, kind_BC = (_at(column_BC, x) for x in targets[:3])
    may_be_BCV = targets.allowed_XV[kind_BC]
    keys_BC, limits = _keys_of(targets.keys_B, number_BC), _limits_of(sampling, targets)
    cache, draft_logits_BNV = predict(target_BP=position_BC[:, :drafts])
    seen_BV = last[2]
    q_BNV = penalize(draft_logits_BNV, seen_BV, targets)
    q_BNV = probabilities(limits, jnp.where(may_be_BCV[:, :drafts], q_BNV, -jnp.inf))
    draft_BN = draw_from(keys_BC[:, :drafts], q_BNV)
    # A column that is not there repeats the first draft: what its row computes is the same.
    draft_BN = _at(jnp.where(is_new_BC[:, :drafts], jnp.arange(drafts)[None], 0), draft_BN)
    rank_BC = jnp.where(is_new_BC, jnp.arange(drafts + 1)[None], 0)
    cache, logits_BNV = decode(
        sampling.config, *layers, cache, draft_BN, position_BC[:, :drafts], position_BC[:, 1:],
        segment_BS=targets.segment_BS, ranks=(rank_BC[:, :drafts], rank_BC[:, 1:]),
    )  # fmt: skip
    # Of columns 1 to N. One piece in a pass would know the pieces before it, also for the penalty.
    p_BNV = penalize(logits_BNV, _seen_before(seen_BV, draft_BN), targets)
    p_BNV = probabilities(limits, jnp.where(may_be_BCV[:, 1:], p_BNV, -jnp.inf))

    is_stop_BN = targets.stops_V[draft_BN]
    uniform_BN = jax.vmap(jax.vmap(jax.random.uniform))(_keys_of(keys_BC[:, 1:drafts], 1))
    is_kept_BN = _judge(p_BNV, q_BNV, draft_BN, is_stop_BN, uniform_BN) & is_new_BC[:, :drafts]
    kept_B1 = is_kept_BN.sum(1, keepdims=True)
    after_B1 = jnp.maximum(kept_B1 - 1, 0)  # row of p of the column `kept`, where a piece is drawn
    wanted_B1V = _rest(_at(after_B1, p_BNV), _at(after_B1, jnp.pad(q_BNV[:, 1:], ((0, 0), (0, 1), (0, 0)))))
    piece_B1 = draw_from(_keys_of(_keys_of(targets.keys_B, _at(kept_B1, number_BC)), 2), wanted_B1V)
    has_piece_B1 = _at(kept_B1, is_new_BC) & (kept_B1 > 0) & ~_at(after_B1, is_stop_BN)

    is_piece_BC = jnp.arange(drafts + 1)[None] == kept_B1
    token_BC = jnp.where(is_piece_BC, piece_B1, jnp.pad(draft_BN, ((0, 0), (0, 1))))
    is_drawn_BC = jnp.pad(is_kept_BN, ((0, 0), (0, 1))) | (is_piece_BC & has_piece_B1)
    logits_BCV = jnp.concatenate([draft_logits_BNV[:, :1], logits_BNV], axis=1)
    log_prob_BC = jnp.take_along_axis(jax.nn.log_softmax(logits_BCV), token_BC[..., None], axis=-1)[..., 0]
    cache = forget(cache, position_BC[:, :drafts], is_new_BC[:, :drafts] & ~is_kept_BN)
    is_open_BP = close(is_open_BP, targets, column_BC, is_drawn_BC, token_BC)
    last_B1 = jnp.where(has_piece_B1, kept_B1, after_B1)  # a kept draft is read twice, with the same result
    read_next = (
        jnp.where(is_new_BC[:, :1], _at(last_B1, new), old)
        for new, old in zip((token_BC, position_BC), last, strict=False)
    )
    drawn = jnp.where(is_drawn_BC, number_BC, NONE), token_BC, log_prob_BC
    return (cache, *read_next, _add_seen(seen_BV, token_BC, is_drawn_BC)), is_open_BP, drawn


def _judge(
    p_BNV: jnp.ndarray, q_BNV: jnp.ndarray, draft_BN: jnp.ndarray, is_stop_BN: jnp.ndarray, uniform_BN: jnp.ndarray
) -> jnp.ndarray:
    """Return which drafts are kept, bool [B, N]: those before the first rejected one, and up to the first stop.

    p: distributions of columns 1 to N, and q: those that the drafts in columns 0 to N - 1 come from. uniform: [B, N -
    1], for the drafts after the first.
    """
    p_BN, q_BN = (jnp.take_along_axis(x, draft_BN[:, 1:, None], axis=-1)[..., 0] for x in (p_BNV[:, :-1], q_BNV[:, 1:]))
    is_good_BN = (uniform_BN * q_BN < p_BN) & ~is_stop_BN[:, :-1]
    return jnp.cumprod(jnp.pad(is_good_BN, ((0, 0), (1, 0)), constant_values=True), axis=1).astype(bool)


def _rest(p_B1V: jnp.ndarray, q_B1V: jnp.ndarray) -> jnp.ndarray:
    """Return max(p - q, 0), not normalized; p where both are equal but for rounding."""
    wanted_B1V = jnp.maximum(p_B1V - q_B1V, 0)
    return jnp.where(wanted_B1V.any(-1, keepdims=True), wanted_B1V, p_B1V)


def penalize(logits_BCV: jnp.ndarray, seen: jnp.ndarray | None, targets: Targets) -> jnp.ndarray:
    """Return logits with those of pieces that a text has divided by the penalty if above 0, or else multiplied by it
    (Keskar et al. 2019, CTRL, section 4.1; as in Hugging Face). seen: bool [B, V] or [B, C, V]; None = no penalty."""
    if seen is None:
        return logits_BCV
    penalty, seen_BCV = targets.limits[2], seen if seen.ndim == 3 else seen[:, None]
    return jnp.where(seen_BCV, jnp.where(logits_BCV > 0, logits_BCV / penalty, logits_BCV * penalty), logits_BCV)


def _seen_in(ids_BL: jnp.ndarray, vocab_size: int) -> jnp.ndarray:
    """Return which pieces of text each row has, bool [B, V]."""
    seen_BV = jnp.zeros((len(ids_BL), vocab_size), bool).at[jnp.arange(len(ids_BL))[:, None], ids_BL].set(True)
    return seen_BV & (jnp.arange(vocab_size) >= len(SPECIAL_PIECES))[None]


def _add_seen(seen_BV: jnp.ndarray | None, token_BC: jnp.ndarray, is_new_BC: jnp.ndarray) -> jnp.ndarray | None:
    if seen_BV is None:
        return None
    is_text_BC = is_new_BC & (token_BC >= len(SPECIAL_PIECES))
    return seen_BV.at[jnp.arange(len(token_BC))[:, None], token_BC].max(is_text_BC)


def _seen_before(seen_BV: jnp.ndarray | None, draft_BN: jnp.ndarray) -> jnp.ndarray | None:
    """Return which pieces each row has after each draft, bool [B, N, V]."""
    if seen_BV is None:
        return None
    is_draft_BNV = jax.nn.one_hot(draft_BN, seen_BV.shape[1], dtype=jnp.int32)
    is_text_11V = (jnp.arange(seen_BV.shape[1]) >= len(SPECIAL_PIECES))[None, None]
    return seen_BV[:, None] | ((jnp.cumsum(is_draft_BNV, axis=1) > 0) & is_text_11V)


def close(
    is_open_BP: jnp.ndarray, targets: Targets, column_BC: jnp.ndarray, is_new_BC: jnp.ndarray, token_BC: jnp.ndarray
) -> jnp.ndarray:
    """Return which targets are open after these pieces were drawn: no others, and none after a piece that ends the
    text."""
    is_open_BP = is_open_BP.at[jnp.arange(len(is_open_BP))[:, None], column_BC].min(~is_new_BC)
    end_BC = jnp.where(is_new_BC & targets.stops_V[token_BC], _at(column_BC, targets.number_BP), HIGHEST)
    return is_open_BP & (targets.number_BP < end_BC.min(1, keepdims=True))


def choose_next(is_open_BP: jnp.ndarray, parallel: int, passes: bool = True) -> tuple[jnp.ndarray, jnp.ndarray]:
    """Return the columns of the C targets to draw next, int32 [B, C], and which of them are there: where fewer are
    open, the first stands in for those that are missing.

    They are the first open ones, of one pass if there are passes, in the order of the columns.
    """
    in_order_1P = -jnp.arange(is_open_BP.shape[1], dtype=jnp.float32)[None]
    _, column_BC = jax.lax.top_k(jnp.where(is_open_BP, in_order_1P, -jnp.inf), parallel)
    is_new_BC = _at(column_BC, is_open_BP)
    if passes:
        pass_BC = column_BC // parallel
        is_new_BC &= pass_BC == pass_BC[:, :1]
    return jnp.where(is_new_BC, column_BC, column_BC[:, :1]), is_new_BC


def choose_most_confident(
    is_open_BP: jnp.ndarray, parallel: int, confidence_BP: jnp.ndarray, position_BP: jnp.ndarray, apart: int
) -> tuple[jnp.ndarray, jnp.ndarray]:
    """Return what `choose_next` does, of the targets with the highest confidence, the log-probability of their
    likeliest piece (Chang et al. 2022, MaskGIT, section 3.2; Nie et al. 2025, LLaDA, section 2.4).

    Those of a pass are at least `apart` positions from each other: neighbors depend on each other most, and the most
    confident targets are often neighbors (benchmarks/positions.py).
    """

    def choose(left_BP: jnp.ndarray, _: None) -> tuple[jnp.ndarray, tuple[jnp.ndarray, jnp.ndarray]]:
        column_B1 = jnp.where(left_BP, confidence_BP, -jnp.inf).argmax(1, keepdims=True)
        is_near_BP = jnp.abs(position_BP - _at(column_B1, position_BP)) < apart
        return left_BP & ~is_near_BP, (column_B1[:, 0], _at(column_B1, left_BP)[:, 0])

    _, (column_CB, is_new_CB) = jax.lax.scan(choose, is_open_BP, length=parallel)
    column_BC, is_new_BC = column_CB.T, is_new_CB.T
    return jnp.where(is_new_BC, column_BC, column_BC[:, :1]), is_new_BC


def _at(column_BC: jnp.ndarray, array: jnp.ndarray) -> jnp.ndarray:
    """Return the entries of an array [B, P, ...] in these columns."""
    return jnp.take_along_axis(array, column_BC.reshape(*column_BC.shape, *[1] * (array.ndim - 2)), axis=1)


def _keys_of(keys: jax.Array, numbers: jnp.ndarray | int) -> jax.Array:
    """Return the random keys of numbers [B, C]: of keys of texts [B], or of pieces [B, C]."""
    of_texts = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)))
    of_pieces = jax.vmap(jax.vmap(jax.random.fold_in, (0, None)), (0, None))
    return of_texts(keys, numbers) if keys.ndim == 1 else of_pieces(keys, numbers)


def _limits_of(sampling: Sampling, targets: Targets) -> Limits:
    """Return the limits of the draws. What they leave out is not computed."""
    temperature, top_p, _ = targets.limits
    return Limits(None if sampling.is_greedy else temperature, sampling.top_k, top_p if sampling.has_top_p else None)
