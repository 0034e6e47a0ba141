"""python -m xlnet_jax.recl: relative effective context length: how far back causal checkpoints gain by reading."""

from collections.abc import Sequence

from xlnet_jax.api import command
from xlnet_jax.api.effective_context import ReclSettings, recl


@command.naming_flags
def main(argv: Sequence[str]) -> int:
    """Print the table; return the exit code."""
    settings = command.parse(ReclSettings, argv, __doc__)
    with command.progress() as show:
        found = recl(settings, lambda length: show(f"context of {length} of {settings.longest}"))
    from rich.table import Table

    from xlnet_jax.printing import Console

    step = settings.step
    print(
        f"{found.tokens:,} pieces of {found.text}, with {step}, {2 * step}, … {settings.lengths[-1]} before each: the "
        f"context from which {step} more gain less than {settings.threshold:g}"
    )
    table = Table("RECL, in pieces", *(f"r = {share:g}" for share in found.by_share))
    for name, *lengths in zip(settings.checkpoints, *found.by_share.values(), strict=True):
        table.add_row(name, *(f"{'>= ' if is_bound else ''}{length}" for length, is_bound in lengths))
    Console().print(table)
    return 0


if __name__ == "__main__":
    command.run(main, "give a smaller --batch-tokens")
