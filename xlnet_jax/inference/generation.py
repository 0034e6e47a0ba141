"""Text by sampling, one piece after the other, each seeing what was given and what was drawn before it.

What is given is encoded once, every token of it seeing every other, or, by a causal model, those before it. A token
drawn is seen by those drawn later, and by nothing that was computed before. Hugging Face's `generate` hides no token of
XLNet but the last from any other, so that tokens drawn before may see those drawn after them.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from data_pipelines.tokenizer import EOD, PAD, Tokenizer
from data_pipelines.tokenizer.symbols import SPACE
from xlnet_jax.checkpoints.pretrained import Pretrained, vocabulary_tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.inference.blanks import Blanks, allowed_KV
from xlnet_jax.inference.query_stream import scoring_tokenizer
from xlnet_jax.models.decoding import Cache, Decoder, advance, prefill, prepare
from xlnet_jax.settings.config import ModelConfig

CHUNK = 32  # passes between two looks of the host
SHORTEST = 32  # lengths of what is given are rounded up to powers of two from here
DEFAULT_CONTEXT = 512


@dataclass(frozen=True)
class Sampling:
    """How a piece is chosen: HF's order of temperature, top_k, top_p (Holtzman et al. 2020, section 3.1)."""

    temperature: float = 1.0
    """divides the scores; 0 = the likeliest piece, always"""
    top_k: int = 0
    """choose among so many of the likeliest pieces; 0 = all"""
    top_p: float = 0.9
    """choose among the likeliest pieces that make up this probability together; 1 = all"""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise InputError(f"temperature {self.temperature} is no number from 0 up; 0 = the likeliest piece")
        if self.top_k < 0:
            raise InputError(f"top-k {self.top_k} is below 0; 0 = all pieces")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top-p {self.top_p} is outside (0, 1]; 1 = all pieces")


class Drawn(NamedTuple):
    """What was drawn for one text."""

    ids_T: np.ndarray  # int32, in the order of drawing, without <eod>
    log_probs_T: np.ndarray  # float32, nats, of the model itself: temperature 1, all pieces; that of <eod> behind them
    is_done: bool  # and not only so far
    is_stopped: bool  # by <eod> or another piece that stops, before or at its last target


class _Rules(NamedTuple):
    """What may be drawn, and what ends a text."""

    allowed_KV: jnp.ndarray
    stops_V: jnp.ndarray
    counts_B: jnp.ndarray  # targets
    keys_B: jnp.ndarray


class _State(NamedTuple):
    cache: Cache
    step: jnp.ndarray  # targets drawn so far
    token_B: jnp.ndarray  # drawn last, and not in the cache yet
    done_B: jnp.ndarray


class Generator:
    """A checkpoint made ready to generate. InputError where it has no tokenizer or no vocabulary scores, or predicts
    neither in any order nor from left to right."""

    def __init__(
        self,
        pretrained: Pretrained,
        sampling: Sampling,
        context: int | None = None,
        stops: Sequence[str] = (),
    ) -> None:
        """context: positions that are kept (None: `default_context`); stops: pieces that end a text besides <eod>."""
        self.tokenizer = (vocabulary_tokenizer if pretrained.reads_left_to_right else scoring_tokenizer)(pretrained)
        self.context = default_context(pretrained) if context is None else context
        if self.context < 2:
            raise InputError(f"a context of {self.context} positions has no room for a prompt: 2 at least")
        self._sampling = sampling
        # A CPU has no arithmetic of bfloat16, and converts in each pass.
        dtype = "float32" if jax.default_backend() == "cpu" else pretrained.model.dtype
        # A prompt is encoded by rows that see it whole, or, where pieces are drawn from left to right, what is before.
        attn_type = "uni" if pretrained.reads_left_to_right else pretrained.model.attn_type
        self._config = dataclasses.replace(pretrained.model, dtype=dtype, attn_type=attn_type)
        self._params = pretrained.params
        self._decoders: dict[bool, Decoder] = {}
        self._allowed_KV = jnp.asarray(allowed_KV(self.tokenizer))
        self._stops_V = _stops_V(self.tokenizer, stops)

    def draw(self, texts: Sequence[Blanks], key: jax.Array, first: int = 0) -> Iterator[list[Drawn]]:
        """What is drawn for these texts so far, whenever there is more, the last time all of it. first: the number of
        the first text, so that draws do not depend on what runs together.

        InputError where a text is longer than the context.
        """
        for text in texts:
            self.demand_room(text)
        batch, ahead = len(texts), any((text.targets_T < len(text.ids_L)).any() for text in texts)
        decoder = self._decoder(ahead)
        steps = 1 + -(-(max(len(text.targets_T) for text in texts) - 1) // CHUNK) * CHUNK
        targets_BT = _stack([text.targets_T for text in texts], steps)
        kinds_BT = _stack([text.kinds_T for text in texts], steps)
        rules = _Rules(
            self._allowed_KV,
            jnp.asarray(self._stops_V),
            jnp.asarray([len(text.targets_T) for text in texts]),
            jax.vmap(jax.random.fold_in, (None, 0))(key, first + jnp.arange(batch)),
        )
        length = _rounded(1 + max(max(len(text.ids_L), text.targets_T[0]) for text in texts))
        ids_BL = _stack([text.ids_L for text in texts], length, PAD)
        known_BL = _stack([np.isin(np.arange(len(t.ids_L)), t.targets_T, invert=True) for t in texts], length, False)
        settings = self._config, self._sampling
        state, token_B, score_B = _begin(
            *settings, self.context, decoder, ids_BL, known_BL, targets_BT[:, 0], kinds_BT[:, 0], rules
        )
        tokens, scores = [np.asarray(token_B)[:, None]], [np.asarray(score_B)[:, None]]
        for start in range(0, steps, CHUNK):
            yield [self._drawn(*row) for row in zip(*_joined(tokens, scores), np.asarray(state.done_B), strict=True)]
            if np.asarray(state.done_B).all():
                return
            span = slice(start, start + CHUNK + 1)
            state, tokens_BS, scores_BS = _go_on(
                *settings, decoder, state, targets_BT[:, span], kinds_BT[:, span], rules
            )
            tokens.append(np.asarray(tokens_BS))
            scores.append(np.asarray(scores_BS))

    def demand_room(self, text: Blanks) -> None:
        """InputError where a text is longer than the context, or has nothing to fill, or gaps for a causal model."""
        if not len(text.targets_T):
            raise InputError("there is nothing to draw: at least one new piece is needed")
        goes_on_T = len(text.ids_L) + np.arange(len(text.targets_T))
        if self._config.is_causal and not np.array_equal(text.targets_T, goes_on_T):
            raise InputError(
                f"{''.join(text.parts)[:40]!r} has gaps, and the checkpoint reads from left to right: it would "
                "not see what is behind them; give it a prompt to go on from"
            )
        if len(text.ids_L) > self.context:
            raise InputError(
                f"{''.join(text.parts)[:40]!r} has {len(text.ids_L)} pieces with what stands before it, more than the "
                f"context of {self.context}: shorten it, or give it a longer context"
            )
        whole = len(text.ids_L) + len(text.targets_T)
        if self._config.positions != "relative" and whole > self.context:
            raise InputError(
                f"{''.join(text.parts)[:40]!r} comes to {whole} pieces with what stands before it and what is to be "
                f"drawn: the checkpoint's positions are places in one window, here of {self.context}; ask for fewer, "
                "or give it a longer context"
            )

    def _drawn(self, ids_T: np.ndarray, log_probs_T: np.ndarray, is_done: bool) -> Drawn:
        count = int((ids_T != PAD).sum())
        last = ids_T[count - 1]
        return Drawn(ids_T[: count - (last == EOD)], log_probs_T[:count], bool(is_done), bool(self._stops_V[last]))

    def _decoder(self, ahead: bool) -> Decoder:
        if ahead not in self._decoders:
            self._decoders = {ahead: prepare(self._config, self._params, self.context, ahead)}
        return self._decoders[ahead]


def default_context(pretrained: Pretrained) -> int:
    """Positions that rows saw in pretraining: a window and its memory; 512 where unknown. Of XLNet's windows half is
    reused, of a causal model's all."""
    if not pretrained.reuse_len:
        return DEFAULT_CONTEXT
    return (1 if pretrained.reads_left_to_right else 2) * pretrained.reuse_len + pretrained.model.mem_len


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _begin(
    config: ModelConfig,
    sampling: Sampling,
    context: int,
    decoder: Decoder,
    ids_BL: jnp.ndarray,
    known_BL: jnp.ndarray,
    target_B: jnp.ndarray,
    kind_B: jnp.ndarray,
    rules: _Rules,
) -> tuple[_State, jnp.ndarray, jnp.ndarray]:
    """What is given, and the first piece drawn: (state, pieces [B], their log-probabilities [B])."""
    cache, logits_BV = prefill(config, decoder, ids_BL, known_BL, target_B, context)
    state = _State(cache, jnp.int32(0), jnp.zeros_like(target_B), jnp.zeros(target_B.shape, bool))
    return _choose(sampling, state, logits_BV, kind_B, rules)


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def _go_on(
    config: ModelConfig,
    sampling: Sampling,
    decoder: Decoder,
    state: _State,
    targets_BS: jnp.ndarray,
    kinds_BS: jnp.ndarray,
    rules: _Rules,
) -> tuple[_State, jnp.ndarray, jnp.ndarray]:
    """The pieces of a chunk, PAD where nothing was drawn: (state, pieces [B, CHUNK], their log-probabilities).

    targets, kinds: of the piece drawn last, and of those to draw.
    """
    batch = targets_BS.shape[0]

    def is_more(carry: tuple) -> jnp.ndarray:
        s, state, *_ = carry
        return (s < CHUNK) & ~state.done_B.all()

    def one_more(carry: tuple) -> tuple:
        s, state, tokens_BS, scores_BS = carry
        cache, logits_BV = advance(config, decoder, state.cache, state.token_B, targets_BS[:, s], targets_BS[:, s + 1])
        state, token_B, score_B = _choose(sampling, state._replace(cache=cache), logits_BV, kinds_BS[:, s + 1], rules)
        return s + 1, state, tokens_BS.at[:, s].set(token_B), scores_BS.at[:, s].set(score_B)

    nothing = jnp.full((batch, CHUNK), PAD, jnp.int32), jnp.zeros((batch, CHUNK), jnp.float32)
    return jax.lax.while_loop(is_more, one_more, (0, state, *nothing))[1:]


def _choose(
    sampling: Sampling, state: _State, logits_BV: jnp.ndarray, kind_B: jnp.ndarray, rules: _Rules
) -> tuple[_State, jnp.ndarray, jnp.ndarray]:
    keys_B = jax.vmap(jax.random.fold_in, (0, None))(rules.keys_B, state.step)
    allowed_BV = jnp.where(rules.allowed_KV[kind_B], logits_BV, -jnp.inf)
    token_B = jax.vmap(functools.partial(choose, sampling))(allowed_BV, keys_B)
    score_B = jnp.take_along_axis(jax.nn.log_softmax(logits_BV), token_B[:, None], axis=1)[:, 0]
    step = state.step + 1
    done_B = state.done_B | rules.stops_V[token_B] | (step >= rules.counts_B)
    drawn_B = jnp.where(state.done_B, PAD, token_B)
    return _State(state.cache, step, token_B, done_B), drawn_B, score_B


def choose(sampling: Sampling, logits_V: jnp.ndarray, key: jax.Array) -> jnp.ndarray:
    """A piece, int32; those of minus infinity never."""
    if sampling.temperature == 0:
        return logits_V.argmax().astype(jnp.int32)
    scaled_V = logits_V / sampling.temperature
    if not sampling.top_k and sampling.top_p == 1:
        return jax.random.categorical(key, scaled_V).astype(jnp.int32)
    best_K, ids_K = jax.lax.top_k(scaled_V, min(sampling.top_k or len(scaled_V), len(scaled_V)))
    probs_K = jax.nn.softmax(best_K)
    # The likeliest stays, whatever top_p: nothing comes before it.
    best_K = jnp.where(jnp.cumsum(probs_K) - probs_K < sampling.top_p, best_K, -jnp.inf)
    return ids_K[jax.random.categorical(key, best_K)]


def _stops_V(tokenizer: Tokenizer, stops: Sequence[str]) -> np.ndarray:
    stops_V = np.arange(tokenizer.vocab_size) == EOD
    for stop in stops:
        found_V = np.array([piece.removeprefix(SPACE) == stop for piece in tokenizer.pieces])
        if not (stop and found_V.any()):  # a space alone is a piece of many vocabularies
            raise InputError(f"{stop!r} is no piece of the vocabulary, and cannot end a text")
        stops_V |= found_V
    return stops_V


def _joined(*of_chunks: list[np.ndarray]) -> list[np.ndarray]:
    return [np.concatenate(chunks, axis=1) for chunks in of_chunks]


def _stack(rows: Sequence[np.ndarray], length: int, value: int = 0) -> np.ndarray:
    return np.stack([np.pad(row, (0, length - len(row)), constant_values=value) for row in rows])


def _rounded(length: int) -> int:
    return max(SHORTEST, 1 << (length - 1).bit_length())
