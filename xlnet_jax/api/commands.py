"""Functions that print for commands; each moves into the room of the work that it prints, together with that work."""

import time
from collections.abc import Sequence

from etils import epath

from xlnet_jax.api.preparation import CheckSettings, PrepareSettings, check_corpus, prepare_corpus, report
from xlnet_jax.printing import progress
from xlnet_jax.settings import cli

CHECK = "python -m data_pipelines.prepare: compare every shard of a corpus with the checksums of its manifest."


def parse_preparation(argv: Sequence[str], prog: str, description: str) -> PrepareSettings | CheckSettings:
    """Return the settings of `prepare`, or of `prepare --check`. Raises InputError; prints and exits on --help."""
    if any(word.partition("=")[0] == "--check" for word in argv):
        return cli.parse(CheckSettings, argv, prog, CHECK)
    return cli.parse(PrepareSettings, argv, prog, description)


def prepare(settings: PrepareSettings | CheckSettings) -> None:
    """Prepare a corpus and describe it, or check one."""
    if isinstance(settings, CheckSettings):
        print(check_corpus(settings))
        return
    begin = time.monotonic()
    was_there = epath.Path(settings.out).expanduser().exists()
    with progress() as show:
        corpus = prepare_corpus(settings, lambda done: show(f"{done:,} files written"))
    print("\n".join(report(corpus, None if was_there else time.monotonic() - begin)))
