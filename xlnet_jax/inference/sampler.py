"""Sample text piece by piece; each piece sees the given tokens and the pieces drawn before it.

The given tokens are encoded once; they see each other or, in a causal model, only earlier ones. They never see drawn
pieces. Hugging Face's `generate` for XLNet hides only the last token from the others, so its earlier draws may see
later ones.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from data_pipelines.tokenizer import EOD, PAD, SPACE
from xlnet_jax.checkpoints.pretrained import Pretrained, scoring_tokenizer, vocabulary_tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.inference.generate import Blanks, GenerateSettings, allowed_XV
from xlnet_jax.models.decoding import Cache, Decoder, advance, prefill, prepare
from xlnet_jax.settings.config import ModelConfig

CHUNK = 32  # pieces drawn on the device between two checks by the host
SHORTEST = 32  # smallest padded length; lengths of given texts are rounded up to powers of two
DEFAULT_CONTEXT = 512


class Drawn(NamedTuple):
    """Pieces drawn for one text."""

    ids_P: np.ndarray  # int32, in the order of drawing, without <eod>
    log_probs_P: np.ndarray  # float32, nats, at temperature 1 over all pieces; includes <eod> if it was drawn
    is_done: bool  # True if no more pieces follow
    is_stopped: bool  # True if <eod> or a stop was drawn, even at the last target


class _Static(NamedTuple):
    """Settings that a program is compiled for."""

    config: ModelConfig
    context: int
    temperature: float
    top_k: int
    top_p: float


class _Rules(NamedTuple):
    """Pieces that may be drawn, and pieces that end a text."""

    allowed_XV: jnp.ndarray
    stops_V: jnp.ndarray
    counts_B: jnp.ndarray  # targets
    keys_B: jnp.ndarray


class _State(NamedTuple):
    cache: Cache
    step: jnp.ndarray  # targets drawn so far
    token_B: jnp.ndarray  # drawn last, not yet in the cache
    done_B: jnp.ndarray


class Sampler:
    """A checkpoint prepared for drawing pieces. Raises InputError if it has no tokenizer or vocabulary scores, or
    predicts neither in any order nor from left to right."""

    def __init__(self, pretrained: Pretrained, settings: GenerateSettings) -> None:
        """Prepare the network. settings: temperature, top_k, top_p, `context` and `stop` are used."""
        is_causal, model = pretrained.reads_left_to_right, pretrained.model
        self.tokenizer = (vocabulary_tokenizer if is_causal else scoring_tokenizer)(pretrained)
        self.context = default_context(pretrained) if settings.context is None else settings.context
        # CPUs compute in float32 and would convert bfloat16 weights in each pass.
        dtype = "float32" if jax.default_backend() == "cpu" else model.dtype
        # Rows of a prompt see all of it, or only earlier pieces if the model is causal.
        self._config = dataclasses.replace(model, dtype=dtype, attn_type="uni" if is_causal else model.attn_type)
        self._static = _Static(self._config, self.context, settings.temperature, settings.top_k, settings.top_p)
        self._params = pretrained.params
        self._decoders: dict[bool, Decoder] = {}
        self._allowed_XV = jnp.asarray(allowed_XV(self.tokenizer))
        self._stops_V = self._find_stops_V(settings.stop)

    def draw(self, texts: Sequence[Blanks], key: jax.Array, first: int = 0) -> Iterator[list[Drawn]]:
        """Yield the pieces drawn so far for each text after every CHUNK pieces, until all texts are done.

        first: number of the first text; the draws of a text depend on its number, not on the other texts. texts: must
        be accepted by `demand_room`.
        """
        ahead = any((text.targets_P < len(text.ids_L)).any() for text in texts)
        if ahead not in self._decoders:
            self._decoders = {ahead: prepare(self._config, self._params, self.context, ahead)}
        decoder = self._decoders[ahead]
        counts = [len(text.targets_P) for text in texts]
        keys_B = jax.vmap(jax.random.fold_in, (None, 0))(key, first + jnp.arange(len(texts)))
        rules = _Rules(self._allowed_XV, jnp.asarray(self._stops_V), jnp.asarray(counts), keys_B)
        steps = 1 + -(-(max(counts) - 1) // CHUNK) * CHUNK
        targets_BP = _stack([text.targets_P for text in texts], steps)
        kinds_BP = _stack([text.kinds_P for text in texts], steps)
        longest = 1 + max(max(len(text.ids_L), text.targets_P[0]) for text in texts)
        length = max(SHORTEST, 1 << int(longest - 1).bit_length())
        ids_BL = _stack([text.ids_L for text in texts], length, PAD)
        known_BL = _stack([np.isin(np.arange(len(t.ids_L)), t.targets_P, invert=True) for t in texts], length, False)
        state, tokens, scores = _begin(self._static, decoder, ids_BL, known_BL, targets_BP[:, 0], kinds_BP[:, 0], rules)
        tokens_BP, scores_BP = np.asarray(tokens)[:, None], np.asarray(scores)[:, None]
        for start in range(0, steps, CHUNK):
            done_B = np.asarray(state.done_B)
            yield [self._drawn(*row) for row in zip(tokens_BP, scores_BP, done_B, strict=True)]
            if done_B.all():
                return
            span = slice(start, start + CHUNK + 1)
            state, tokens, scores = _go_on(self._static, decoder, state, targets_BP[:, span], kinds_BP[:, span], rules)
            tokens_BP, scores_BP = np.hstack([tokens_BP, tokens]), np.hstack([scores_BP, scores])

    def demand_room(self, text: Blanks) -> None:
        """Raise InputError if the text is longer than the context, or has gaps that a causal model cannot fill."""
        begin, given, whole = "".join(text.parts)[:40], len(text.ids_L), len(text.ids_L) + len(text.targets_P)
        if self._config.is_causal and text.targets_P[0] < given:
            raise InputError(
                f"{begin!r} has gaps, but the checkpoint reads from left to right and does not see the text after "
                "them: give a prompt to continue"
            )
        if given > self.context:
            raise InputError(
                f"{begin!r} has {given} pieces with its prefix, which exceeds the context of {self.context}: shorten "
                "it, or raise `context`"
            )
        if self._config.positions != "relative" and whole > self.context:
            raise InputError(
                f"{begin!r} has {whole} pieces with its prefix and the new pieces, which exceeds the context of "
                f"{self.context}: a checkpoint with {self._config.positions} positions cannot go beyond it; ask for "
                "fewer pieces, or raise `context`"
            )

    def _drawn(self, ids_P: np.ndarray, log_probs_P: np.ndarray, is_done: bool) -> Drawn:
        count = int((ids_P != PAD).sum())
        last = ids_P[count - 1]
        return Drawn(ids_P[: count - (last == EOD)], log_probs_P[:count], bool(is_done), bool(self._stops_V[last]))

    def _find_stops_V(self, stops: Sequence[str]) -> np.ndarray:
        stops_V = np.arange(self.tokenizer.vocab_size) == EOD
        for stop in stops:
            found_V = np.array([piece.removeprefix(SPACE) == stop for piece in self.tokenizer.pieces])
            if not (stop and found_V.any()):  # many vocabularies have a piece that is only a space
                raise InputError(f"`stop` {stop!r} is not in the vocabulary: give one of its pieces")
            stops_V |= found_V
        return stops_V


def default_context(pretrained: Pretrained) -> int:
    """Return the positions that rows saw in pretraining, window plus memory, or 512 if unknown. The window is twice the
    reused part, or equal to it in a causal model."""
    if not pretrained.reuse_len:
        return DEFAULT_CONTEXT
    return (1 if pretrained.reads_left_to_right else 2) * pretrained.reuse_len + pretrained.model.mem_len


@functools.partial(jax.jit, static_argnums=0)
def _begin(
    static: _Static,
    decoder: Decoder,
    ids_BL: jnp.ndarray,
    known_BL: jnp.ndarray,
    target_B: jnp.ndarray,
    kind_B: jnp.ndarray,
    rules: _Rules,
) -> tuple[_State, jnp.ndarray, jnp.ndarray]:
    """Read the given tokens and draw the first piece; return (state, pieces [B], their log-probabilities [B])."""
    cache, logits_BV = prefill(static.config, decoder, ids_BL, known_BL, target_B, static.context)
    state = _State(cache, jnp.int32(0), jnp.zeros_like(target_B), jnp.zeros(target_B.shape, bool))
    return _choose(static, state, logits_BV, kind_B, rules)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _go_on(
    static: _Static,
    decoder: Decoder,
    state: _State,
    targets_BP: jnp.ndarray,
    kinds_BP: jnp.ndarray,
    rules: _Rules,
) -> tuple[_State, jnp.ndarray, jnp.ndarray]:
    """Draw a chunk of pieces; return (state, pieces [B, P], their log-probabilities), with PAD after the end of a text.

    targets, kinds: of the last drawn piece, then of the pieces to draw, [B, P + 1].
    """

    def is_more(carry: tuple) -> jnp.ndarray:
        s, state, *_ = carry
        return (s < CHUNK) & ~state.done_B.all()

    def draw_one(carry: tuple) -> tuple:
        s, state, tokens_BP, scores_BP = carry
        cache, logits_BV = advance(
            static.config, decoder, state.cache, state.token_B, targets_BP[:, s], targets_BP[:, s + 1]
        )
        state, token_B, score_B = _choose(static, state._replace(cache=cache), logits_BV, kinds_BP[:, s + 1], rules)
        return s + 1, state, tokens_BP.at[:, s].set(token_B), scores_BP.at[:, s].set(score_B)

    shape = targets_BP.shape[0], CHUNK
    nothing = jnp.full(shape, PAD, jnp.int32), jnp.zeros(shape, jnp.float32)
    return jax.lax.while_loop(is_more, draw_one, (0, state, *nothing))[1:]


def _choose(
    static: _Static, state: _State, logits_BV: jnp.ndarray, kind_B: jnp.ndarray, rules: _Rules
) -> tuple[_State, jnp.ndarray, jnp.ndarray]:
    keys_B = jax.vmap(jax.random.fold_in, (0, None))(rules.keys_B, state.step)
    allowed_BV = jnp.where(rules.allowed_XV[kind_B], logits_BV, -jnp.inf)
    token_B = jax.vmap(functools.partial(choose, static.temperature, static.top_k, static.top_p))(allowed_BV, keys_B)
    score_B = jnp.take_along_axis(jax.nn.log_softmax(logits_BV), token_B[:, None], axis=1)[:, 0]
    step = state.step + 1
    done_B = state.done_B | rules.stops_V[token_B] | (step >= rules.counts_B)
    drawn_B = jnp.where(state.done_B, PAD, token_B)
    return _State(state.cache, step, token_B, done_B), drawn_B, score_B


def choose(temperature: float, top_k: int, top_p: float, logits_V: jnp.ndarray, key: jax.Array) -> jnp.ndarray:
    """Draw the id of a piece, int32, by temperature, top_k and top_p in Hugging Face's order (Holtzman et al. 2020,
    section 3.1). Pieces with a logit of minus infinity are never drawn."""
    if temperature == 0:
        return logits_V.argmax().astype(jnp.int32)
    scaled_V = logits_V / temperature
    if not top_k and top_p == 1:
        return jax.random.categorical(key, scaled_V).astype(jnp.int32)
    best_Q, ids_Q = jax.lax.top_k(scaled_V, min(top_k or len(scaled_V), len(scaled_V)))
    probs_Q = jax.nn.softmax(best_Q)
    # The likeliest piece always stays: the sum before it is 0, below top_p.
    best_Q = jnp.where(jnp.cumsum(probs_Q) - probs_Q < top_p, best_Q, -jnp.inf)
    return ids_Q[jax.random.categorical(key, best_Q)]


def _stack(rows: Sequence[np.ndarray], length: int, value: int = 0) -> np.ndarray:
    return np.stack([np.pad(row, (0, length - len(row)), constant_values=value) for row in rows])
