"""python -m xlnet_jax.recl: relative effective context length, how far back causal checkpoints gain by reading."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from xlnet_jax.api import command
from xlnet_jax.errors import InputError
from xlnet_jax.settings import cli

if TYPE_CHECKING:
    import numpy as np

    from data_pipelines.tokenizer import Tokenizer
    from xlnet_jax.checkpoints.pretrained import Pretrained
    from xlnet_jax.inference.effective_context import Recl


@dataclass(frozen=True)
class Group:
    """Checkpoints that are compared with each other: one baseline is theirs together (docs/memory.md)."""

    checkpoints: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """causal checkpoints with one tokenizer, of any format, or the folders of their runs"""
    text: tuple[str, ...] = ()
    """text that they are asked about: files, globs, folders, or tfds:NAME; none = the held-out novel that comes with
    the package"""
    step: int = 16
    """by how many pieces the context grows, from so many on"""
    longest: int = 256
    """longest context, in pieces"""
    tokens: int = 1000
    """pieces that are predicted: the first of the text that have the longest context before them"""
    shares: tuple[float, ...] = (1.0, 0.5, 0.1)
    """shares of these pieces that count, the hardest first (the paper's r)"""
    threshold: float = 0.01
    """relative gain in perplexity below which a longer context is worth nothing"""
    batch_tokens: int = 4096
    """tokens that the network reads at once; the lengths do not depend on it"""
    tokenizer: str | None = None
    """a SentencePiece model, where the checkpoints came without one"""
    text_field: str = "text"
    """what holds the text of a document in JSON, Parquet and TFDS"""
    tfds_data_dir: str | None = None
    """where TFDS datasets are prepared; None = TFDS's default"""
    corpus_errors: Literal["strict", "replace"] = "strict"
    """bytes that are not UTF-8: refused, or replaced by U+FFFD"""

    @property
    def lengths(self) -> range:
        """The contexts that are tried."""
        return range(self.step, self.longest + 1, self.step)

    def check(self) -> None:
        """Raises InputError on what cannot work, before anything is read."""
        from xlnet_jax.inference import effective_context

        if not self.checkpoints:
            raise InputError("no checkpoint: name one or several that were trained with --objective clm")
        for name in ("step", "tokens", "batch_tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name.replace('_', '-')} {getattr(self, name)}: 1 at least")
        if len(self.lengths) < 2:
            raise InputError(f"--longest {self.longest}: twice --step {self.step} at least, or nothing is compared")
        effective_context.check(self.lengths, self.shares, self.threshold)


@command.naming_flags
def main(argv: Sequence[str]) -> int:
    """Prints the table; returns the exit code."""
    group = cli.parse(Group, argv, "python -m xlnet_jax.recl", __doc__ or "")
    group.check()
    from rich.console import Console

    from data_pipelines import sources, texts
    from xlnet_jax.inference.effective_context import effective_context_lengths

    names = group.text or sources.embedded()[1:]
    found = sources.find(names, group.text_field, group.tfds_data_dir, "validation")
    models, tokenizer = _models(group)
    lines = sources.read_lines(found, group.corpus_errors)
    ids_L = texts.first_pieces(lines, tokenizer, group.longest + group.tokens)
    if len(ids_L) <= group.longest:
        raise InputError(
            f"text {sources.name_of(found)}: {len(ids_L):,} pieces are too few for a context of {group.longest}: give "
            "more, or lower --longest"
        )
    with Console(stderr=True).status("reading") as status:  # nothing where no terminal is

        def losses_IT(length: int) -> "np.ndarray":
            status.update(f"context of {length} of {group.longest}")
            return _losses_IT(models, ids_L, length, group)

        recl = effective_context_lengths(losses_IT, group.lengths, group.shares, group.threshold)
    _print(group, recl, sources.name_of(found) if group.text else "the held-out novel", len(ids_L) - group.longest)
    return 0


def _models(group: Group) -> "tuple[list[Pretrained], Tokenizer]":
    from xlnet_jax.checkpoints.formats import load_with_tokenizer
    from xlnet_jax.checkpoints.pretrained import on_device, vocabulary_tokenizer
    from xlnet_jax.inference.left_to_right import demand_causal

    models = [load_with_tokenizer(name, group.tokenizer) for name in group.checkpoints]
    for name, model in zip(group.checkpoints, models, strict=True):
        try:
            demand_causal(model)
            pieces = vocabulary_tokenizer(model).pieces
        except InputError as mistake:
            raise InputError(f"{name}: {mistake}") from None
        if pieces != vocabulary_tokenizer(models[0]).pieces:
            raise InputError(
                f"{name} has another tokenizer than {group.checkpoints[0]}: their losses are of other pieces, and do "
                "not compare"
            )
    return [on_device(model) for model in models], vocabulary_tokenizer(models[0])


def _losses_IT(models: "Sequence[Pretrained]", ids_L: "np.ndarray", length: int, group: Group) -> "np.ndarray":
    import numpy as np

    from xlnet_jax.inference.left_to_right import by_window

    targets_T = np.arange(group.longest, len(ids_L))
    losses = functools.partial(by_window, targets_T=targets_T, batch_tokens=group.batch_tokens)
    return -np.stack([losses(model, ids_L, length) for model in models])


def _print(group: Group, recl: "dict[float, list[Recl]]", text: str, tokens: int) -> None:
    from rich.console import Console
    from rich.table import Table

    print(
        f"{tokens:,} pieces of {text}, with {group.step}, {2 * group.step}, … {group.lengths[-1]} before each: the "
        f"context from which {group.step} more gain less than {group.threshold:g}"
    )
    table = Table("RECL, in pieces", *(f"r = {share:g}" for share in recl))
    for i, name in enumerate(group.checkpoints):
        cells = [of_models[i] for of_models in recl.values()]
        table.add_row(name, *(f"{'>= ' if is_bound else ''}{length}" for length, is_bound in cells))
    Console().print(table)


if __name__ == "__main__":
    command.run(main)
