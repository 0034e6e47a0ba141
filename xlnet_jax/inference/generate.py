"""Texts drawn from prompts: each prompt is continued, or its gaps (___) are filled."""

import contextlib
import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from data_pipelines.faults import Faults, TextRow
from data_pipelines.readers import numbered_lines, read_text
from data_pipelines.tokenizer import EOD, EOP, PAD, SPACE, SPECIAL_PIECES, Tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.plots.passes import draw_passes
from xlnet_jax.settings.fields import (
    ANY_TEXT,
    CheckpointArgument,
    at_least,
    between,
    check_bounds,
    list_of_texts,
    setting,
)
from xlnet_jax.settings.parser import with_keywords
from xlnet_jax.storage.outputs import new_file

if TYPE_CHECKING:
    from xlnet_jax.checkpoints.pretrained import Pretrained

COUNT = between(1, 1_000_000)  # of pieces and texts, which all go into arrays
GAP = re.compile("_{3,}")


@dataclass(frozen=True)
class GenerateSettings:
    """Text drawn from prompts."""

    checkpoint: CheckpointArgument
    """folder of a run or of any other checkpoint, tiny, or a name on the Hugging Face Hub"""
    prompt: tuple[str, ...] = setting((), ANY_TEXT)
    """texts to continue, or with gaps (___) to fill; they can follow the checkpoint without --prompt; an empty one
    begins a document"""
    prompt_file: str | None = None
    """file with one prompt per line; a blank line begins a document, as an empty prompt does"""
    prefix: str = ""
    """document to read before each prompt, which helps short prompts; it is not printed"""
    prefix_file: str | None = None
    """file with that document"""
    gap_pieces: tuple[int, ...] = setting((), COUNT)
    """pieces in a gap: one number for all, or one for each gap of a prompt; none = 1"""
    max_new_tokens: int = setting(100, COUNT)
    """maximum number of pieces after a prompt without gaps"""
    num_samples: int = setting(1, COUNT)
    """texts for each prompt"""
    temperature: float = setting(1.0, at_least(0, "the likeliest piece"))
    """divisor of the logits; 0 = always take the likeliest piece"""
    top_k: int = setting(0, at_least(0, "all pieces"))
    """draw from this many of the likeliest pieces; 0 = all"""
    top_p: float = setting(0.9, between(0, 1, "(]"))
    """draw from the likeliest pieces whose probabilities add up to this; 1 = all"""
    order: Literal["left", "random", "confidence"] = "left"
    """which pieces come first: left = from left to right, random = in an order drawn for each text, with pieces of a
    pass far from each other, confidence = where the likeliest piece is the most probable"""
    parallel: int = setting(1, at_least(0, "all"))
    """pieces drawn in a pass, none of which sees another; 0 = all at once"""
    stop: tuple[str, ...] = ()
    """pieces that end a text besides <eod>, such as '.'; they are printed"""
    context: int | None = setting(None, at_least(2))
    """newest positions that a piece sees; None = window plus memory of pretraining, or 512 if unknown"""
    batch_size: int = setting(8, COUNT)
    """texts to generate together; does not change the draws"""
    seed: int = setting(0, at_least(0))
    """seed of the draws"""
    tokenizer: str | None = None
    """SentencePiece model, for a checkpoint without a tokenizer"""
    picture: str | None = None
    """file to write or replace (.png): a picture of a single text, in which the color of each piece is its pass"""
    json: bool = False
    """print a JSON object for each text: prompt, text, pieces, log_probs (nats), passes in which the pieces came, and
    ended, by <eod> or a stop"""

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

    def document(self) -> str:
        """Return the document before each prompt. Raises InputError if it is given twice, or cannot be read."""
        if self.prefix_file is None:
            return self.prefix
        if self.prefix:
            raise InputError("`prefix` and `prefix_file` exclude each other: leave one out")
        return " ".join(read_text(self.prefix_file).split())


def _lines(file: str) -> list[str]:
    """Return the lines of a file; a blank one begins a document, as an empty prompt does."""
    rows, faults = [TextRow(f"{file}: line {number}", line) for number, line in numbered_lines(file)], Faults()
    faults.watch(rows, [not row.is_blank for row in rows])
    faults.keep("a new document")
    return [row.text for row in rows]


class GeneratedText(NamedTuple):
    """One text drawn from a prompt."""

    prompt: str
    text: str  # whole, with the prompt
    pieces: list[str]  # drawn, without <eod>
    log_probs: np.ndarray  # float32 [pieces, and <eod> if it was drawn], nats, at temperature 1 without top-k and top-p
    ended: bool  # by <eod> or a stop, not by the number of pieces
    passes_P: np.ndarray  # int32, the pass in which each of log_probs came, from 0


def generate(
    model: "Pretrained | str | Path",
    prompts: str | Iterable[str],
    *,
    on_part: Callable[[str], Any] | None = None,
    **settings: Any,
) -> list[GeneratedText]:
    """Return texts drawn from prompts: num_samples for each, in their order.

    model: a loaded checkpoint, or its folder. prompts: texts to continue, or with gaps (___) to fill. on_part: called
    with each part of a single text as it is drawn; a text with gaps, or with another order than left, arrives in one
    part. settings: fields of
    GenerateSettings by name, such as max_new_tokens=50, temperature=0.8 or gap_pieces=(2,). Raises InputError for
    invalid settings, prompts or checkpoints.
    """
    loaded = None if isinstance(model, str | Path) else model
    wanted = with_keywords(GenerateSettings("loaded" if loaded else str(model)), settings)
    wanted = dataclasses.replace(wanted, prompt=tuple(list_of_texts(prompts, "prompts")))
    return list(draw_texts(wanted, loaded, on_part))


def print_texts(settings: GenerateSettings) -> None:
    """Print the texts; a single one while it is drawn."""
    check_bounds(settings)
    settings = dataclasses.replace(settings, prompt=tuple(settings.prompts()), prompt_file=None)
    is_single = len(settings.prompt) == settings.num_samples == 1 and not settings.json
    on_part = partial(print, end="", flush=True) if is_single else None
    for i, text in enumerate(draw_texts(settings, on_part=on_part)):
        if is_single:
            print()
        elif settings.json:
            record = text._asdict() | {"log_probs": [round(float(p), 4) for p in text.log_probs]}
            record["passes"] = record.pop("passes_P").tolist()
            print(json.dumps(record, ensure_ascii=False), flush=True)
        else:
            print(f"---\n{text.text}" if i else text.text, flush=True)


def draw_texts(
    settings: GenerateSettings, loaded: "Pretrained | None" = None, on_part: Callable[[str], Any] | None = None
) -> Iterator[GeneratedText]:
    """Yield num_samples texts for each prompt, batch by batch.

    loaded: the checkpoint; None = read it. on_part, errors: as in `generate`.
    """
    prompts, prefix = settings.prompts(), settings.document()
    if on_part and len(prompts) * settings.num_samples > 1:
        raise InputError("`on_part` shows only one text: give one prompt, and `num_samples` 1")
    if settings.picture is not None:
        if len(prompts) * settings.num_samples > 1:
            raise InputError("`picture` shows only one text: give one prompt, and `num_samples` 1")
        if not settings.picture.lower().endswith(".png"):
            raise InputError(f"`picture` {settings.picture} must end in .png: the picture is a PNG")
    with new_file(settings.picture, overwrite=True) if settings.picture else contextlib.nullcontext() as picture:
        yield from _draw_texts(settings, prompts, prefix, loaded, on_part, picture)


def _draw_texts(
    settings: GenerateSettings,
    prompts: list[str],
    prefix: str,
    loaded: "Pretrained | None",
    on_part: Callable[[str], Any] | None,
    picture: Path | None,
) -> Iterator[GeneratedText]:
    import jax

    from xlnet_jax.checkpoints.formats import load_with_tokenizer
    from xlnet_jax.inference.sampler import Sampler

    sampler = Sampler(loaded or load_with_tokenizer(settings.checkpoint, settings.tokenizer), settings)
    tokenizer, rows = sampler.tokenizer, []
    for prompt in prompts:
        tokenizer.demand_known([prefix, prompt], "the prompt")
        text = read_prompt(tokenizer, prompt, prefix, settings.gap_pieces, settings.max_new_tokens)
        sampler.demand_room(text)
        rows += [(prompt, text)] * settings.num_samples
    key = jax.random.key(settings.seed)
    for first in range(0, len(rows), settings.batch_size):
        batch, shown = rows[first : first + settings.batch_size], 0
        for drawn in sampler.draw([text for _, text in batch], key, first):
            grows = settings.order == "left" and batch[0][1].kinds_P[0] == Kind.OPEN
            if on_part and (drawn[0].is_done or grows):
                whole = fill(tokenizer, batch[0][1], drawn[0].ids_P)
                on_part(whole[shown:])
                shown = len(whole)
        for (prompt, text), row in zip(batch, drawn, strict=True):
            pieces = [tokenizer.pieces[i] for i in row.ids_P]
            whole = fill(tokenizer, text, row.ids_P)
            if picture:
                draw_passes(list(segments(tokenizer, text, row.ids_P, row.passes_P)), picture)
            yield GeneratedText(prompt, whole, pieces, row.log_probs_P, row.is_stopped, row.passes_P)


class Kind(IntEnum):
    """Class of pieces that are allowed at a position."""

    OPEN = 0  # any piece of text, <eod> or <eop>
    WORD = 1  # pieces of text that begin with a space
    GLUED = 2  # pieces of text that begin without a space
    INNER = 3  # any piece of text


class Blanks(NamedTuple):
    """A text with positions to fill, at its end or in gaps."""

    ids_L: np.ndarray  # int32, PAD at positions to fill
    targets_P: np.ndarray  # int32, positions to fill, in order; positions from L on continue the text
    kinds_P: np.ndarray  # int32, a Kind for each
    parts: Sequence[str]  # text around the gaps: one more part than gaps
    gap_P: np.ndarray  # int32, the gap of each target


def read_prompt(
    tokenizer: Tokenizer, prompt: str, prefix: str = "", gap_pieces: Sequence[int] = (), max_new_tokens: int = 100
) -> Blanks:
    """Return a prompt with positions to fill from left to right: its gaps, or, if it has no gaps and gap_pieces is
    empty, max_new_tokens positions after it.

    prefix: document before it, ended by <eod>; a prompt without text and prefix begins after <eod>. gap_pieces: pieces
    in each gap, or one number for all; none = 1. Raises InputError if there are not as many numbers as gaps.
    """
    ids: list[int] = [*tokenizer.encode_lines([prefix])[0].tolist(), EOD] if prefix.strip() else []
    parts, targets, kinds = GAP.split(prompt), list[int](), list[int]()
    gaps = len(parts) - 1
    if not gaps and not gap_pieces:
        ids = [*ids, *tokenizer.encode_lines([prompt.rstrip()])[0].tolist()] or [EOD]
        parts, counts = [prompt.rstrip(), ""], [max_new_tokens]
        targets, kinds = list(range(len(ids), len(ids) + max_new_tokens)), [Kind.OPEN] * max_new_tokens
    elif not gaps or len(gap_pieces) not in (0, 1, gaps):
        raise InputError(
            f"`gap_pieces` has {len(gap_pieces)} numbers, but {prompt!r} has {gaps} gaps, written as ___: give one "
            "number for all, or one for each"
        )
    else:
        counts = list(gap_pieces) if len(gap_pieces) == gaps else list(gap_pieces or (1,)) * gaps
        ids = ids if ids or "".join(parts).strip() else [EOD]
        for i, part in enumerate(parts):
            known = tokenizer.encode_lines([part.strip()])[0].tolist()  # the spaces at its ends belong to the gaps
            ids += _glued(tokenizer, known) if i and part and not part[0].isspace() else known
            if i < gaps:
                begins_word = not ids or not part or part[-1].isspace()
                targets += range(len(ids), len(ids) + counts[i])
                kinds += [Kind.WORD if begins_word else Kind.GLUED] + [Kind.INNER] * (counts[i] - 1)
                ids += [PAD] * counts[i]
    gap_P = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    return Blanks(np.array(ids, np.int32), np.array(targets, np.int32), np.array(kinds, np.int32), parts, gap_P)


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


def fill(tokenizer: Tokenizer, blanks: Blanks, ids_P: np.ndarray) -> str:
    """Return the text with these pieces in its gaps; they may be fewer than the targets."""
    text = blanks.parts[0]
    for gap, part in enumerate(blanks.parts[1:]):
        pieces = ids_P[blanks.gap_P[: len(ids_P)] == gap]
        needs_space = len(pieces) and tokenizer.tables.has_space[pieces[0]]
        paragraphs = np.split(pieces, np.flatnonzero(pieces == EOP))
        filled = "\n".join(tokenizer.decode(paragraph) for paragraph in paragraphs).rstrip("\ufffd")
        text += " " * bool(needs_space and text and not text[-1].isspace()) + filled + part
    return text


def segments(
    tokenizer: Tokenizer, blanks: Blanks, ids_P: np.ndarray, passes_P: np.ndarray
) -> Iterator[tuple[str, int | None]]:
    """Yield the text around the gaps, with None, and the pieces in them, each with its pass: for `draw_passes`."""
    yield blanks.parts[0], None
    for gap, part in enumerate(blanks.parts[1:]):
        for i in np.flatnonzero(blanks.gap_P[: len(ids_P)] == gap).tolist():
            piece = tokenizer.pieces[ids_P[i]].replace(SPACE, " ")
            yield "\n" if ids_P[i] == EOP else piece, int(passes_P[i])
        yield part, None


def allowed_XV(tokenizer: Tokenizer) -> np.ndarray:
    """Return which pieces may be drawn, bool [Kind, V]. <eod> and <eop> are the only special pieces in a text."""
    is_text_V = np.arange(tokenizer.vocab_size) >= len(SPECIAL_PIECES)
    begins_word_V = tokenizer.tables.has_space
    is_open_V = is_text_V.copy()
    is_open_V[[EOD, EOP]] = True
    return np.stack([is_open_V, is_text_V & begins_word_V, is_text_V & ~begins_word_V, is_text_V])
