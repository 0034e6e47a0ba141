"""python -m xlnet_jax.factorize: words predicted together against words predicted each by itself."""

from collections.abc import Sequence

from xlnet_jax.api import command
from xlnet_jax.api.factorizations import FactorizeSettings, factorize_text


@command.naming_flags
def main(argv: Sequence[str]) -> int:
    """Print the table; return the exit code."""
    settings = command.parse(FactorizeSettings, argv, __doc__)
    found = factorize_text(settings)
    from rich.table import Table

    from xlnet_jax.printing import Console

    title = f"log p of {settings.targets} in: {settings.text}"
    table = Table("", "independent (BERT)", "dependent (XLNet)", title=title)
    for piece, alone, given in zip(found.pieces, found.independent_P, found.dependent_P, strict=True):
        table.add_row(piece, f"{alone:.3f}", f"{given:.3f}")
    table.add_section()
    table.add_row("together", f"{found.independent_P.sum():.3f}", f"{found.dependent_P.sum():.3f}")
    Console().print(table)
    return 0


if __name__ == "__main__":
    command.run(main)
