"""python -m data_pipelines.prepare: text into a corpus of token blocks, once for all training runs; --check compares
one with its checksums."""

import time
from collections.abc import Sequence

from etils import epath

from xlnet_jax.api import command
from xlnet_jax.api.preparation import CheckSettings, PrepareSettings, check_corpus, prepare_corpus, report

CHECK = "python -m data_pipelines.prepare: compare every shard of a corpus with the checksums of its manifest."


@command.naming_flags
def main(argv: Sequence[str]) -> int:
    """Prepare a corpus and describe it, or check one; return the exit code."""
    if any(word.partition("=")[0] == "--check" for word in argv):
        print(check_corpus(command.parse(CheckSettings, argv, CHECK)))
        return 0
    settings = command.parse(PrepareSettings, argv, __doc__)
    begin = time.monotonic()
    was_there = epath.Path(settings.out).expanduser().exists()
    with command.progress() as show:
        corpus = prepare_corpus(settings, lambda done: show(f"{done:,} files written"))
    print("\n".join(report(corpus, None if was_there else time.monotonic() - begin)))
    return 0


if __name__ == "__main__":
    command.run(main)
