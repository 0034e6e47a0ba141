"""python -m xlnet_jax.embed: vectors of sentences or documents, as .npy or Parquet."""

from collections.abc import Sequence

from xlnet_jax.api import command
from xlnet_jax.api.embedding import EmbedSettings, embed_files


@command.naming_flags
def main(argv: Sequence[str]) -> int:
    """Write the vectors; return the exit code."""
    settings = command.parse(EmbedSettings, argv, __doc__)
    with command.progress() as show:
        count, width = embed_files(settings, lambda done: show(f"{done:,} texts"))
    print(f"{settings.out}: {count:,} x {width:,}, {settings.pooling} of layer {settings.layer}")
    return 0


if __name__ == "__main__":
    command.run(main, "give a smaller --batch-tokens")
