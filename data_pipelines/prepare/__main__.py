"""python -m data_pipelines.prepare: text into a corpus of token blocks, once for all training runs; --check compares
one with its checksums."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from etils import epath

from data_pipelines.corpus import Corpus
from xlnet_jax.api import command
from xlnet_jax.api.preparation import PrepareSettings, prepare_corpus, report

CHECK = "python -m data_pipelines.prepare: compare every shard of a corpus with the checksums of its manifest."


@dataclass(frozen=True)
class CheckSettings:
    """Corpus to check."""

    check: str
    """folder that this command wrote, on disk or in the cloud (gs://)"""


@command.naming_flags
def main(argv: Sequence[str]) -> int:
    """Prepare a corpus and describe it, or check one; return the exit code."""
    if any(word.partition("=")[0] == "--check" for word in argv):
        corpus = Corpus(command.parse(CheckSettings, argv, CHECK).check)
        corpus.check()
        shards = [shard for split in corpus.manifest.splits.values() for shard in split.shards]
        size = sum(shard.num_bytes for shard in shards)
        print(f"corpus      {corpus.folder}, {len(shards):,} shards, {size:,} bytes, as they were written")
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
