"""python -m data_pipelines.inspect: one window of a corpus, as text and as a picture of which rows see which keys."""

import sys
from collections.abc import Sequence
from dataclasses import replace

from xlnet_jax.api import command
from xlnet_jax.api.inspection import InspectSettings, inspect_window
from xlnet_jax.settings.config import DataConfig

COLUMNS = 120


@command.naming_flags
def main(argv: Sequence[str]) -> int:
    """Print the window, write the picture; return the exit code."""
    settings = command.parse(InspectSettings, argv, __doc__)

    def windows_of(data: DataConfig) -> DataConfig:
        return command.parse(InspectSettings, argv, __doc__, replace(settings, data=data)).data

    found = inspect_window(settings, windows_of)
    from data_pipelines.inspect.window_text import describe
    from xlnet_jax.printing import Console, printing_colours

    corpus, config, origin = found.corpus, found.config, command.flags_for(found.origin)
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else COLUMNS)
    blocks = f"{corpus.num_blocks(settings.split):,} blocks of {corpus.block_len:,} tokens"
    with console.capture() as printed:
        console.print(f"corpus      {corpus.folder}: {settings.split}, {blocks}; {found.pieces:,} pieces")
        console.print(f"settings    {origin}; seed {config.seed}, {config.data.batch_size:,} rows a batch")
        console.print(f"picture     {found.picture}")
        for part in describe(found.view):
            console.print(part)
    with command.printing(), printing_colours():
        print("\n".join(line.rstrip() for line in printed.get().splitlines()))
    return 0


if __name__ == "__main__":
    command.run(main)
