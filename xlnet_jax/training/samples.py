"""What a run has learned, as text: at each evaluation the network continues a passage of the held-out text and fills a
gap in it. The passage and the random key are the same at each evaluation, so samples of different steps are comparable.

`generate`'s decoder draws them (inference/sampler.py), on one device of process 0. The shapes never change, so the
first evaluation compiles the programs.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from data_pipelines.corpus import Corpus
from data_pipelines.tokenizer import BOS, EOD, PAD, SPECIAL_PIECES, Tokenizer
from xlnet_jax.errors import first_line
from xlnet_jax.inference.log_probs import power_of_two
from xlnet_jax.inference.requests import GenerateSettings, Kind, Request, continue_ids, fill, read_record
from xlnet_jax.inference.sampler import Sampler
from xlnet_jax.interop.contents import Pretrained
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.settings.config import Config
from xlnet_jax.training.metrics import Record
from xlnet_jax.training.step import Program

PIECES = 40  # of a passage of prose
UNITS = 160  # the same in characters or bytes
LONGEST = 64  # symbols of a record
SEARCHED = 16  # blocks in which a passage is searched
GATHERED_BYTES = 2**30  # of weights that are divided among devices: larger ones may not fit on one
KEY = 0  # of the draws
LIKELIEST, TOP_P = 64, 0.9  # limits of the draws


@dataclasses.dataclass(frozen=True)
class Sample:
    """A passage of the held-out text, a part of which the network has drawn."""

    kind: str
    """continued: the network saw what is before it; filled: also what is after it"""
    before: str
    drawn: str
    after: str
    held_out: str
    """what the text has in the place of `drawn`"""

    def line(self, reach: int = 50) -> str:
        """Return the passage in one line, with brackets around what was drawn. reach: characters on either side, to
        the end of a word."""
        before, after, drawn = self.before, self.after, self.drawn.lstrip(" ")
        if len(before) > reach:
            before = "…" + re.sub(r"^\S{0,20}\s+", "", before[-reach:])
        if len(after) > reach:
            after = re.sub(r"\s+\S{0,20}$", "", after[:reach]) + "…"
        before += " " * (len(self.drawn) - len(drawn))
        return " ".join(f"{before}[{drawn}]{after}".split("\n")).replace("\t", "  ")

    def record(self, step: int) -> Record:
        """Return the record of metrics.jsonl."""
        return {"step": step, "split": "sample", **dataclasses.asdict(self)}


Draw = Callable[[Any], Sequence[Sample]]
"""Function from the parameters of a run to samples"""


def nothing(params: Any) -> Sequence[Sample]:
    """Draw no samples."""
    return ()


def sampling_of(
    config: Config, program: Program[Any], corpus: Any, tokenizer: Tokenizer | None, say: Callable[[str], Any]
) -> Draw:
    """Return the function that draws the samples of a run, or `nothing`, after it says why. tokenizer: None = the
    network or its text is of another kind than those that `generate` reads.

    An error ends the samples, not the run.
    """
    objective = objective_named(config.objective)
    if not config.eval.samples or tokenizer is None or objective.is_discriminator or not isinstance(corpus, Corpus):
        return nothing
    if reason := why_not_on_one(program.plan.params):
        say(f"samples     none: {reason}")
        return nothing
    try:
        requests = _requests(config, corpus, tokenizer)
    except Exception as error:  # a text of any kind
        say(f"samples     none: {first_line(error)}")
        return nothing
    # A limit of few pieces compiles one branch, not two.
    usual = GenerateSettings(
        "a run",
        temperature=1.0,
        top_k=LIKELIEST,
        top_p=TOP_P,
        repetition_penalty=1.0,
        context=_context(config, requests),
        parallel=0 if objective.order is None else 1,
    )
    failed = list[str]()

    def draw(params: Any) -> Sequence[Sample]:
        if failed or not requests:
            return ()
        try:
            return _draw(config, tokenizer, usual, requests, params)
        except Exception as error:  # such as the memory of the device
            failed.append(first_line(error))
            say(f"samples     none: {failed[0]}")
            return ()

    return draw


def why_not_on_one(params: Any) -> str:
    """Return why process 0 cannot compute with these parameters, or their plan, on one device; "" if it can."""
    arrays = jax.tree.leaves(params)
    if all(array.sharding.is_fully_replicated for array in arrays):
        return ""
    if jax.process_count() > 1:
        return "the weights are divided among hosts"
    whole = sum(array.size * array.dtype.itemsize for array in arrays)
    return "the weights are divided among devices, and too large for one" * (whole > GATHERED_BYTES)


def on_one_device(array: jax.Array) -> jax.Array:
    """Return a whole array on one device. A replicated one is there already, on every host."""
    if array.sharding.is_fully_replicated:
        return array.addressable_data(0)
    return jax.device_put(array, jax.local_devices()[0])


def _draw(
    config: Config, tokenizer: Tokenizer, usual: GenerateSettings, requests: Sequence[tuple[Request, str]], params: Any
) -> list[Sample]:
    model = dataclasses.replace(config.model, remat="none")
    weights = jax.tree.map(on_one_device, params)
    pretrained = Pretrained(model, weights, config.objective, tokenizer=tokenizer)
    sampler = Sampler(pretrained, usual)
    drawn = [dataclasses.replace(request) for request, _ in requests]
    for _ in sampler.draw(drawn, jax.random.key(KEY)):
        pass
    samples = []
    for request, (_, held_out) in zip(drawn, requests, strict=True):
        whole, before, after = fill(tokenizer, request), request.parts[0], request.parts[-1]
        text = whole[len(before) : len(whole) - len(after)]
        samples.append(Sample("filled" if after else "continued", before, text, after, held_out))
    return samples


# ---- the passage -----------------------------------------------------------------------------------------------------


def _requests(config: Config, corpus: Corpus, tokenizer: Tokenizer) -> list[tuple[Request, str]]:
    """Return what is to be drawn, each with the text of the corpus in its place; [] for a text without a passage."""
    order = objective_named(config.objective).order
    ids_L = _record(corpus) if tokenizer.records else _passage(config, corpus, tokenizer)
    if (length := len(ids_L)) < 4:
        return []
    requests = []
    # Symbols of a record stand between <s> and <eod>.
    if order:
        begin, end = (3 * length) // 5, length - bool(tokenizer.records)
        requests.append(_continue(tokenizer, ids_L, begin, end, order == "left to right"))
    if order != "left to right":
        begin = _next_word(tokenizer, ids_L, (2 * length) // 5)
        requests.append(_fill(tokenizer, ids_L, begin, min(begin + length // 5 + 1, length - 1)))
    return requests


def _context(config: Config, requests: Sequence[tuple[Request, str]]) -> int:
    """Return the positions of the decoder's cache: as few as hold each passage."""
    longest = max((1 + int(request.targets_P.max()) for request, _ in requests), default=1)
    longest = max(longest, *(len(request.ids_L) for request, _ in requests), 2)
    return min(power_of_two(longest), config.model.num_places)


def _passage(config: Config, corpus: Corpus, tokenizer: Tokenizer) -> np.ndarray:
    """Return ids of the middle of the held-out text without special pieces, from the beginning of a sentence on if
    there is one."""
    most = UNITS if tokenizer.settings.token_level in ("character", "byte") else PIECES
    most = min(most, config.data.seq_len)
    blocks = corpus.num_blocks("validation")
    first = blocks // 2
    found = np.zeros(0, np.int32)
    for block in range(first, min(first + SEARCHED, blocks)):
        tokens_L, starts_L = (rows[0] for rows in corpus.read("validation", np.array([block])))
        special = np.flatnonzero(tokens_L < len(SPECIAL_PIECES))
        ends = np.append(special, len(tokens_L))
        for begin in (*np.flatnonzero(starts_L), 0):
            end = min(ends[np.searchsorted(ends, begin)], begin + most)
            if end - begin > len(found):
                found = tokens_L[begin:end]
            if len(found) == most:
                return found
    return found


def _record(corpus: Corpus) -> np.ndarray:
    """Return the ids of the first held-out record of a usual length, with <s> and <eod>; else of the shortest one."""
    shortest = np.zeros(0, np.int32)
    for number, ids in enumerate(corpus.documents("validation", whole=True)):
        if len(ids) >= 4 and (len(shortest) == 0 or len(ids) < len(shortest)):
            shortest = ids
        if 4 <= len(shortest) <= LONGEST or number > 1000:
            break
    return np.array([BOS, *shortest, EOD], np.int32) if len(shortest) else shortest


def _next_word(tokenizer: Tokenizer, ids_L: np.ndarray, place: int) -> int:
    """Return the first place from this one on at which a word begins; this one if there is none close by."""
    begins = np.flatnonzero(tokenizer.tables.has_space[ids_L[place : place + len(ids_L) // 5]])
    return place + (int(begins[0]) if len(begins) and not tokenizer.records else 0)


def _texts(tokenizer: Tokenizer, ids_L: np.ndarray, begin: int, end: int) -> tuple[str, str, str]:
    """Return the text before, in and after a part of a passage."""
    to_begin, to_end, whole = (tokenizer.decode(ids_L[:place]) for place in (begin, end, len(ids_L)))
    return to_begin, to_end[len(to_begin) :], whole[len(to_end) :]


def _continue(tokenizer: Tokenizer, ids_L: np.ndarray, begin: int, end: int, is_causal: bool) -> tuple[Request, str]:
    before, held_out, _ = _texts(tokenizer, ids_L, begin, end)
    if tokenizer.symbols and not is_causal:  # whose length a network of any order knows
        return _fill(tokenizer, ids_L, begin, end)
    if tokenizer.symbols:
        return read_record(tokenizer.symbols, before, is_causal=True, max_new_tokens=end - begin), held_out
    request = continue_ids(ids_L[:begin], end - begin, before)
    request.kinds_P[:] = Kind.INNER  # no end of the text
    return dataclasses.replace(request, parts=(before, "")), held_out


def _fill(tokenizer: Tokenizer, ids_L: np.ndarray, begin: int, end: int) -> tuple[Request, str]:
    before, held_out, after = _texts(tokenizer, ids_L, begin, end)
    kinds_P = np.full(end - begin, Kind.INNER, np.int32)
    kinds_P[0] = Kind.WORD if tokenizer.tables.has_space[ids_L[begin]] else Kind.INNER
    if tokenizer.symbols:
        kinds_P = tokenizer.field_of_V[ids_L[begin:end]].astype(np.int32)
    given_L, targets_P = ids_L.copy(), np.arange(begin, end, dtype=np.int32)
    given_L[targets_P] = PAD
    return Request(before, (before, after), given_L, targets_P, kinds_P, np.zeros_like(kinds_P)), held_out
