"""Settings of a finetuning run from a command line, and the relations between them, checked before any work starts."""

from collections.abc import Iterator, Sequence

from xlnet_jax.errors import InputError
from xlnet_jax.settings import cli
from xlnet_jax.settings.config_file import CommandLine
from xlnet_jax.settings.rules import absolute_positions, run_contradictions
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.defaults import DEFAULTS

EXAMPLE = "  python -m xlnet_jax.finetune --task classification --init runs/mine --train mine.csv --eval dev.csv"


def parse_finetuning(argv: Sequence[str], prog: str, description: str) -> FinetuneConfig:
    """Return the settings of finetuning from a command line, starting from those of its --task. Raises InputError on
    words that cannot be read, and on settings that contradict each other; prints and exits on --help."""
    line = CommandLine.of(argv)
    default, origin = (
        cli.named_default(each, "--task", DEFAULTS, "classification") for each in (line, line.of_file_alone)
    )
    config = cli.parse(FinetuneConfig, line, prog, f"{description}\n\n{EXAMPLE}", default, origin)
    validate_finetuning(config)
    return config


def validate_finetuning(config: FinetuneConfig) -> None:
    """Raise InputError with the first contradiction. Each family of tasks checks its own settings besides."""
    for broken in _contradictions(config):
        raise InputError(broken)


def _contradictions(config: FinetuneConfig) -> Iterator[str]:
    if not config.init:
        yield "`init` is missing: name the checkpoint to start from, as runs/mine or tiny, which comes with the package"
    if not (config.train or config.eval or config.predict):
        yield "nothing to do: give `train` to learn from, or `eval` or `predict` for a finetuned `init`"
    yield from run_contradictions(config)
    if config.mesh.context > 1:
        yield f"mesh.context {config.mesh.context}: only the windows of pretraining are divided; leave it at 1"
    yield from absolute_positions(config.model, config.data.seq_len)
    if config.epochs is not None and "steps" in config.given:
        yield f"`epochs` {config.epochs:g} and `steps` {config.steps} both say how long to train: leave one of them out"
    if config.reinitialize and not config.train:
        yield "`reinitialize` draws all weights afresh: give `train` to learn some"
    if config.seed and config.seed not in config.seeds:  # a run writes its own seed into config.json
        yield f"`seed` {config.seed}: set it by `seeds`, which gives each run its seed; give `seeds` {config.seed}"
    if config.head.task != DEFAULTS[config.task]().head.task:
        yield f"head.task {config.head.task} comes with `task` {config.task}: leave it out"
    if (config.selection.patience or config.selection.metric) and not config.eval:
        yield "selection.metric and selection.patience choose by the scores of `eval`: give it examples"
    if len(set(config.seeds)) < len(config.seeds) or not config.seeds:
        yield f"`seeds` {' '.join(map(str, config.seeds))}: give one or more, each once"
