"""The command `prepare` as it runs on a long text and several cores: many parts, encoded by processes of their own."""

from collections.abc import Sequence

from data_pipelines import readers
from data_pipelines.prepare import __main__, parts, runners

PROCESSES = 2


def main(argv: Sequence[str]) -> int:
    """Prepare a short text as `python -m data_pipelines.prepare` does a long one."""
    readers.CHUNK_BYTES, parts.PART_CHARS = 2_000, 4_000
    runners._cores = lambda: PROCESSES
    return __main__.main(argv)
