"""What a user asks to generate: settings, and prompts as requests, in which a gap (___) or the end is open.

A request lists its open positions and which pieces may stand there, so decoding (inference/sampler.py) knows no text,
and the model no prompt. `fill` puts the pieces that were drawn into the text.

A record (data_pipelines/records.py) is read as <s>, its symbols and <eod>, as in pretraining. An open position takes
only symbols of its field. A network that predicts in any order knows the length of a record before its symbols, so the
length of an open field is drawn first, from those of the training records. A causal network draws <eod> itself.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np

from data_pipelines.faults import Faults, TextRow
from data_pipelines.readers import numbered_lines
from data_pipelines.records import FIELD, SPACED, SYMBOL
from data_pipelines.tokenizer import BOS, EOD, EOP, PAD, SPACE, SPECIAL_PIECES, Tokenizer
from data_pipelines.tokenizer.model import MOST_UNKNOWN
from data_pipelines.tokenizer.symbols import SymbolPieces
from xlnet_jax.errors import InputError
from xlnet_jax.settings.common import CheckpointSettings
from xlnet_jax.settings.fields import ANY_TEXT, Bound, above, at_least, between, setting

_ORDER = re.compile(r"left|random|block|confidence|\d+( \d+)*")
_SAY_ORDER = 'must be left, random, block, confidence or numbers of the open positions, such as "2 0 1"'
COUNT = between(1, 1_000_000)  # of pieces and texts, which all go into arrays
OF_PROSE, OF_RECORDS = (0.8, 0.9, 1.2), (1.0, 1.0, 1.0)
"""temperature, top_p and penalty: for prose, the text closest to that of people by benchmarks/sampling.py; for records,
draws from the distribution that the network has learned"""
GAP = re.compile("_{3,}")


@dataclass(frozen=True)
class GenerateSettings(CheckpointSettings):
    """Text drawn from prompts."""

    prompt: tuple[str, ...] = setting((), ANY_TEXT)
    """texts to continue, or with gaps (___) to fill; they can follow the checkpoint without --prompt; an empty one
    begins a document; in records, a tab separates the fields, and an empty prompt begins a record"""
    prompt_file: str | None = None
    """file with one prompt per line; a blank line begins a document, as an empty prompt does"""
    prefix: str = ""
    """document to read before each prompt, which helps short prompts; it is not printed"""
    gap_pieces: tuple[int, ...] = setting((), COUNT)
    """pieces in a gap: one number for all, or one for each gap of a prompt; none = 1, or for a whole field of a record
    a length drawn from the training records"""
    max_new_tokens: int = setting(100, COUNT)
    """maximum number of pieces after a prompt without gaps"""
    num_samples: int = setting(1, COUNT)
    """texts for each prompt"""
    temperature: float | None = setting(None, at_least(0, "the likeliest piece"))
    """divisor of the logits; 0 = always take the likeliest piece; None = 0.8, for records 1"""
    top_k: int = setting(0, at_least(0, "all pieces"))
    """draw from this many of the likeliest pieces; 0 = all"""
    top_p: float | None = setting(None, between(0, 1, "(]"))
    """draw from the likeliest pieces whose probabilities add up to this; 1 = all; None = 0.9, for records 1"""
    repetition_penalty: float | None = setting(None, above(0))
    """divide the logits of pieces that the text already has by this, or multiply them if they are below 0; 1 = no
    penalty; None = 1.2, or 1 for records and with temperature 0"""
    order: str = setting("left", Bound(lambda order: bool(_ORDER.fullmatch(order)), _SAY_ORDER))
    """which pieces come first: left = from left to right, random = in an order drawn for each text, with pieces of a
    pass far from each other, block = block by block from left to right, inside a block as random, confidence = where
    the likeliest piece is the most probable; or the open positions by number, such as "2 0 1", from 0"""
    block_size: int = setting(32, COUNT)
    """pieces of a block, for `order` block"""
    parallel: int = setting(1, at_least(0, "all"))
    """pieces drawn in a pass, none of which sees another; 0 = all at once"""
    exact: bool = False
    """draw from the distribution of one piece in a pass: the `parallel` pieces of a pass are drafts, the next pass
    verifies them in their order, and those from the first rejected one on are drawn again"""
    stop: tuple[str, ...] = ()
    """pieces that end a text besides <eod>, such as '.'; they are printed"""
    context: int | None = setting(None, at_least(2))
    """newest positions that a piece sees; None = window plus memory of pretraining, or 512 if unknown"""
    batch_size: int = setting(8, COUNT)
    """texts to generate together; does not change the draws"""
    seed: int = setting(0, at_least(0))
    """seed of the draws"""
    picture: str | None = None
    """file to write or replace (.png): a picture of a single text, in which the color of each piece is its pass"""
    json: bool = False
    """print a JSON object for each text: prompt, text, pieces, log_probs (nats), passes in which the pieces came, and
    ended, by <eod> or a stop"""

    def limits(self, of_records: bool) -> tuple[float, float, float]:
        """Return temperature, top_p and penalty."""
        given = self.temperature, self.top_p, self.repetition_penalty
        usual = OF_RECORDS if of_records or self.temperature == 0 else OF_PROSE
        temperature, top_p, penalty = (u if value is None else value for value, u in zip(given, usual, strict=True))
        return temperature, top_p, penalty

    def prompts(self) -> list[str]:
        """Return all prompts. Raises InputError if there are none, or a file cannot be read."""
        prompts = list(self.prompt)
        if self.prompt_file is not None:
            prompts += _lines(self.prompt_file)
        if not prompts:
            raise InputError(
                "there is no prompt: give it after the checkpoint, or `prompt_file`; an empty prompt begins a document"
            )
        return prompts


def _lines(file: str) -> list[str]:
    """Return the lines of a file; a blank one begins a document, as an empty prompt does."""
    rows, faults = [TextRow(f"{file}: line {number}", line) for number, line in numbered_lines(file)], Faults()
    faults.watch(rows, [not row.is_blank for row in rows])
    faults.keep("a new document")
    return [row.text for row in rows]


class Kind(IntEnum):
    """Class of pieces of prose that are allowed at a position. In a record of F fields, f stands for the symbols of
    field f, and F + f for what may follow them: another one, a symbol of the next field or, after the last, <eod>."""

    OPEN = 0  # any piece of text, <eod> or <eop>
    WORD = 1  # pieces of text that begin with a space
    GLUED = 2  # pieces of text that begin without a space
    INNER = 3  # any piece of text


AFTER = -1
"""Kind of a position whose own kind depends on the piece before it, in a record that a causal network continues"""


@dataclass
class Request:
    """A text with open positions, at its end or in gaps, and the pieces that have been drawn for them."""

    prompt: str
    parts: Sequence[str]  # text around the gaps: one more part than gaps
    ids_L: np.ndarray  # int32, PAD at open positions
    targets_P: np.ndarray  # int32, open positions, in order; positions from L on continue the text
    kinds_P: np.ndarray  # int32, a Kind for each
    gap_P: np.ndarray  # int32, the gap of each
    # What has been drawn, in the order of the text, up to the first position that is still open
    ids_P: Any = ()  # int32, without <eod>
    log_probs_P: Any = ()  # float32, nats, at temperature 1 over all pieces; includes <eod>
    passes_P: Any = ()  # int32, the pass in which each came, from 0; includes <eod>
    is_done: bool = False  # True if no more pieces follow
    is_stopped: bool = False  # True if <eod> or a stop was drawn, even at the last position

    @property
    def continues(self) -> bool:
        """True if what is drawn follows the text; False if it fills gaps."""
        return bool(self.targets_P[0] >= len(self.ids_L))


def continue_ids(ids: Sequence[int] | np.ndarray, count: int, prompt: str = "") -> Request:
    """Return the request for `count` pieces after these ids, which are those of a prompt and what is read before it."""
    targets_P = len(ids) + np.arange(count, dtype=np.int32)
    kinds_P = np.full(count, Kind.OPEN, np.int32)
    return Request(prompt, (prompt.rstrip(), ""), np.array(ids, np.int32), targets_P, kinds_P, np.zeros_like(kinds_P))


def read_prompt(
    tokenizer: Tokenizer, prompt: str, prefix: str = "", gap_pieces: Sequence[int] = (), max_new_tokens: int = 100
) -> Request:
    """Return the request to fill the gaps of a prompt or, if it has none and gap_pieces is empty, to continue it by
    max_new_tokens pieces.

    prefix: document before it, ended by <eod>; a prompt without text and prefix begins after <eod>. gap_pieces: pieces
    in each gap, or one number for all; none = 1. Raises InputError if there are not as many numbers as gaps.
    """
    ids: list[int] = [*tokenizer.encode_lines([prefix])[0].tolist(), EOD] if prefix.strip() else []
    parts, targets, kinds = GAP.split(prompt), list[int](), list[int]()
    gaps = len(parts) - 1
    if not gaps and not gap_pieces:
        return continue_ids(
            [*ids, *tokenizer.encode_lines([prompt.rstrip()])[0].tolist()] or [EOD], max_new_tokens, prompt
        )
    counts = _counts_of_gaps(prompt, gaps, gap_pieces) or [1] * gaps
    ids = ids if ids or "".join(parts).strip() else [EOD]
    for i, part in enumerate(parts):
        known = tokenizer.encode_lines([part.strip()])[0].tolist()  # the spaces at its ends belong to the gaps
        ids += _glued(tokenizer, known) if i and part and not part[0].isspace() else known
        if i < gaps:
            begins_word = not ids or not part or part[-1].isspace()
            targets += range(len(ids), len(ids) + counts[i])
            kinds += [Kind.WORD if begins_word else Kind.GLUED] + [Kind.INNER] * (counts[i] - 1)
            ids += [PAD] * counts[i]
    gap_P = np.repeat(np.arange(gaps, dtype=np.int32), counts)
    ids_L, targets_P, kinds_P = (np.array(x, np.int32) for x in (ids, targets, kinds))
    return Request(prompt, parts, ids_L, targets_P, kinds_P, gap_P)


def _counts_of_gaps(prompt: str, gaps: int, gap_pieces: Sequence[int]) -> list[int]:
    """Return gap_pieces for each gap; [] if none are given. Raises InputError if there are not as many as gaps."""
    if not gaps or len(gap_pieces) not in (0, 1, gaps):
        why = (
            f"has {len(gap_pieces)} numbers, but {prompt!r} has {gaps} gaps, written as ___: give one, or one for each"
        )
        raise InputError("gap_pieces", "", why)
    return list(gap_pieces) if len(gap_pieces) == gaps else list(gap_pieces) * gaps


def read_record(
    symbols: SymbolPieces,
    prompt: str,
    is_causal: bool = False,
    gap_pieces: Sequence[int] = (),
    max_new_tokens: int = 100,
    uniform_F: Sequence[float] | np.ndarray | None = None,
) -> Request:
    """Return the request to fill the gaps of a record or, if it has none and gap_pieces is empty, to continue it: its
    last field by at most max_new_tokens symbols, and then the fields after it.

    gap_pieces: as in `read_prompt`; none = 1, or for a whole field a length of the training records. uniform: draws of
    the length of each field, in [0, 1); None = 0.5. Raises InputError for fields or symbols that the network does not
    know, and if no training record has a length that the prompt allows.
    """
    fields, values = symbols.records.parsed, prompt.split(FIELD)
    goes_on = not GAP.search(prompt) and not gap_pieces
    if len(values) > len(fields) or not (goes_on or len(values) == len(fields)):
        names = ", ".join(field.name for field in fields)
        why = f"has {len(values)} fields, not the {len(fields)} of the checkpoint: {names}, with a tab between them"
        raise InputError(f"the prompt {prompt[:40]!r} {why}")
    counts = iter([] if goes_on else _counts_of_gaps(prompt, len(GAP.findall(prompt)), gap_pieces))
    around = [GAP.split(value) for value in values]  # texts around the gaps of each field
    if goes_on:
        around = [*around[:-1], [values[-1], ""], *[["", ""]] * (len(fields) - len(values))]
    known = [[_read_symbols(symbols, i, text, len(row) > 1) for text in row] for i, row in enumerate(around)]
    given = [symbol for row in known for _, ids in row for symbol in ids]
    if given and np.isin(given, symbols.unknown_ids).mean() > MOST_UNKNOWN:
        raise InputError(f"the prompt {prompt[:40]!r}: most of its symbols are not in the vocabulary of the checkpoint")
    if goes_on and is_causal:
        request = continue_ids([BOS, *given], max_new_tokens, prompt)
        request.kinds_P[:] = AFTER
        request.kinds_P[0] = len(values) - 1 + len(fields) * bool(known[len(values) - 1][0][1])
        return replace(request, parts=(FIELD.join(row[0][0] for row in known[: len(values)]), ""))
    all_ids, parts, targets, kinds, of_gap = [BOS], [""], list[int](), list[int](), list[int]()
    for number, (field, row) in enumerate(zip(fields, known, strict=True)):
        parts[-1] += FIELD * bool(number)
        drawn, length = 1, sum(len(ids) for _, ids in row)
        if (goes_on and len(row) > 1) or row == [("", [])] * 2:
            least, most = length + (number == len(fields) - 1), length + (max_new_tokens if goes_on else 10**9)
            uniform = 0.5 if uniform_F is None else float(uniform_F[number])
            if (found := symbols.draw_length(number, least, most, uniform)) is None:
                why = f"no training record has {least:,} to {most:,} symbols in {field.name!r}"
                remedy = f"{'raise `max_new_tokens`, or ' * goes_on}write ___ where symbols are missing"
                raise InputError(f"{why}, as the prompt {prompt[:40]!r} needs: {remedy}")
            drawn = found - length
        for i, (text, ids) in enumerate(row):
            if i:
                count = next(counts, drawn)
                targets += range(len(all_ids), len(all_ids) + count)
                kinds += [number] * count
                of_gap += [len(parts) - 1] * count
                all_ids += [PAD] * count
                parts.append(SYMBOL * (bool(text) and field.level in SPACED))
            parts[-1] += text
            all_ids += ids
    ids_L, targets_P, kinds_P, gap_P = (np.array(x, np.int32) for x in ([*all_ids, EOD], targets, kinds, of_gap))
    return Request(prompt, parts, ids_L, targets_P, kinds_P, gap_P)


def _read_symbols(symbols: SymbolPieces, number: int, text: str, may_be_empty: bool) -> tuple[str, list[int]]:
    """Return what a prompt says of a field, in the form of a line, and its ids. Raises InputError for what the field
    cannot have."""
    if may_be_empty and not text.strip():
        return "", []
    text, fault = symbols.records.parsed[number].text_of(text)
    if fault and symbols.records.unknown == "refuse":
        raise InputError(f"the prompt {fault}")
    return text, symbols.encode_field(number, [text])[0].tolist()


def _glued(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """Return the ids of a text without the space that SentencePiece puts before it."""
    if tokenizer.settings.token_level == "byte":
        return ids[1:]
    first = tokenizer.pieces[ids[0]] if ids else ""
    if not first.startswith(SPACE):
        return ids
    by_piece = {piece: i for i, piece in enumerate(tokenizer.pieces)}
    rest = first.removeprefix(SPACE)
    whole = [rest] if rest in by_piece else list(rest)
    return [by_piece[piece] for piece in whole if piece in by_piece] + ids[1:]


def fill(tokenizer: Tokenizer, request: Request) -> str:
    """Return the text with the pieces that have been drawn."""
    if tokenizer.symbols:
        return "".join(text for text, _ in segments(tokenizer, request))
    text = request.parts[0]
    for gap, part in enumerate(request.parts[1:]):
        pieces = request.ids_P[request.gap_P[: len(request.ids_P)] == gap]
        needs_space = len(pieces) and tokenizer.tables.has_space[pieces[0]]
        paragraphs = np.split(pieces, np.flatnonzero(pieces == EOP))
        filled = "\n".join(tokenizer.decode(paragraph) for paragraph in paragraphs).rstrip("\ufffd")
        text += " " * bool(needs_space and text and not text[-1].isspace()) + filled + part
    return text


def segments(tokenizer: Tokenizer, request: Request) -> Iterator[tuple[str, int | None]]:
    """Yield the text around the gaps, with None, and the pieces in them, each with its pass: for `draw_passes`."""
    text = request.parts[0]
    yield text, None
    for gap, part in enumerate(request.parts[1:]):
        for i in np.flatnonzero(request.gap_P[: len(request.ids_P)] == gap).tolist():
            piece = "\n" if request.ids_P[i] == EOP else tokenizer.pieces[request.ids_P[i]].replace(SPACE, " ")
            if tokenizer.symbols:
                piece = _text_after(tokenizer.symbols, text, request.ids_P[i])
                text += piece
            yield piece, int(request.passes_P[i])
        text += part
        yield part, None


def _text_after(symbols: SymbolPieces, line: str, i: int) -> str:
    """Return what the symbol of an id adds to a line that has all before it."""
    number, symbol = int(symbols.field_of_V[i]), symbols.decode([i]).strip(FIELD)
    if missing := number - line.count(FIELD):
        return FIELD * missing + symbol
    is_next = symbols.records.parsed[number].level in SPACED and line[-1:] not in ("", FIELD, SYMBOL)
    return SYMBOL * is_next + symbol


def allowed_XV(tokenizer: Tokenizer) -> np.ndarray:
    """Return which pieces may be drawn, bool [Kind, V]. <eod> and <eop> are the only special pieces in a text."""
    if symbols := tokenizer.symbols:
        of_field_FV = np.zeros((len(symbols.records.parsed), tokenizer.vocab_size), bool)
        for number, of_one_V in enumerate(of_field_FV):
            of_one_V[symbols.ids_of(number)] = True
        next_FV = np.roll(of_field_FV, -1, axis=0)
        next_FV[-1] = np.arange(tokenizer.vocab_size) == EOD
        return np.concatenate([of_field_FV, of_field_FV | next_FV])
    is_text_V = np.arange(tokenizer.vocab_size) >= len(SPECIAL_PIECES)
    begins_word_V = tokenizer.tables.has_space
    is_open_V = is_text_V.copy()
    is_open_V[[EOD, EOP]] = True
    return np.stack([is_open_V, is_text_V & begins_word_V, is_text_V & ~begins_word_V, is_text_V])
