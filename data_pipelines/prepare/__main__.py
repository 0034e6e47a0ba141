"""python -m data_pipelines.prepare: text into a corpus of token blocks, once for all training runs."""

import time
from collections.abc import Sequence

from etils import epath

from xlnet_jax.api import command
from xlnet_jax.api.preparation import PrepareSettings, prepare_corpus, report


@command.naming_flags
def main(argv: Sequence[str]) -> int:
    """Prepare a corpus and describe it; return the exit code."""
    settings = command.parse(PrepareSettings, argv, __doc__)
    begin = time.monotonic()
    was_there = epath.Path(settings.out).expanduser().exists()
    with command.progress() as show:
        corpus = prepare_corpus(settings, lambda done: show(f"{done:,} files written"))
    print("\n".join(report(corpus, None if was_there else time.monotonic() - begin)))
    return 0


if __name__ == "__main__":
    command.run(main)
