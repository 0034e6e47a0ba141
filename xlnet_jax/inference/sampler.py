"""Sample text in any order, one or several pieces a pass; each piece sees the given tokens and the pieces of earlier
passes.

The given tokens are encoded once; they see each other or, in a causal model, only earlier ones. They never see drawn
pieces. Hugging Face's `generate` for XLNet hides only the last token from the others, so its earlier draws may see
later ones.

The host gives the device a window: targets without a piece in the order of drawing, C columns for each pass. The device
draws up to CHUNK times: the targets of the next pass, which alone are predicted, or, by confidence, the C of all whose
likeliest piece is the most probable (Chang et al. 2022, MaskGIT, section 3.2; Nie et al. 2025, LLaDA, section 2.4).
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from data_pipelines.stateless import Purpose, smallest_first, uniforms
from data_pipelines.tokenizer import EOD, MASK, PAD, SPACE
from xlnet_jax.checkpoints.pretrained import Pretrained, scoring_tokenizer, vocabulary_tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.inference.generate import Blanks, GenerateSettings, allowed_XV
from xlnet_jax.inference.log_probs import padded, power_of_two
from xlnet_jax.kernels.mesh import CPU, platform
from xlnet_jax.models.decoding import Cache, Decoder, Draft, advance, mask_all, prefill, prepare, reread
from xlnet_jax.models.masks import HIGHEST
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.settings.config import ModelConfig

CHUNK = 32  # passes on the device between two checks by the host
SHORTEST = 32  # smallest padded length; lengths of given texts are rounded up to powers of two
DEFAULT_CONTEXT = 512
FEW = 512  # likeliest pieces, which hold most draws; on a CPU, sorting all pieces takes longer than a small network
NONE = -1  # number of a target that is not there


class Drawn(NamedTuple):
    """Pieces drawn for one text."""

    ids_P: np.ndarray  # int32, in the order of the text, up to the first target without a piece; without <eod>
    log_probs_P: np.ndarray  # float32, nats, at temperature 1 over all pieces; includes <eod> if it was drawn
    passes_P: np.ndarray  # int32, the pass in which each came, from 0; includes <eod> if it was drawn
    is_done: bool  # True if no more pieces follow
    is_stopped: bool  # True if <eod> or a stop was drawn, even at the last target


class _Static(NamedTuple):
    """Settings that a program is compiled for."""

    config: ModelConfig
    context: int
    temperature: float
    top_k: int
    top_p: float
    parallel: int  # C, pieces drawn in a pass
    by_confidence: bool
    is_masked: bool


class _Rules(NamedTuple):
    """Pieces that may be drawn, and pieces that end a text."""

    allowed_XV: jnp.ndarray
    stops_V: jnp.ndarray
    keys_B: jnp.ndarray


class _Window(NamedTuple):
    """Targets without a piece in the order of drawing, int32 [B, P]: C columns for each pass; by confidence, a column
    for each target."""

    number_BP: Any  # in the order of the text, or NONE where a pass has fewer than C
    position_BP: Any
    kind_BP: Any


class _Found(NamedTuple):
    """Pieces drawn for one text so far, by target in the order of the text: PAD, 0 and NONE for those without one."""

    ids_P: np.ndarray
    log_probs_P: np.ndarray
    passes_P: np.ndarray

    def add(self, number_P: np.ndarray, ids_P: np.ndarray, log_probs_P: np.ndarray, parallel: int) -> None:
        """Add what was drawn, `parallel` in each pass."""
        new = np.flatnonzero(number_P != NONE)
        begun = self.passes_P.max() + 1
        for values_P, drawn_P in zip(
            self, (ids_P, log_probs_P, begun + np.arange(len(ids_P)) // parallel), strict=True
        ):
            values_P[number_P[new]] = drawn_P[new]


class _State(NamedTuple):
    memory: Cache | Draft
    token_BC: jnp.ndarray  # drawn last, not yet in memory
    position_BC: jnp.ndarray


class Sampler:
    """A checkpoint prepared for drawing pieces. Raises InputError if it has no tokenizer or vocabulary scores, or does
    not predict in the order of the settings."""

    def __init__(self, pretrained: Pretrained, settings: GenerateSettings) -> None:
        """Prepare the network. settings: those of the draws are used, from temperature to `context`."""
        is_causal, model = pretrained.reads_left_to_right, pretrained.model
        self._parallel, self._order = settings.parallel, settings.order
        if is_causal and not self._is_plain:
            raise InputError(
                "the checkpoint reads from left to right and predicts one piece at a time: leave out "
                f"`{'order' if self._parallel == 1 else 'parallel'}`"
            )
        self._is_masked = objective_named(pretrained.objective).filling.replaces
        self.tokenizer = (vocabulary_tokenizer if is_causal else scoring_tokenizer)(pretrained)
        self.context = default_context(pretrained) if settings.context is None else settings.context
        # CPUs compute in float32 and would convert bfloat16 weights in each pass.
        dtype = "float32" if jax.default_backend() == "cpu" else model.dtype
        # Rows of a prompt see all of it, or only earlier pieces if the model is causal.
        self._config = dataclasses.replace(model, dtype=dtype, attn_type="uni" if is_causal else model.attn_type)
        self._limits = settings.temperature, settings.top_k, settings.top_p
        self._params = pretrained.params
        self._decoders: dict[bool, Decoder] = {}
        self._allowed_XV = jnp.asarray(allowed_XV(self.tokenizer))
        self._stops_V = self._find_stops_V(settings.stop)

    @property
    def _is_plain(self) -> bool:
        """True if pieces come one by one in the order of the text."""
        return (self._order, self._parallel) == ("left", 1)

    def draw(self, texts: Sequence[Blanks], key: jax.Array, first: int = 0) -> Iterator[list[Drawn]]:
        """Yield the pieces drawn so far for each text after the first pass and after every CHUNK passes, until all
        texts are done.

        first: number of the first text; the draws of a text depend on its number, not on the other texts. texts: must
        be accepted by `demand_room`.
        """
        counts = [len(text.targets_P) for text in texts]
        most = power_of_two(max(counts))
        parallel, by_confidence = min(self._parallel or most, most), self._order == "confidence"
        static = _Static(self._config, self.context, *self._limits, parallel, by_confidence, self._is_masked)
        keys_B = jax.vmap(jax.random.fold_in, (None, 0))(key, first + jnp.arange(len(texts)))
        rules = _Rules(self._allowed_XV, jnp.asarray(self._stops_V), keys_B)
        columns = 1 if by_confidence else parallel
        orders = [_in_passes(np.arange(-(-n // columns) * columns).reshape(-1, columns), n) for n in counts]
        if self._order == "random":
            seeds = [int.from_bytes(data.tobytes()[:8], "little") for data in np.asarray(jax.random.key_data(keys_B))]
            orders = [spread_order(n, parallel, seed) for n, seed in zip(counts, seeds, strict=True)]
        found = [_Found(np.full(n, PAD, np.int32), np.zeros(n, np.float32), np.full(n, NONE, np.int32)) for n in counts]
        left, state = orders, None
        while longest := max(map(len, left)):
            width = max(parallel, power_of_two(longest)) if by_confidence else parallel * (CHUNK if state else 1)
            number_BP = padded([order.reshape(-1)[:width] for order in left], len(texts), width, NONE)
            both = [(text.targets_P[i], text.kinds_P[i]) for text, i in zip(texts, number_BP, strict=True)]
            position_BP, kind_BP = (np.where(number_BP == NONE, 0, rows) for rows in zip(*both, strict=True))
            window = _Window(*map(jnp.asarray, (number_BP, position_BP, kind_BP)))
            if state is None:
                decoder, ids_BL, known_BL = self._read(texts, window)
                state, drawn = _begin(static, decoder, ids_BL, known_BL, window, rules)
            else:
                state, drawn = _go_on(static, decoder, state, window, rules)
            for row, number_P, *values in zip(found, *map(np.asarray, drawn), strict=True):
                row.add(number_P, *values, parallel)
            left = [self._left(*row) for row in zip(orders, found, strict=True)]
            yield [self._drawn(*row) for row in zip(found, left, strict=True)]

    def _read(self, texts: Sequence[Blanks], window: _Window) -> tuple[Decoder, np.ndarray, np.ndarray]:
        """Return the decoder, the ids [B, L] with room for the first targets or, if the network is masked, for all,
        and which positions hold a token."""
        targets = [text.targets_P for text in texts] if self._is_masked else [window.position_BP]
        longest = 1 + max(*(len(text.ids_L) for text in texts), *(int(target.max()) for target in targets))
        length, rows = max(SHORTEST, power_of_two(longest)), len(texts)
        length = min(length, self.context) if self._is_masked else length  # learned positions end there
        ids_BL = padded([text.ids_L for text in texts], rows, length, PAD)
        known = [np.isin(np.arange(len(text.ids_L)), text.targets_P, invert=True) for text in texts]
        known_BL = padded(known, rows, length, 0).astype(bool)
        if self._is_masked:
            for ids_L, target_P in zip(ids_BL, targets, strict=True):
                ids_L[target_P] = MASK
            return Decoder(self._params, (), ()), ids_BL, known_BL
        ahead = not self._is_plain or any((text.targets_P < len(text.ids_L)).any() for text in texts)
        if ahead not in self._decoders:
            self._decoders = {ahead: prepare(self._config, self._params, self.context, ahead)}
        return self._decoders[ahead], ids_BL, known_BL

    def demand_room(self, text: Blanks) -> None:
        """Raise InputError if the text is longer than the context, or has gaps that a causal model cannot fill."""
        begin, given = "".join(text.parts)[:40], len(text.ids_L)
        whole = max(given, 1 + int(text.targets_P.max()))
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
        limit = None
        if self._is_masked:
            limit = "a network that reads <mask>"
        elif self._config.positions != "relative":
            limit = f"a checkpoint with {self._config.positions} positions"
        elif self._order != "left":
            limit = f"`order` {self._order}"
        elif given + min(self._parallel or whole, len(text.targets_P)) - 1 > self.context:
            limit = f"`parallel` {self._parallel}"
        if limit and whole > self.context:
            raise InputError(
                f"{begin!r} has {whole} pieces with its prefix and the new pieces, which exceeds the context of "
                f"{self.context}: {limit} cannot go beyond it; ask for fewer pieces, or raise `context`"
            )

    def _left(self, order: np.ndarray, found: _Found) -> np.ndarray:
        """Return the passes of an order that still have targets to draw: none after the first end in the text."""
        ends = np.flatnonzero(self._stops_V[found.ids_P])
        is_left_P = found.ids_P == PAD
        is_left_P[ends[0] if len(ends) else len(is_left_P) :] = False
        left = np.where((order != NONE) & is_left_P[order], order, NONE)
        return left[(left != NONE).any(1)]

    def _drawn(self, found: _Found, left: np.ndarray) -> Drawn:
        stops_P = self._stops_V[found.ids_P]
        ends = np.flatnonzero(stops_P | (found.ids_P == PAD))
        count = ends[0] + stops_P[ends[0]] if len(ends) else len(found.ids_P)
        ids_P, log_probs_P, passes_P = (values_P[:count] for values_P in found)
        is_stopped = bool(stops_P[:count].any())
        return Drawn(ids_P[: count - (ids_P[-1:] == EOD).sum()], log_probs_P, passes_P, not len(left), is_stopped)

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
    reused part, or equal to it in a causal model; with learned positions, it is their number."""
    if pretrained.model.positions == "learned":
        return pretrained.model.num_places
    if not pretrained.reuse_len:
        return DEFAULT_CONTEXT
    return (1 if pretrained.reads_left_to_right else 2) * pretrained.reuse_len + pretrained.model.mem_len


def spread_order(targets: int, parallel: int, seed: int) -> np.ndarray:
    """Return the numbers of a text's targets by pass, in an order drawn at random: int64 [passes, parallel], NONE where
    a pass has fewer. Each of the n passes has every n-th target: pieces of one pass do not see each other, and distant
    pieces depend least on each other."""
    passes = -(-targets // parallel)
    first = smallest_first(uniforms(seed, Purpose.SCORING_ORDER, 0, [0], passes))[0]
    return _in_passes(first[:, None] + passes * np.arange(parallel), targets)


def _in_passes(order: np.ndarray, targets: int) -> np.ndarray:
    return np.where(order < targets, order, NONE)


@functools.partial(jax.jit, static_argnums=0)
def _begin(
    static: _Static, decoder: Decoder, ids_BL: jnp.ndarray, known_BL: jnp.ndarray, window: _Window, rules: _Rules
) -> tuple[_State, tuple[jnp.ndarray, ...]]:
    """Read the given tokens and draw in one pass; return (state, drawn) as `_go_on` does."""
    begin = mask_all if static.is_masked else prefill
    read = functools.partial(begin, static.config, decoder, ids_BL, known_BL, slots=static.context)
    nothing_BC = jnp.zeros((len(ids_BL), static.parallel), jnp.int32)
    state, _, drawn = _draw(static, read, nothing_BC, nothing_BC, window, window.number_BP != NONE, rules)
    return state, drawn


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _go_on(
    static: _Static, decoder: Decoder, state: _State, window: _Window, rules: _Rules
) -> tuple[_State, tuple[jnp.ndarray, ...]]:
    """Draw up to CHUNK times; return (state, (numbers of targets [B, P], their pieces, their log-probabilities)), C for
    each pass, with the number NONE where no piece was drawn."""
    go_on = reread if static.is_masked else advance

    def is_more(carry: tuple) -> jnp.ndarray:
        s, _, is_left_BP, _ = carry
        return (s < CHUNK) & is_left_BP.any()

    def draw_once(carry: tuple) -> tuple:
        s, state, is_left_BP, drawn = carry
        read = functools.partial(go_on, static.config, decoder, *state)
        state, is_left_BP, new = _draw(static, read, state.token_BC, state.position_BC, window, is_left_BP, rules)
        place = 0, s * static.parallel
        return s + 1, state, is_left_BP, tuple(map(jax.lax.dynamic_update_slice, drawn, new, (place,) * 3))

    shape = len(state.token_BC), CHUNK * static.parallel
    nothing = jnp.full(shape, NONE), jnp.full(shape, PAD), jnp.zeros(shape, jnp.float32)
    start = jnp.int32(0), state, window.number_BP != NONE, nothing
    _, state, _, drawn = jax.lax.while_loop(is_more, draw_once, start)
    return state, drawn


def _draw(
    static: _Static,
    read: Callable[..., tuple[Any, jnp.ndarray]],
    token_BC: jnp.ndarray,
    position_BC: jnp.ndarray,
    window: _Window,
    is_left_BP: jnp.ndarray,
    rules: _Rules,
) -> tuple[_State, jnp.ndarray, tuple[jnp.ndarray, ...]]:
    """Read once and draw C pieces for targets of the window that are left; return (state, which targets are left then,
    (numbers [B, C], pieces, log-probabilities)).

    read: returns (memory, logits [B, P, V]) for positions [B, P]. token, position: as in the state. Where fewer targets
    are left, the first one stands in for those that are missing; where none is, the state repeats these tokens.
    """

    def at_columns(array: jnp.ndarray, column_BC: jnp.ndarray) -> jnp.ndarray:
        return jnp.take_along_axis(array, column_BC.reshape(*column_BC.shape, *[1] * (array.ndim - 2)), axis=1)

    def first(worth_BP: jnp.ndarray) -> tuple[jnp.ndarray, jnp.ndarray]:
        _, column_BC = jax.lax.top_k(jnp.where(is_left_BP, worth_BP, -jnp.inf), static.parallel)
        is_new_BC = at_columns(is_left_BP, column_BC)
        if not static.by_confidence:
            pass_BC = column_BC // static.parallel
            is_new_BC &= pass_BC == pass_BC[:, :1]
        return jnp.where(is_new_BC, column_BC, column_BC[:, :1]), is_new_BC

    if static.by_confidence:
        memory, logits_BPV = read(target_BP=window.position_BP)
        best_BP = jnp.where(rules.allowed_XV[window.kind_BP], logits_BPV, -jnp.inf).max(-1)
        column_BC, is_new_BC = first(best_BP - jax.nn.logsumexp(logits_BPV, axis=-1))
        number_BC, new_position_BC, kind_BC, logits_BCV = (at_columns(x, column_BC) for x in (*window, logits_BPV))
    else:
        column_BC, is_new_BC = first(-jnp.arange(is_left_BP.shape[1], dtype=jnp.float32)[None])
        number_BC, new_position_BC, kind_BC = (at_columns(x, column_BC) for x in window)
        memory, logits_BCV = read(target_BP=new_position_BC)
    keys_BC = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)))(rules.keys_B, number_BC)
    allowed_BCV = jnp.where(rules.allowed_XV[kind_BC], logits_BCV, -jnp.inf)
    limited = functools.partial(choose, static.temperature, static.top_k, static.top_p)
    rows = allowed_BCV.reshape(-1, allowed_BCV.shape[-1]), keys_BC.reshape(-1)
    # On a CPU one by one: in a batch, a branch is taken for all or none.
    new_C = jax.lax.map(lambda row: limited(*row), rows) if platform() == CPU else jax.vmap(limited)(*rows)
    new_BC = at_columns(new_C.reshape(column_BC.shape), jnp.where(is_new_BC, jnp.arange(static.parallel)[None], 0))
    score_BC = jnp.take_along_axis(jax.nn.log_softmax(logits_BCV), new_BC[..., None], axis=-1)[..., 0]
    end_BC = jnp.where(is_new_BC & rules.stops_V[new_BC], number_BC, HIGHEST)
    is_left_BP = is_left_BP.at[jnp.arange(len(is_left_BP))[:, None], column_BC].set(False)
    is_left_BP &= window.number_BP < end_BC.min(1, keepdims=True)
    is_on_B1 = is_new_BC[:, :1]
    state = _State(memory, jnp.where(is_on_B1, new_BC, token_BC), jnp.where(is_on_B1, new_position_BC, position_BC))
    return state, is_left_BP, (jnp.where(is_new_BC, number_BC, NONE), new_BC, score_BC)


def choose(temperature: float, top_k: int, top_p: float, logits_V: jnp.ndarray, key: jax.Array) -> jnp.ndarray:
    """Draw the id of a piece, int32, by temperature, top_k and top_p in Hugging Face's order (Holtzman et al. 2020,
    section 3.1). Pieces with a logit of minus infinity are never drawn."""
    if temperature == 0:
        return logits_V.argmax().astype(jnp.int32)
    scaled_V = logits_V / temperature
    if not top_k and top_p == 1:
        return jax.random.categorical(key, scaled_V).astype(jnp.int32)
    most = min(top_k or len(scaled_V), len(scaled_V))

    def draw(count: int) -> tuple[jnp.ndarray, jnp.ndarray]:
        """Return the draw from the likeliest pieces, and whether pieces after them could not be drawn."""
        best_Q, ids_Q = jax.lax.top_k(scaled_V, count)
        probs_Q = jax.nn.softmax(best_Q) if count == most else jnp.exp(best_Q - jax.nn.logsumexp(scaled_V))
        # The likeliest piece always stays: the sum before it is 0, below top_p.
        before_Q = jnp.cumsum(probs_Q) - probs_Q
        place = jax.random.categorical(key, jnp.where(before_Q < top_p, best_Q, -jnp.inf))
        return ids_Q[place], before_Q[-1] >= top_p

    if platform() != CPU or top_k or most <= FEW:
        return draw(most)[0]
    drawn, is_whole = draw(FEW)
    return jax.lax.cond(is_whole, lambda: drawn, lambda: draw(most)[0])
