"""Sample text in any order, one or several pieces in a pass: prefill, decode, sample.

With z_s the positions of pass s and x_given the tokens of the prompt,

    p(x | x_given) = Π_s Π_{i in z_s} p(x_i | x_given, x_{z_1}, …, x_{z_{s-1}})

    prefill   read the prompt and predict; once. Its tokens see each other, or earlier ones in a causal network and in a
              record, whose symbols never see all others in pretraining. They never see drawn pieces. Hugging Face's
              `generate` for XLNet hides only the last token from the others, so its earlier draws may see later ones.
    sample    draw a piece for each of the next positions, by temperature, top-k and top-p
    decode    read the pieces drawn last and predict; and sample again, until no position is open
    judge     if the draws must be exact: the pieces of a pass are drafts, and another pass decides how many are kept

models/decoding.py has prefill and decode. All orders take these steps: `choose_next` alone knows which positions come
next. The host gives the device `Targets`, and the device draws up to CHUNK times before the host looks for ended texts.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from data_pipelines.stateless import Purpose, smallest_first, uniforms
from data_pipelines.tokenizer import BOS, EOD, MASK, PAD, SPACE
from data_pipelines.tokenizer.symbols import SymbolPieces
from xlnet_jax.checkpoints.pretrained import Pretrained, scoring_tokenizer, vocabulary_tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.inference.draws import Limits, draw_from, probabilities, sample
from xlnet_jax.inference.log_probs import padded, power_of_two
from xlnet_jax.inference.requests import AFTER, GenerateSettings, Request, allowed_XV
from xlnet_jax.models.decoding import decode, decode_masked, forget, prefill, prepare
from xlnet_jax.models.masks import HIGHEST
from xlnet_jax.objectives.registry import objective_named, segment_of_V
from xlnet_jax.settings.config import ModelConfig

CHUNK = 32  # most passes on the device between two checks by the host
SHORTEST = 32  # smallest padded length; lengths of given texts are rounded up to powers of two
DEFAULT_CONTEXT = 512
NONE = -1  # number of a target that is not there


class Sampling(NamedTuple):
    """How pieces are drawn: what a program is compiled for."""

    config: ModelConfig
    is_masked: bool  # the network reads <mask>
    context: int
    by_confidence: bool
    parallel: int  # pieces drawn in a pass; 0 = all
    is_exact: bool  # the pieces of a pass are drafts, which a second pass judges
    is_greedy: bool  # temperature 0
    top_k: int
    has_top_p: bool  # below 1
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
    limits: tuple[Any, Any]  # temperature and top_p: numbers, so that all of them share a program
    allowed_XV: Any  # bool, pieces that may be drawn, by Kind
    stops_V: Any  # bool, pieces that end a text
    after_V: Any = None  # int32, the Kind of a position of Kind AFTER, by the piece before it; None in prose
    segment_BS: Any = None  # int32, the segment of each position; None = all have the same


class Sampler:
    """A checkpoint prepared for drawing pieces. Raises InputError if it has no tokenizer or vocabulary scores, or does
    not predict in the order of the settings."""

    def __init__(self, pretrained: Pretrained, settings: GenerateSettings) -> None:
        """Prepare the network. settings: those of the draws are used, from temperature to `context`."""
        self.is_causal, model = pretrained.is_causal, pretrained.model
        self._settings, self._is_plain = settings, (settings.order, settings.parallel) == ("left", 1)
        if self.is_causal and not self._is_plain:
            raise InputError(
                "the checkpoint reads from left to right and predicts one piece at a time: leave out "
                f"`{'order' if settings.parallel == 1 else 'parallel'}`"
            )
        is_masked = objective_named(pretrained.objective).filling.replaces
        if settings.exact:
            require_exact(settings, self.is_causal, is_masked)
        by_itself = not settings.parallel  # then pieces of one pass are predicted as masked pieces are
        self.tokenizer = (
            vocabulary_tokenizer(pretrained) if self.is_causal else scoring_tokenizer(pretrained, by_itself)
        )
        self.context = settings.context or default_context(pretrained, self.is_causal, self.tokenizer.symbols)
        # CPUs compute in float32 and would convert bfloat16 weights in each pass.
        dtype = "float32" if jax.default_backend() == "cpu" else model.dtype
        self._sampling = Sampling(
            # Rows of a prompt see all of it, or only earlier pieces if the model is causal.
            dataclasses.replace(model, dtype=dtype, attn_type="uni" if self.is_causal else model.attn_type),
            is_masked,
            self.context,
            settings.order == "confidence",
            settings.parallel,
            settings.exact,
            *(settings.temperature == 0, settings.top_k, settings.top_p < 1),
            in_order=self.tokenizer.records is not None and not self.is_causal,
        )
        self._limits = np.float32(settings.temperature), np.float32(settings.top_p)
        self._params = pretrained.params
        self._prepared: dict[bool, tuple[Any, Any]] = {}
        self._allowed_XV = allowed_XV(self.tokenizer)
        self._stops_V = self._find_stops_V(settings.stop)
        records, has_segments = self.tokenizer.records, model.num_segments > 0 and not self._sampling.is_masked
        self._after_V = len(records.parsed) + self.tokenizer.field_of_V if records else None
        self._segment_V = segment_of_V(self.tokenizer, model) if records and has_segments else None

    def draw(
        self, requests: Sequence[Request], key: jax.Array, first: int = 0, chunk: int = CHUNK
    ) -> Iterator[list[tuple[np.ndarray, np.ndarray, np.ndarray]]]:
        """Draw pieces into the requests until all are done. After the first pass, and after every `chunk` passes, yield
        what has been drawn for the targets of each request: (ids, PAD where a target is open; log-probabilities;
        passes). Later draws change these arrays.

        key: of all texts, or the key of each. first: number of the first text; the draws of a text depend on its
        number, or its key, not on the other texts. requests: must be accepted by `require_room`.
        """
        counts = [len(request.targets_P) for request in requests]
        most = power_of_two(max(counts))
        parallel = min(self._sampling.parallel or most, most)
        sampling = self._sampling._replace(parallel=parallel, chunk=chunk)
        numbers_B = np.arange(first, first + len(requests), dtype=np.uint32)
        keys_B = key if key.ndim else _keys_of_texts(key, numbers_B)
        seeds = [int.from_bytes(data.tobytes()[:8], "little") for data in np.asarray(jax.random.key_data(keys_B))]
        in_pass = 1 if sampling.is_exact else parallel  # pieces of the distribution that is drawn from
        orders = [order_of(self._settings, n, in_pass, seed) for n, seed in zip(counts, seeds, strict=True)]
        found = [(np.full(n, PAD, np.int32), np.zeros(n, np.float32), np.full(n, NONE, np.int32)) for n in counts]
        left, state = orders, None
        while any(map(len, left)):
            # By confidence, also where few are left: one program for all is compiled sooner than one for each width.
            width = most if sampling.by_confidence else sampling.columns * (chunk if state else 1)
            targets = self._targets(requests, left, width, keys_B)
            if state is None:
                params, layers, ids_BL = self._read(requests, targets)
                state, drawn = _prefill_and_sample(sampling, params, layers, ids_BL, targets)
            else:
                state, drawn = _decode_and_sample(sampling, params, layers, state, targets)
            passes_P = np.arange(drawn[0].shape[1]) // sampling.columns
            passes_P = 2 * passes_P + 1 if sampling.is_exact else passes_P  # drafts are kept by every second pass
            rows: Any = zip(requests, orders, found, *map(np.asarray, drawn), strict=True)
            left = [self._record(request, order, known, (*new, passes_P)) for request, order, known, *new in rows]
            yield found

    def _record(
        self, request: Request, order: np.ndarray, found: Sequence[np.ndarray], drawn: Sequence[np.ndarray]
    ) -> np.ndarray:
        """Add what was drawn to what was found for each target, and give the request all up to its end, or up to the
        first open position. Return the passes of the order that still have open targets."""
        number_P, (ids_P, log_probs_P, passes_P) = drawn[0], found
        is_new_P, begun = number_P != NONE, passes_P.max() + 1
        for array_P, new_P in zip(found, (*drawn[1:-1], begun + drawn[-1]), strict=True):
            array_P[number_P[is_new_P]] = new_P[is_new_P]
        ends = np.flatnonzero(self._stops_V[ids_P])
        end = ends[0] + 1 if len(ends) else len(ids_P)
        is_open_P = (ids_P == PAD) & (np.arange(len(ids_P)) < end)
        request.is_done = not is_open_P.any()
        count = end if request.is_done else is_open_P.argmax()
        request.is_stopped = bool(len(ends)) and count == end
        request.log_probs_P, request.passes_P = log_probs_P[:count], passes_P[:count]
        request.ids_P = ids_P[: count - (ids_P[:count][-1:] == EOD).sum()]
        left = np.where((order != NONE) & is_open_P[order], order, NONE)
        return left[(left != NONE).any(1)]

    def _targets(self, requests: Sequence[Request], left: list[np.ndarray], width: int, keys_B: jax.Array) -> Targets:
        """Return the next `width` columns of the passes that are left."""
        number_BP = padded([order.reshape(-1)[:width] for order in left], len(requests), width, NONE)
        both = [(request.targets_P[i], request.kinds_P[i]) for request, i in zip(requests, number_BP, strict=True)]
        position_BP, kind_BP = (np.where(number_BP == NONE, 0, rows) for rows in zip(*both, strict=True))
        # NumPy's arrays: jax would compile programs that convert them.
        columns = np.int32(number_BP), np.int32(position_BP), np.int32(kind_BP)
        vocabulary = self._allowed_XV, self._stops_V, self._after_V
        return Targets(*columns, keys_B, self._limits, *vocabulary, self._segments_BS(requests))

    def _segments_BS(self, requests: Sequence[Request]) -> np.ndarray | None:
        """Return the segment of each position of the requests, which are records; None if all have the same."""
        if self._segment_V is None:
            return None
        length = max(self.context, SHORTEST, *(power_of_two(len(request.ids_L)) for request in requests))
        ids_BS, example_X = padded([r.ids_L for r in requests], len(requests), length, PAD), self._allowed_XV.argmax(1)
        for ids_S, request in zip(ids_BS, requests, strict=True):
            ids_S[request.targets_P] = example_X[request.kinds_P]
        return self._segment_V[ids_BS]

    def _read(self, requests: Sequence[Request], targets: Targets) -> tuple[Any, Any, np.ndarray]:
        """Return what `prefill` and `decode` need: the parameters, also by layer, and the ids [B, L] with room for the
        first targets or, if the network reads <mask>, with <mask> at all."""
        is_masked = self._sampling.is_masked
        open_ = [request.targets_P for request in requests] if is_masked else [np.asarray(targets.position_BP)]
        longest = 1 + max(*(len(request.ids_L) for request in requests), *(int(places.max()) for places in open_))
        length = max(SHORTEST, power_of_two(longest))
        length = min(length, self.context) if is_masked else length  # learned positions end there
        ids_BL = padded([request.ids_L for request in requests], len(requests), length, PAD)
        if is_masked:
            for ids_L, target_P in zip(ids_BL, open_, strict=True):
                ids_L[target_P] = MASK
            return self._params, (), ids_BL
        ahead = not self._is_plain or any((r.targets_P < len(r.ids_L)).any() for r in requests)
        if ahead not in self._prepared:
            self._prepared = {ahead: prepare(self._sampling.config, self._params, self.context, ahead)}
        return *self._prepared[ahead], ids_BL

    def require_room(self, request: Request) -> None:
        """Raise InputError if the text is longer than the context, or has gaps that a causal model cannot fill."""
        config, parallel, order = self._sampling.config, self._sampling.parallel, self._settings.order
        begin, given = "".join(request.parts)[:40], len(request.ids_L)
        whole = max(given, 1 + int(request.targets_P.max()))
        if self.is_causal and request.targets_P[0] < given:
            raise InputError(f"{begin!r} has gaps, but the checkpoint reads from left to right: give one to continue")
        numbers = sorted(order.split())
        if order[0].isdigit() and numbers != sorted(map(str, range(len(request.targets_P)))):
            why = f"must have each of 0 to {len(request.targets_P) - 1} once, for the open positions of {begin!r}"
            raise InputError("order", repr(order), why)
        if given > self.context:
            why = f"which exceeds the context of {self.context}: shorten it, or raise `context`"
            around = "<s> and <eod>" if self.tokenizer.records else "its prefix"
            raise InputError(f"{begin!r} has {given} pieces with {around}, {why}")
        limit = None
        if self._sampling.is_masked:
            limit = "a network that reads <mask>"
        elif config.positions != "relative":
            limit = f"a checkpoint with {config.positions} positions"
        elif order not in ("left", "block"):
            limit = f"`order` {order}"
        elif self._sampling.is_exact:
            limit = "`exact`"
        elif order == "block" and given + min(self._settings.block_size, len(request.targets_P)) - 1 > self.context:
            limit = f"`block_size` {self._settings.block_size}"
        elif given + min(parallel or whole, len(request.targets_P)) - 1 > self.context:
            limit = f"`parallel` {parallel}"
        if limit and whole > self.context:
            why = f"{limit} cannot go beyond it; ask for fewer pieces, or raise `context`"
            whole_text = f"{begin!r} has {whole} pieces with its prefix and the new pieces"
            raise InputError(f"{whole_text}, which exceeds the context of {self.context}: {why}")

    def _find_stops_V(self, stops: Sequence[str]) -> np.ndarray:
        stops_V = np.arange(self.tokenizer.vocab_size) == EOD
        for stop in stops:
            found_V = np.array([piece.removeprefix(SPACE) == stop for piece in self.tokenizer.pieces])
            if not (stop and found_V.any()):  # many vocabularies have a piece that is only a space
                raise InputError("stop", f"{stop!r}", "is not in the vocabulary: give one of its pieces")
            stops_V |= found_V
        return stops_V


def require_exact(settings: GenerateSettings, is_causal: bool, is_masked: bool) -> None:
    """Raise InputError if drafts cannot be judged."""
    if is_causal:
        why = "the checkpoint reads from left to right and predicts one piece at a time, which is exact: leave it out"
    elif is_masked:
        why = "a network that reads <mask> judges one draft in a pass, so drafts save nothing: use `objective` plm"
    elif settings.order == "confidence":
        why = "by confidence, drafts decide which positions come next, so no order can judge them: use left or random"
    elif settings.parallel == 1:
        why = "one piece in a pass is exact already: give the number of drafts with `parallel`, such as 8"
    else:
        return
    raise InputError("exact", "", f": {why}")


def default_context(pretrained: Pretrained, is_causal: bool, symbols: SymbolPieces | None = None) -> int:
    """Return the positions that rows saw in pretraining, window plus memory, or 512 if unknown. The window is twice the
    reused part, or equal to it in a causal model; with learned positions, it is their number. symbols: of records,
    which see no other: as many as the longest one of pretraining has, with <s> and <eod>."""
    if pretrained.model.positions == "learned":
        return pretrained.model.num_places
    if symbols:
        return max(SHORTEST, power_of_two(symbols.longest + 2))
    if not pretrained.reuse_len:
        return DEFAULT_CONTEXT
    return (1 if is_causal else 2) * pretrained.reuse_len + pretrained.model.mem_len


def order_of(settings: GenerateSettings, targets: int, parallel: int, seed: int) -> np.ndarray:
    """Return the numbers of a text's targets by pass: int64 [passes, parallel], NONE where a pass has fewer. By
    confidence, passes have one column, because the device chooses among all. seed: of the text."""
    if settings.order == "random":
        return spread_order(targets, parallel, seed)
    if settings.order == "block":
        size = settings.block_size
        blocks = [(begin, min(size, targets - begin)) for begin in range(0, targets, size)]
        return np.concatenate([spread_order(n, parallel, seed, begin) for begin, n in blocks])
    columns = 1 if settings.order == "confidence" else parallel
    numbers = np.arange(targets) if settings.order in ("left", "confidence") else np.array(settings.order.split(), int)
    return np.pad(numbers, (0, -targets % columns), constant_values=NONE).reshape(-1, columns)


def spread_order(targets: int, parallel: int, seed: int, first: int = 0) -> np.ndarray:
    """Return the numbers of targets by pass, from `first` on, in an order drawn at random: int64 [passes, parallel],
    NONE where a pass has fewer. Each of the n passes has every n-th target: pieces of one pass do not see each other,
    and distant pieces depend least on each other."""
    passes = -(-targets // parallel)
    order = smallest_first(uniforms(seed, Purpose.SCORING_ORDER, first, [0], passes))[0]
    numbers = order[:, None] + passes * np.arange(parallel)
    return np.where(numbers < targets, first + numbers, NONE)


# ---- on the device ---------------------------------------------------------------------------------------------------


@jax.jit
def _keys_of_texts(key: jax.Array, number_B: jnp.ndarray) -> jax.Array:
    return jax.vmap(jax.random.fold_in, (None, 0))(key, number_B)


@functools.partial(jax.jit, static_argnums=0)
def _prefill_and_sample(
    sampling: Sampling, params: Any, layers: Any, ids_BL: jnp.ndarray, targets: Targets
) -> tuple[tuple[Any, ...], tuple[jnp.ndarray, ...]]:
    """Read the given tokens and draw in one pass; return (state, drawn) as `_decode_and_sample` does."""
    nothing_BC = jnp.zeros((len(ids_BL), 1 if sampling.is_exact else sampling.parallel), jnp.int32)
    of_text = {"slots": sampling.context, "segment_BS": targets.segment_BS}
    if sampling.in_order:
        is_end_BL = (ids_BL == BOS) | (ids_BL == EOD)
        of_text["rank_BL"] = jnp.where(is_end_BL, 0, jnp.arange(ids_BL.shape[1])[None])
    predict: Any = functools.partial(prefill, sampling.config, params, ids_BL, **of_text)
    if sampling.is_masked:
        predict = functools.partial(decode_masked, sampling.config, params, ids_BL, ids_BL[:, :1], nothing_BC[:, :1])
    draw = functools.partial(_draw_exactly, layers=(params, layers)) if sampling.is_exact else _draw
    state, _, drawn = draw(sampling, predict, (nothing_BC, nothing_BC), targets, targets.number_BP != NONE)
    return state, drawn


@functools.partial(jax.jit, static_argnums=0, donate_argnums=3)
def _decode_and_sample(
    sampling: Sampling, params: Any, layers: Any, state: tuple[Any, ...], targets: Targets
) -> tuple[tuple[Any, ...], tuple[jnp.ndarray, ...]]:
    """Draw up to `chunk` times; return (state, (numbers of targets [B, P], their pieces, their log-probabilities)), C
    for each pass, with the number NONE where no piece was drawn.

    state: (cache, or the text with <mask>; the pieces drawn last, which are not in it yet, [B, C]; their positions).
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
        state, is_open_BP, new = draw(sampling, functools.partial(read, *state), state[1:], targets, is_open_BP)
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
    last: tuple[jnp.ndarray, jnp.ndarray],
    targets: Targets,
    is_open_BP: jnp.ndarray,
) -> tuple[tuple[Any, ...], jnp.ndarray, tuple[jnp.ndarray, ...]]:
    """Predict the next positions, draw their pieces, and close them; return (state, which targets are open then,
    (numbers [B, C], pieces, log-probabilities)).

    predict: prefill or decode; returns (cache, logits [B, P, V]) for positions [B, P]. last: token_BC and position_BC
    of the state, which repeats them if no target of a text is open.
    """
    if sampling.by_confidence:
        cache, logits_BPV = predict(target_BP=targets.position_BP)
        best_BP = jnp.where(targets.allowed_XV[targets.kind_BP], logits_BPV, -jnp.inf).max(-1)
        confidence_BP = best_BP - jax.nn.logsumexp(logits_BPV, axis=-1)
        column_BC, is_new_BC = choose_next(is_open_BP, sampling.parallel, confidence_BP)
        logits_BCV = _at(column_BC, logits_BPV)
    else:
        column_BC, is_new_BC = choose_next(is_open_BP, sampling.parallel)
        cache, logits_BCV = predict(target_BP=_at(column_BC, targets.position_BP))
    number_BC, position_BC, kind_BC = (_at(column_BC, x) for x in targets[:3])
    if targets.after_V is not None:
        kind_BC = jnp.where(kind_BC == AFTER, targets.after_V[last[0]], kind_BC)
    keys_BC = _keys_of(targets.keys_B, number_BC)
    limits = _limits_of(sampling, targets)
    token_BC = sample(limits, jnp.where(targets.allowed_XV[kind_BC], logits_BCV, -jnp.inf), keys_BC)
    token_BC = _at(jnp.where(is_new_BC, jnp.arange(sampling.parallel)[None], 0), token_BC)
    log_prob_BC = jnp.take_along_axis(jax.nn.log_softmax(logits_BCV), token_BC[..., None], axis=-1)[..., 0]
    is_open_BP = close(is_open_BP, targets, column_BC, is_new_BC, token_BC)
    drawn = jnp.where(is_new_BC, number_BC, NONE), token_BC, log_prob_BC
    read_next = (jnp.where(is_new_BC[:, :1], new, old) for new, old in zip((token_BC, position_BC), last, strict=True))
    return (cache, *read_next), is_open_BP, drawn


def _draw_exactly(
    sampling: Sampling,
    predict: Callable[..., tuple[Any, jnp.ndarray]],
    last: tuple[jnp.ndarray, jnp.ndarray],
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

    layers: the parameters of `decode`. last: the piece that was drawn instead of a draft, [B, 1], which no pass read.
    """
    drafts = sampling.parallel
    column_BC, is_new_BC = choose_next(is_open_BP, drafts + 1, passes=False)
    number_BC, position_BC, kind_BC = (_at(column_BC, x) for x in targets[:3])
    may_be_BCV = targets.allowed_XV[kind_BC]
    keys_BC, limits = _keys_of(targets.keys_B, number_BC), _limits_of(sampling, targets)
    cache, draft_logits_BNV = predict(target_BP=position_BC[:, :drafts])
    q_BNV = probabilities(limits, jnp.where(may_be_BCV[:, :drafts], draft_logits_BNV, -jnp.inf))
    draft_BN = draw_from(keys_BC[:, :drafts], q_BNV)
    # A column that is not there repeats the first draft: what its row computes is the same.
    draft_BN = _at(jnp.where(is_new_BC[:, :drafts], jnp.arange(drafts)[None], 0), draft_BN)
    rank_BC = jnp.where(is_new_BC, jnp.arange(drafts + 1)[None], 0)
    cache, logits_BNV = decode(
        sampling.config, *layers, cache, draft_BN, position_BC[:, :drafts], position_BC[:, 1:],
        segment_BS=targets.segment_BS, ranks=(rank_BC[:, :drafts], rank_BC[:, 1:]),
    )  # fmt: skip
    p_BNV = probabilities(limits, jnp.where(may_be_BCV[:, 1:], logits_BNV, -jnp.inf))  # of columns 1 to N

    is_stop_BN = targets.stops_V[draft_BN]
    uniform_BN = jax.vmap(jax.vmap(jax.random.uniform))(_keys_of(keys_BC[:, 1:drafts], 1))
    p_BN, q_BN = (jnp.take_along_axis(x, draft_BN[:, 1:, None], axis=-1)[..., 0] for x in (p_BNV[:, :-1], q_BNV[:, 1:]))
    is_kept_BN = (uniform_BN * q_BN < p_BN) & ~is_stop_BN[:, :-1]  # nothing follows a stop
    is_kept_BN = jnp.cumprod(jnp.pad(is_kept_BN, ((0, 0), (1, 0)), constant_values=True), axis=1).astype(bool)
    is_kept_BN &= is_new_BC[:, :drafts]
    kept_B1 = is_kept_BN.sum(1, keepdims=True)
    # The piece after them, at column `kept`.
    after_B1 = jnp.maximum(kept_B1 - 1, 0)
    not_drafted_BNV = jnp.pad(q_BNV[:, 1:], ((0, 0), (0, 1), (0, 0)))
    p_B1V = _at(after_B1, p_BNV)
    wanted_B1V = jnp.maximum(p_B1V - _at(after_B1, not_drafted_BNV), 0)
    wanted_B1V = jnp.where(wanted_B1V.any(-1, keepdims=True), wanted_B1V, p_B1V)  # equal but for rounding
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
        for new, old in zip((token_BC, position_BC), last, strict=True)
    )
    drawn = jnp.where(is_drawn_BC, number_BC, NONE), token_BC, log_prob_BC
    return (cache, *read_next), is_open_BP, drawn


def close(
    is_open_BP: jnp.ndarray, targets: Targets, column_BC: jnp.ndarray, is_new_BC: jnp.ndarray, token_BC: jnp.ndarray
) -> jnp.ndarray:
    """Return which targets are open after these pieces were drawn: no others, and none after a piece that ends the
    text."""
    is_open_BP = is_open_BP.at[jnp.arange(len(is_open_BP))[:, None], column_BC].min(~is_new_BC)
    end_BC = jnp.where(is_new_BC & targets.stops_V[token_BC], _at(column_BC, targets.number_BP), HIGHEST)
    return is_open_BP & (targets.number_BP < end_BC.min(1, keepdims=True))


def choose_next(
    is_open_BP: jnp.ndarray, parallel: int, confidence_BP: jnp.ndarray | None = None, passes: bool = True
) -> tuple[jnp.ndarray, jnp.ndarray]:
    """Return the columns of the C targets to draw next, int32 [B, C], and which of them are there: where fewer are
    open, the first stands in for those that are missing.

    They are the first open ones, of one pass if there are passes, in the order of the columns; or, given the
    log-probability of the likeliest piece of each, the C with the highest ones (Chang et al. 2022, MaskGIT, section
    3.2; Nie et al. 2025, LLaDA, section 2.4).
    """
    worth_BP = -jnp.arange(is_open_BP.shape[1], dtype=jnp.float32)[None] if confidence_BP is None else confidence_BP
    _, column_BC = jax.lax.top_k(jnp.where(is_open_BP, worth_BP, -jnp.inf), parallel)
    is_new_BC = _at(column_BC, is_open_BP)
    if confidence_BP is None and passes:
        pass_BC = column_BC // parallel
        is_new_BC &= pass_BC == pass_BC[:, :1]
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
    temperature, top_p = targets.limits
    return Limits(None if sampling.is_greedy else temperature, sampling.top_k, top_p if sampling.has_top_p else None)
