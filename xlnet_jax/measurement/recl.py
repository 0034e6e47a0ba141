"""Relative effective context length, RECL: the longest context that improves a model, relative to a group of models
(Dai et al. 2019, section 4.3 and appendix C).

The loss of model i on token t, given the c pieces before it, is l_i(c, t) = -log p_i(x_t | x_{t-c} … x_{t-1}). Then

    b(c, t)    = min over i of l_i(c, t)                   best loss of the group with the short context
    T(c)       = the share r of the tokens with the largest b(c, t)
    f_i(c, c') = mean over T(c) of min(b(c, t), l_i(c', t))
    g_i(c, c') = (exp f_i(c, c) - exp f_i(c, c')) / exp f_i(c, c)

and the RECL of model i is the smallest c for which the gain g_i(c, c') of the next length c' is below a threshold of
0.01 in perplexity. All models must improve on the same baseline, so being weak with a short context is no advantage.
The paper's lengths are multiples of one length.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np
import tyro

from xlnet_jax.errors import InputError
from xlnet_jax.printing import Console, progress
from xlnet_jax.settings.common import TextSourceSettings
from xlnet_jax.settings.fields import at_least, check_bounds, setting, with_plain_paths
from xlnet_jax.storage.programs import keep_programs

if TYPE_CHECKING:
    from xlnet_jax.checkpoints.pretrained import Pretrained

THRESHOLD = 0.01  # smallest relative gain in perplexity for which a longer context counts as useful
SHARES = (1.0, 0.5, 0.1)  # of the hardest pieces that count: the paper's r


@dataclass(frozen=True)
class ReclSettings(TextSourceSettings):
    """Comparison of checkpoints by one shared baseline (docs/evaluate.md)."""

    checkpoints: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """causal checkpoints with the same tokenizer: folders of runs or other checkpoints, or names on the Hugging Face
    Hub"""
    text: tuple[str, ...] = ()
    """text to predict: files, globs, folders, URLs, tfds:NAME or hf:NAME; none = the held-out text of the first
    checkpoint's run, or of the package"""
    step: int = setting(16, at_least(1))
    """shortest context, and step between contexts, in pieces"""
    longest: int = 256
    """longest context, in pieces"""
    tokens: int = setting(1000, at_least(1))
    """number of pieces to predict: the first ones of the text after the longest context"""
    tokenizer: str | None = None
    """SentencePiece model, for checkpoints without a tokenizer"""

    @property
    def lengths(self) -> range:
        """Context lengths to try, in pieces."""
        return range(self.step, self.longest + 1, self.step)


class EffectiveContext(NamedTuple):
    """Lengths for a group of checkpoints, and the text they were measured on."""

    by_share: dict[float, list[int]]
    """RECL of each checkpoint, by the share of pieces that counts; the longest context is a bound: even the step to it
    gained enough, so the length is at least this"""
    text: str
    tokens: int
    """predicted pieces"""


def recl(settings: ReclSettings) -> EffectiveContext:
    """Measure the relative effective context length of each checkpoint.

    Raises InputError for invalid settings, text or checkpoints, or checkpoints that cannot be compared.
    """
    settings = with_plain_paths(settings)
    if not settings.checkpoints:
        raise InputError("give one or several checkpoints that were trained with `objective` clm")
    check_bounds(settings)
    if len(settings.lengths) < 2:
        raise InputError("longest", settings.longest, f"must be at least twice `step` {settings.step}")
    from data_pipelines import sources
    from xlnet_jax.checkpoints.native import PretrainingRun
    from xlnet_jax.checkpoints.pretrained import vocabulary_tokenizer
    from xlnet_jax.inference.log_probs import by_window

    models = _models(settings.checkpoints, settings.tokenizer)
    needed = settings.longest + settings.tokens
    run = None if settings.text else PretrainingRun.of(settings.checkpoints[0])
    if run and (corpus := run.corpus()):
        name = f"the held-out text of {run.folder}"
        blocks = min(-(-needed // corpus.block_len), corpus.num_blocks("validation"))
        ids_L = corpus.read("validation", np.arange(blocks))[0].reshape(-1)[:needed]
    else:
        found = sources.find(settings.text or sources.embedded()[1:], settings, "validation")
        name = sources.name_of(found) if settings.text else "the held-out novel"
        lines = sources.read_lines(found)
        ids_L = sources.first_pieces(lines, vocabulary_tokenizer(models[0]), needed)
    if len(ids_L) <= settings.longest:
        raise InputError(
            f"text {name}: {len(ids_L):,} pieces are too few for a context of {settings.longest}: "
            "give more text, or lower `longest`"
        )
    targets_P = np.arange(settings.longest, len(ids_L))
    with progress() as show:

        def losses_UP(length: int) -> np.ndarray:
            show(f"context of {length} of {settings.longest}")
            return -np.stack([by_window(model, ids_L, length, targets_P) for model in models])

        by_share = effective_context_lengths(losses_UP, settings.lengths, SHARES, THRESHOLD)
    return EffectiveContext(by_share, name, len(targets_P))


@keep_programs()
def print_recl(settings: ReclSettings) -> None:
    """Measure the lengths, and print a table."""
    found = recl(settings)
    from rich.table import Table

    step = settings.step
    print(
        f"{found.tokens:,} pieces of {found.text}, with {step}, {2 * step}, … {settings.lengths[-1]} before each: the "
        f"context from which {step} more gain less than {THRESHOLD:g}"
    )
    table = Table("RECL, in pieces", *(f"r = {share:g}" for share in found.by_share))
    for name, *lengths in zip(settings.checkpoints, *found.by_share.values(), strict=True):
        table.add_row(name, *(f"{'>= ' if length == settings.lengths[-1] else ''}{length}" for length in lengths))
    Console().print(table)


def _models(checkpoints: Sequence[str], tokenizer: str | None) -> "list[Pretrained]":
    """Load checkpoints. Raises InputError if one is not causal, or its tokenizer differs from the first one's."""
    from xlnet_jax.checkpoints.formats import load_with_tokenizer
    from xlnet_jax.checkpoints.pretrained import on_device, vocabulary_tokenizer
    from xlnet_jax.inference.log_probs import require_causal

    models = [load_with_tokenizer(name, tokenizer) for name in checkpoints]
    for name, model in zip(checkpoints, models, strict=True):
        try:
            require_causal(model)
            if vocabulary_tokenizer(model).pieces != vocabulary_tokenizer(models[0]).pieces:
                raise InputError(
                    f"its tokenizer differs from that of {checkpoints[0]}, so their losses cannot be compared"
                )
        except InputError as mistake:
            raise InputError(f"{name}: {mistake}") from None
    return [on_device(model) for model in models]


def gains(short_UP: np.ndarray, long_UP: np.ndarray, share: float) -> np.ndarray:
    """Return g of each model, float64 [U]. short, long: losses l_i(c, t) and l_i(c', t), nats; share: r."""
    base_P = short_UP.min(axis=0).astype(np.float64)
    hardest = np.argsort(-base_P, kind="stable")[: max(round(share * len(base_P)), 1)]
    relative_U = np.minimum(base_P, long_UP)[:, hardest].mean(axis=1)
    return 1 - np.exp(relative_U - base_P[hardest].mean())


def effective_context_lengths(
    losses_UP: Callable[[int], np.ndarray],
    lengths: Sequence[int],
    shares: Sequence[float],
    threshold: float,
) -> dict[float, list[int]]:
    """Return the RECL of each model, by the share of tokens that counts; the last length if every step gained.

    losses_UP: function from a context length c to the losses l_i(c, t), nats; called at most once per length, and not
    for lengths after no model gains any more. lengths: at least two, ascending. shares: in (0, 1].
    """
    found: dict[float, dict[int, int]] = {share: {} for share in shares}
    short_UP = losses_UP(lengths[0])
    models = range(len(short_UP))
    for short, long in pairwise(lengths):
        long_UP = losses_UP(long)
        for share, decided in found.items():
            gain_U = gains(short_UP, long_UP, share)
            decided |= {i: short for i in models if i not in decided and gain_U[i] < threshold}
        if all(len(decided) == len(models) for decided in found.values()):
            break
        short_UP = long_UP
    return {share: [decided.get(i, lengths[-1]) for i in models] for share, decided in found.items()}
