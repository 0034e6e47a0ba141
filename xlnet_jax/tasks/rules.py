"""Which settings of a finetuning run contradict each other: checked before any work starts."""

from collections.abc import Iterator

from xlnet_jax.errors import InputError
from xlnet_jax.settings.rules import absolute_positions, positive, run_contradictions
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.defaults import DEFAULTS


def validate_finetuning(config: FinetuneConfig) -> None:
    """Raises InputError with the first contradiction. What a family of tasks asks for besides, it says itself."""
    for broken in _contradictions(config):
        raise InputError(broken)


def _contradictions(config: FinetuneConfig) -> Iterator[str]:
    if not config.init:
        yield "--init is missing: name the checkpoint to start from, as runs/austen-demo"
    if not (config.train or config.eval or config.predict):
        yield "nothing to do: give --train to learn from, or --eval or --predict for a finetuned --init"
    yield from run_contradictions(config)
    data, selection = config.data, config.selection
    for name, value in (
        ("data.seq-len", data.seq_len),
        ("data.max-windows", data.max_windows),
        ("selection.every-steps", selection.every_steps),
        *(("data.buckets", length) for length in data.buckets),
    ):
        yield from positive(name, value)
    if config.model.mem_len < 0:
        yield f"model.mem-len {config.model.mem_len} must be at least 0 (0 = no memory)"
    yield from absolute_positions(config.model, data.seq_len)
    if config.reinitialize and not config.train:
        yield "reinitialize draws all weights afresh: give --train to learn some"
    if config.seed:
        yield f"seed {config.seed}: each of --seeds is the seed of a run; give --seeds {config.seed}"
    if config.head.task != DEFAULTS[config.task]().head.task:
        yield f"head.task {config.head.task} comes with --task {config.task}: leave it out"
    if selection.patience < 0:
        yield f"selection.patience {selection.patience} must not be negative"
    if (selection.patience or selection.metric) and not config.eval:
        yield "selection.metric and selection.patience choose by what --eval says: give it examples"
    if config.epochs is not None and not config.epochs > 0:
        yield f"epochs {config.epochs} must be positive"
    if len(set(config.seeds)) < len(config.seeds) or not config.seeds:
        yield f"seeds {' '.join(map(str, config.seeds))}: give one or more, each once"
    for seed in config.seeds:
        if not 0 <= seed < 2**31:
            yield f"seeds {seed} must be in [0, 2^31)"
