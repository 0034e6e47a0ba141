"""Sample text in any order, one or several pieces in a pass: prefill, decode, sample.

With z_s the positions of pass s and x_given the tokens of the prompt,

    p(x | x_given) = Π_s Π_{i in z_s} p(x_i | x_given, x_{z_1}, …, x_{z_{s-1}})

    prefill   read the prompt and predict; once. Its tokens see each other, or earlier ones in a causal network and in a
              record, whose symbols never see all others in pretraining. They never see drawn pieces. Hugging Face's
              `generate` for XLNet hides only the last token from the others, so its earlier draws may see later ones.
    sample    draw a piece for each of the next positions, by temperature, top-k and top-p
    decode    read the pieces drawn last and predict; and sample again, until no position is open
    verify    if the draws must be exact: the pieces of a pass are drafts, and another pass decides how many are kept

models/decoding.py has prefill and decode, and passes.py draws: the host gives the device `Targets`, and the device
draws up to CHUNK times before the host looks for ended texts. All orders take these steps.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from data_pipelines.stateless import Purpose, smallest_first, uniforms
from data_pipelines.tokenizer import EOD, MASK, PAD, SPACE
from data_pipelines.tokenizer.symbols import SymbolPieces
from xlnet_jax.checkpoints.pretrained import Pretrained, scoring_tokenizer, vocabulary_tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.inference.log_probs import padded, power_of_two
from xlnet_jax.inference.passes import CHUNK, NONE, Sampling, Targets, decode_and_sample, prefill_and_sample
from xlnet_jax.inference.requests import GenerateSettings, Request, allowed_XV
from xlnet_jax.models.decoding import prepare
from xlnet_jax.objectives.registry import objective_named, segment_of_V

SHORTEST = 32  # smallest padded length; lengths of given texts are rounded up to powers of two
DEFAULT_CONTEXT = 512
APART = 4
"""least distance of the pieces of a pass by confidence, unless it draws all (benchmarks/positions.py)"""


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
        temperature, top_p, penalty = settings.limits(self.tokenizer.records is not None)
        # CPUs compute in float32 and would convert bfloat16 weights in each pass.
        dtype = "float32" if jax.default_backend() == "cpu" else model.dtype
        self._sampling = Sampling(
            # Rows of a prompt see all of it, or only earlier pieces if the model is causal.
            dataclasses.replace(model, dtype=dtype, attn_type="uni" if self.is_causal else model.attn_type),
            is_masked,
            self.context,
            settings.order == "confidence",
            APART if settings.parallel else 1,
            settings.parallel,
            settings.exact,
            *(temperature == 0, settings.top_k, top_p < 1, penalty != 1),
            in_order=self.tokenizer.records is not None and not self.is_causal,
        )
        self._limits = np.float32(temperature), np.float32(top_p), np.float32(penalty)
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
                state, drawn = prefill_and_sample(sampling, params, layers, ids_BL, targets)
            else:
                state, drawn = decode_and_sample(sampling, params, layers, state, targets)
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
        request.is_stopped = bool(len(ends) and count == end)
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
    """Raise InputError if drafts cannot be verified."""
    if is_causal:
        why = "the checkpoint reads from left to right and predicts one piece at a time, which is exact: leave it out"
    elif is_masked:
        why = "a network that reads <mask> verifies one draft per pass, so drafts save nothing: use `objective` plm"
    elif settings.order == "confidence":
        why = "by confidence, drafts decide which positions come next, so they cannot be verified: use left or random"
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


@jax.jit
def _keys_of_texts(key: jax.Array, number_B: jnp.ndarray) -> jax.Array:
    return jax.vmap(jax.random.fold_in, (None, 0))(key, number_B)
