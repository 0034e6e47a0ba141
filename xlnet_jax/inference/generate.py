"""Texts drawn from prompts: each prompt is continued, or its gaps (___) are filled."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from data_pipelines.stateless import Purpose, uniforms
from xlnet_jax.errors import InputError
from xlnet_jax.inference.requests import GenerateSettings, Request, fill, read_prompt, read_record, segments
from xlnet_jax.plots.passes import draw_passes
from xlnet_jax.settings.fields import check_bounds, list_of_texts
from xlnet_jax.settings.parser import with_keywords
from xlnet_jax.storage.outputs import new_file
from xlnet_jax.storage.programs import keep_programs

if TYPE_CHECKING:
    from xlnet_jax.checkpoints.pretrained import Pretrained
    from xlnet_jax.inference.sampler import Sampler


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
    with each part of a single text as it is drawn; a text with gaps, or in an order other than left and block, arrives
    in one part. settings: fields of GenerateSettings by name, such as max_new_tokens=50 or gap_pieces=(2,). Raises
    InputError for invalid settings, prompts or checkpoints.
    """
    loaded = None if isinstance(model, str | Path) else model
    wanted = with_keywords(GenerateSettings("loaded" if loaded else str(model)), settings)
    wanted = dataclasses.replace(wanted, prompt=tuple(list_of_texts(prompts, "prompts")))
    with keep_programs():
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
    prompts, picture = settings.prompts(), settings.picture
    for name, wanted in (("on_part", on_part), ("picture", picture)):
        if wanted is not None and len(prompts) * settings.num_samples > 1:
            raise InputError(name, "", "shows only one text: give one prompt, and `num_samples` 1")
    if picture is not None and not picture.lower().endswith(".png"):
        raise InputError("picture", picture, "must end in .png: the picture is a PNG")
    import jax

    from xlnet_jax.checkpoints.formats import load_with_tokenizer
    from xlnet_jax.inference.sampler import Sampler

    with new_file(picture, overwrite=True) if picture else contextlib.nullcontext() as file:
        sampler = Sampler(loaded or load_with_tokenizer(settings.checkpoint, settings.tokenizer), settings)
        tokenizer, requests = sampler.tokenizer, _read_prompts(sampler, settings)
        for first in range(0, len(requests), settings.batch_size):
            batch, shown = requests[first : first + settings.batch_size], 0
            grows = settings.order in ("left", "block") and batch[0].continues
            for _ in sampler.draw(batch, jax.random.key(settings.seed), first):
                if on_part and (batch[0].is_done or grows):
                    whole = fill(tokenizer, batch[0])
                    on_part(whole[shown:])
                    shown = len(whole)
            if file:
                draw_passes(list(segments(tokenizer, batch[0])), file)
            for r in batch:
                pieces = [tokenizer.pieces[i] for i in r.ids_P]
                yield GeneratedText(r.prompt, fill(tokenizer, r), pieces, r.log_probs_P, r.is_stopped, r.passes_P)


def _read_prompts(sampler: "Sampler", settings: GenerateSettings) -> list[Request]:
    """Return a request for each text. Of records, each has lengths of its own."""
    tokenizer, count = sampler.tokenizer, settings.num_samples
    requests, sizes = list[Request](), (settings.gap_pieces, settings.max_new_tokens)
    if tokenizer.records and settings.prefix:
        raise InputError(f"`prefix` {settings.prefix!r} is for prose: a record sees no other; leave it out")
    for prompt in settings.prompts():
        if symbols := tokenizer.symbols:
            rows = range(len(requests), len(requests) + count)
            uniform_RF = uniforms(settings.seed, Purpose.LENGTHS, 0, rows, len(symbols.records.parsed))
            requests += [read_record(symbols, prompt, sampler.is_causal, *sizes, of_one) for of_one in uniform_RF]
        else:
            tokenizer.require_known([settings.prefix, prompt], "the prompt")
            request = read_prompt(tokenizer, prompt, settings.prefix, *sizes)
            requests += [dataclasses.replace(request) for _ in range(count)]
        for request in requests[-count:]:
            sampler.require_room(request)
    return requests
