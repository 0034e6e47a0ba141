"""Texts drawn from the prompts of a user, with any checkpoint."""

import errno
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlnet_jax.api.command import CheckpointArgument
from xlnet_jax.errors import InputError
from xlnet_jax.settings.keywords import with_keywords
from xlnet_jax.settings.typed import list_of_texts
from xlnet_jax.storage.reading import read_document

if TYPE_CHECKING:
    from xlnet_jax.checkpoints.pretrained import Pretrained
    from xlnet_jax.inference.generation import Generator
    from xlnet_jax.inference.texts import GeneratedText


@dataclass(frozen=True)
class GenerateSettings:
    """Text drawn from prompts."""

    checkpoint: CheckpointArgument
    """checkpoint with a tokenizer, in any format, tiny, or a name on the Hugging Face Hub"""
    prompt: tuple[str, ...] = ()
    """texts to continue, or to fill in where they have gaps (___); an empty one begins a document"""
    prompt_file: str | None = None
    """file with one prompt a line; blank lines are left out"""
    prefix: str = ""
    """document that the model reads before each prompt, and that is not printed: it helps short prompts"""
    prefix_file: str | None = None
    """file with that document"""
    gap_pieces: tuple[int, ...] = ()
    """pieces in a gap: one number for all, or one for each gap of a prompt; none = 1"""
    max_new_tokens: int = 100
    """most pieces after a prompt without gaps"""
    num_samples: int = 1
    """texts for each prompt"""
    temperature: float = 1.0
    """divides the logits; 0 = always the likeliest piece"""
    top_k: int = 0
    """choose among this many of the likeliest pieces; 0 = all"""
    top_p: float = 0.9
    """choose among the likeliest pieces whose probabilities add up to this; 1 = all"""
    stop: tuple[str, ...] = ()
    """pieces that end a text besides <eod>, such as '.'; they are printed"""
    context: int | None = None
    """newest positions that a piece sees; None = window and memory of pretraining, 512 where they are unknown"""
    batch_size: int = 8
    """texts that are generated together; the draws do not depend on it"""
    seed: int = 0
    """seed of the draws"""
    tokenizer: str | None = None
    """SentencePiece model, for a checkpoint without one"""
    json: bool = False
    """print a JSON object for each text: prompt, text, pieces, log_probs (nats) and whether it came to its end"""

    def prompts(self) -> list[str]:
        """Return all prompts. Raises InputError where there are none, or a file cannot be read."""
        prompts = list(self.prompt)
        if self.prompt_file is not None:
            prompts += [line for line in _read(self.prompt_file, "prompt_file").splitlines() if line.strip()]
        if not prompts:
            raise InputError("there is no prompt: give `prompt` or `prompt_file`; an empty `prompt` begins a document")
        return prompts

    def document(self) -> str:
        """Return the document before each prompt. Raises InputError where it is given twice, or cannot be read."""
        if self.prefix_file is None:
            return self.prefix
        if self.prefix:
            raise InputError("`prefix` and `prefix_file` give the same document: leave one out")
        return " ".join(_read(self.prefix_file, "prefix_file").split())


def generate(model: "Pretrained | str | Path", prompts: str | Iterable[str], **settings: Any) -> "list[GeneratedText]":
    """Return texts drawn from prompts: num_samples for each, in their order.

    model: a loaded checkpoint, or its folder. prompts: texts to continue, or to fill in where they have gaps (___).
    settings: fields of GenerateSettings by name, such as max_new_tokens=50, temperature=0.8 or gap_pieces=(2,). Raises
    InputError for settings, prompts or a checkpoint that cannot work.
    """
    folder = str(model) if isinstance(model, str | Path) else None
    wanted = with_keywords(GenerateSettings(folder or "loaded"), settings)
    given = tuple(list_of_texts(prompts, "prompts"))
    return list(drawn_texts(replace(wanted, prompt=given), None if isinstance(model, str | Path) else model))


def drawn_texts(settings: GenerateSettings, loaded: "Pretrained | None" = None) -> "Iterator[GeneratedText]":
    """Yield num_samples texts for each prompt, as batches of them are done.

    loaded: the checkpoint; None = read it. Raises InputError for settings, prompts or a checkpoint that cannot work.
    """
    from xlnet_jax.inference.texts import generate_texts

    prompts, generator = settings.prompts(), _generator(settings, loaded)
    return generate_texts(
        generator, prompts, prefix=settings.document(), gap_pieces=settings.gap_pieces,
        max_new_tokens=settings.max_new_tokens, num_samples=settings.num_samples, batch_size=settings.batch_size,
        seed=settings.seed,
    )  # fmt: skip


def grow(settings: GenerateSettings) -> Iterator[str]:
    """Yield the parts of the text that `drawn_texts` draws from the first prompt, as they come. Raises InputError."""
    from xlnet_jax.inference.texts import grow_text

    prompt, generator = settings.prompts()[0], _generator(settings)
    return grow_text(
        generator, prompt, prefix=settings.document(), gap_pieces=settings.gap_pieces,
        max_new_tokens=settings.max_new_tokens, seed=settings.seed,
    )  # fmt: skip


def _generator(settings: GenerateSettings, loaded: "Pretrained | None" = None) -> "Generator":
    """Raise InputError for what cannot work before the checkpoint is read."""
    settings.document()
    from xlnet_jax.inference.blanks import check_request

    check_request(
        settings.gap_pieces, settings.max_new_tokens, settings.num_samples, settings.batch_size, settings.seed
    )
    from xlnet_jax.checkpoints.formats import load_with_tokenizer
    from xlnet_jax.inference.generation import Generator, Sampling

    sampling = Sampling(settings.temperature, settings.top_k, settings.top_p)
    pretrained = loaded or load_with_tokenizer(settings.checkpoint, settings.tokenizer)
    return Generator(pretrained, sampling, settings.context, settings.stop)


def _read(name: str, argument: str) -> str:
    if not os.path.exists(name):
        raise InputError(f"`{argument}` {name} cannot be read: {os.strerror(errno.ENOENT)}")
    try:
        return read_document(name).decode("utf-8-sig")
    except InputError as error:
        raise InputError(f"`{argument}` {error}") from None
    except UnicodeDecodeError:
        raise InputError(f"`{argument}` {name} is not UTF-8") from None
