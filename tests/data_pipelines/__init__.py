"""What tests of the pipeline share."""

from functools import partial

from data_pipelines import sources
from data_pipelines.prepare import commands
from data_pipelines.prepare.runners import run_here

ALONE = partial(run_here, processes=1)
"""A runner that works in the process of the test, which is quicker for small texts"""


def corpus_of(names, tokenizer, out, *, validation=(), block_len=64, fraction=0.2, weights=(), runner=ALONE):
    """Prepare a corpus of the texts with these names."""
    train, held_out = (sources.find([str(name) for name in given]) for given in (names, validation))
    return commands.prepare(
        train, held_out or None, tokenizer, out, block_len=block_len, validation_fraction=fraction, weights=weights,
        runner=runner,
    )  # fmt: skip
