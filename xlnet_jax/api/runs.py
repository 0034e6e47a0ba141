"""Training runs as the commands start them; settings of presets."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xlnet_jax.settings import cli
from xlnet_jax.settings.config import Config
from xlnet_jax.settings.config_file import CommandLine

if TYPE_CHECKING:
    from xlnet_jax.tasks.config import FinetuneConfig


def run_pretraining(config: Config) -> int:
    """Pretrain as the command does; return the exit code."""
    from xlnet_jax.training.pretrain import pretrain

    return pretrain(config, is_command=True)


def parse_finetuning(argv: Sequence[str], prog: str, description: str) -> "FinetuneConfig":
    """Return the settings of finetuning from a command line, starting from those of its --task. Raises InputError on
    words that cannot be read, and on settings that contradict each other; prints and exits on --help."""
    from xlnet_jax.tasks.config import FinetuneConfig
    from xlnet_jax.tasks.defaults import DEFAULTS
    from xlnet_jax.tasks.rules import validate_finetuning

    line = CommandLine.of(argv)
    default, origin = (
        cli.named_default(each, "--task", DEFAULTS, "classification") for each in (line, line.of_file_alone)
    )
    config = cli.parse(FinetuneConfig, line, prog, description, default, origin)
    cli.refuse_fixed(line)
    validate_finetuning(config)
    return config


def run_finetuning(config: "FinetuneConfig") -> int:
    """Finetune, evaluate and predict as the command does; return the exit code."""
    from xlnet_jax.tasks.run import run

    return run(config, is_command=True)[1]


def preset(name: str = "demo", **settings: Any) -> Config:
    """Return the settings of a preset with some of them replaced, for `pretrain` or a training loop of one's own.

    settings: fields of Config by name, sections as dictionaries: corpus="my.txt", steps=200, data={"batch_size": 8}.
    As with the flags of `train`, the parts of a window follow data.seq_len where they are not given, and `objective`
    says where other settings start from. Raises InputError on a preset or a setting that does not exist, on a value out
    of its bounds, and on a setting that changes nothing.
    """
    from xlnet_jax.objectives.command_line import preset

    return preset(name, settings)
