"""Relative effective context lengths of causal checkpoints that are compared with each other."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NamedTuple

import tyro

from xlnet_jax.api.text_source import TextSourceSettings
from xlnet_jax.errors import InputError
from xlnet_jax.settings.bounds import at_least, check_bounds
from xlnet_jax.settings.fields import setting
from xlnet_jax.settings.keywords import with_plain_paths

if TYPE_CHECKING:
    import numpy as np

    from data_pipelines.corpus import Corpus
    from xlnet_jax.checkpoints.pretrained import Pretrained
    from xlnet_jax.inference.effective_context import Recl


@dataclass(frozen=True)
class ReclSettings(TextSourceSettings):
    """Checkpoints that are compared with each other: they share one baseline (docs/memory.md)."""

    checkpoints: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """causal checkpoints with the same tokenizer, in any format, the folders of their runs, or names on the Hugging
    Face Hub"""
    text: tuple[str, ...] = ()
    """text to predict: files, globs, folders, URLs, tfds:NAME or hf:NAME; none = the held-out text of the run of
    the first checkpoint, or of the package"""
    step: int = setting(16, at_least(1))
    """shortest context, and the pieces by which it grows"""
    longest: int = 256
    """longest context, in pieces"""
    tokens: int = setting(1000, at_least(1))
    """pieces to predict: the first of the text that have the longest context before them"""
    shares: tuple[float, ...] = (1.0, 0.5, 0.1)
    """shares of these pieces that count, the hardest first (the paper's r)"""
    threshold: float = 0.01
    """relative gain in perplexity below which a longer context counts as useless"""
    batch_tokens: int = setting(4096, at_least(1))
    """tokens that the network reads at once; the lengths do not depend on it"""
    tokenizer: str | None = None
    """SentencePiece model, for checkpoints without one"""

    @property
    def lengths(self) -> range:
        """Context lengths to try, in pieces."""
        return range(self.step, self.longest + 1, self.step)

    def check(self) -> None:
        """Raise InputError for what cannot work, before anything is read."""
        from xlnet_jax.inference import effective_context

        if not self.checkpoints:
            raise InputError("there is no checkpoint: name one or several that were trained with the objective clm")
        check_bounds(self)
        if len(self.lengths) < 2:
            raise InputError(f"`longest` {self.longest} must be at least twice `step` {self.step}")
        effective_context.check(self.lengths, self.shares, self.threshold)


class EffectiveContext(NamedTuple):
    """Lengths of a group of checkpoints, and the text that they were measured on."""

    by_share: "dict[float, list[Recl]]"  # by the share of the pieces that counts, in the order of the checkpoints
    text: str
    tokens: int  # pieces that were predicted


def recl(settings: ReclSettings, on_length: Callable[[int], None] = lambda length: None) -> EffectiveContext:
    """Measure the relative effective context length of each checkpoint.

    on_length: called with each context length before it is tried. Raises InputError for settings, a text or
    checkpoints that cannot work, or that cannot be compared.
    """
    settings = with_plain_paths(settings)
    settings.check()
    import numpy as np

    from data_pipelines import sources, texts
    from xlnet_jax.checkpoints.pretrained import vocabulary_tokenizer
    from xlnet_jax.inference.effective_context import effective_context_lengths
    from xlnet_jax.inference.left_to_right import by_window
    from xlnet_jax.training.heldout.evaluation import Run

    models = _models(settings.checkpoints, settings.tokenizer)
    length = settings.longest + settings.tokens
    run = None if settings.text else Run.of(settings.checkpoints[0])
    if run and (own := run.corpus()):
        name, ids_L = f"the held-out text of {run.folder}", _held_out(own, length)
    else:
        found = settings.find(settings.text or sources.embedded()[1:], "validation")
        name = sources.name_of(found) if settings.text else "the held-out novel"
        lines = sources.read_lines(found, settings.corpus_errors)
        ids_L = texts.first_pieces(lines, vocabulary_tokenizer(models[0]), length)
    if len(ids_L) <= settings.longest:
        raise InputError(
            f"text {name}: {len(ids_L):,} pieces are too few for a context of {settings.longest}: "
            "give more, or lower `longest`"
        )
    targets_P = np.arange(settings.longest, len(ids_L))
    losses_P = functools.partial(by_window, targets_P=targets_P, batch_tokens=settings.batch_tokens)

    def losses_UP(length: int) -> "np.ndarray":
        on_length(length)
        return -np.stack([losses_P(model, ids_L, length) for model in models])

    by_share = effective_context_lengths(losses_UP, settings.lengths, settings.shares, settings.threshold)
    return EffectiveContext(by_share, name, len(targets_P))


def _held_out(corpus: "Corpus", length: int) -> "np.ndarray":
    """Return the first pieces that a run holds out, at most `length`: int32 [L]."""
    import numpy as np

    blocks = min(-(-length // corpus.block_len), corpus.num_blocks("validation"))
    return corpus.read("validation", np.arange(blocks))[0].reshape(-1)[:length]


def _models(checkpoints: Sequence[str], tokenizer: str | None) -> "list[Pretrained]":
    """Load checkpoints. Raises InputError where one is not causal, or has another tokenizer than the first."""
    from xlnet_jax.checkpoints.formats import load_with_tokenizer
    from xlnet_jax.checkpoints.pretrained import on_device, vocabulary_tokenizer
    from xlnet_jax.inference.left_to_right import demand_causal

    models = [load_with_tokenizer(name, tokenizer) for name in checkpoints]
    for name, model in zip(checkpoints, models, strict=True):
        try:
            demand_causal(model)
            pieces = vocabulary_tokenizer(model).pieces
        except InputError as mistake:
            raise InputError(f"{name}: {mistake}") from None
        if pieces != vocabulary_tokenizer(models[0]).pieces:
            raise InputError(
                f"{name} has another tokenizer than {checkpoints[0]}: losses of different pieces do not compare"
            )
    return [on_device(model) for model in models]
