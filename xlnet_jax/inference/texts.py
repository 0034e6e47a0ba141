"""Texts drawn from prompts: each prompt goes on to the right, or has its gaps (___) filled."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from xlnet_jax.inference.blanks import GAP, Blanks, check_request, continuation, fill, infilling
from xlnet_jax.inference.generation import Drawn, Generator
from xlnet_jax.settings.typed import list_of_texts


class GeneratedText(NamedTuple):
    """One text drawn from a prompt."""

    prompt: str
    text: str  # whole, with the prompt
    pieces: list[str]  # drawn, without <eod>
    log_probs: np.ndarray  # float32 [pieces, and <eod> where it was drawn], nats, of the model itself
    ended: bool  # by <eod> or another piece that stops, not by the number of pieces


def generate_texts(
    generator: Generator,
    prompts: str | Iterable[str],
    *,
    prefix: str = "",
    gap_pieces: Sequence[int] = (),
    max_new_tokens: int = 100,
    num_samples: int = 1,
    batch_size: int = 8,
    seed: int = 0,
) -> Iterator[GeneratedText]:
    """Yield num_samples texts for each prompt, in the order of the prompts, as batches of them are done.

    prefix: document that the model reads before each prompt; it is not in the text. gap_pieces: pieces in a gap, one
    number for all gaps or one for each gap of a prompt; none = 1. max_new_tokens: most pieces after a prompt without
    gaps. batch_size: texts drawn together; the draws do not depend on it.

    Raises InputError for numbers out of range, and for prompts that do not fit the generator (`demand_room`).
    """
    check_request(gap_pieces, max_new_tokens, num_samples, batch_size, seed)
    prompts = list_of_texts(prompts, "prompts")
    texts = [_blanks(generator, prompt, prefix, gap_pieces, max_new_tokens) for prompt in prompts]
    rows = [(prompt, text) for prompt, text in zip(prompts, texts, strict=True) for _ in range(num_samples)]
    for first in range(0, len(rows), batch_size):
        batch = rows[first : first + batch_size]
        *_, last = generator.draw([text for _, text in batch], jax.random.key(seed), first)
        for (prompt, text), drawn in zip(batch, last, strict=True):
            yield _generated(generator, prompt, text, drawn)


def grow_text(
    generator: Generator,
    prompt: str,
    *,
    prefix: str = "",
    gap_pieces: Sequence[int] = (),
    max_new_tokens: int = 100,
    seed: int = 0,
) -> Iterator[str]:
    """Yield the parts of one text as they are drawn; joined they are the text that `generate_texts` draws.

    A text with gaps comes whole, when they are filled. Arguments and errors are those of `generate_texts`.
    """
    check_request(gap_pieces, max_new_tokens, 1, 1, seed)
    text = _blanks(generator, prompt, prefix, gap_pieces, max_new_tokens)
    shown = 0
    for (drawn,) in generator.draw([text], jax.random.key(seed)):
        if drawn.is_done or text.is_open:
            whole = fill(generator.tokenizer, text, drawn.ids_P)
            yield whole[shown:]
            shown = len(whole)


def _blanks(generator: Generator, prompt: str, prefix: str, gap_pieces: Sequence[int], max_new_tokens: int) -> Blanks:
    if gap_pieces or GAP.search(prompt):
        text = infilling(generator.tokenizer, prompt, prefix, gap_pieces or (1,))
    else:
        text = continuation(generator.tokenizer, prompt, prefix, max_new_tokens)
    generator.demand_room(text)
    return text


def _generated(generator: Generator, prompt: str, text: Blanks, drawn: Drawn) -> GeneratedText:
    whole = fill(generator.tokenizer, text, drawn.ids_P)
    pieces = [generator.tokenizer.pieces[i] for i in drawn.ids_P]
    return GeneratedText(prompt, whole, pieces, drawn.log_probs_P, drawn.is_stopped)
