"""python -m xlnet_jax.factorize: words predicted together against words predicted each by itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from xlnet_jax.api import command
from xlnet_jax.settings import cli


@dataclass(frozen=True)
class Example:
    """The paper's example (section 2.6), or your own."""

    checkpoint: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """a checkpoint with a tokenizer, of any format"""
    text: str = "New York is a city"
    """what is given, but for the targets"""
    targets: str = "New York"
    """words of the text to predict"""


@command.naming_flags
def main(argv: Sequence[str]) -> int:
    """Prints the table; returns the exit code."""
    example = cli.parse(Example, argv, "python -m xlnet_jax.factorize", __doc__ or "")
    from rich.console import Console
    from rich.table import Table

    from xlnet_jax.checkpoints.formats import load
    from xlnet_jax.inference.factorization import factorize

    found = factorize(load(example.checkpoint), example.text, example.targets)
    table = Table("", "independent (BERT)", "dependent (XLNet)", title=f"log p of {example.targets} in: {example.text}")
    for piece, alone, given in zip(found.pieces, found.independent_P, found.dependent_P, strict=True):
        table.add_row(piece, f"{alone:.3f}", f"{given:.3f}")
    table.add_section()
    table.add_row("together", f"{found.independent_P.sum():.3f}", f"{found.dependent_P.sum():.3f}")
    Console().print(table)
    return 0


if __name__ == "__main__":
    command.run(main)
