"""python -m xlnet_jax.finetune: from a pretrained checkpoint to a task: classification, question answering, tagging,
multiple choice, ranking."""

from collections.abc import Sequence
from importlib import import_module

from xlnet_jax.api import command, runs
from xlnet_jax.settings import cli
from xlnet_jax.settings.config_file import CommandLine
from xlnet_jax.tasks.config import FinetuneConfig, folder_of
from xlnet_jax.tasks.defaults import DEFAULTS
from xlnet_jax.tasks.rules import validate_finetuning
from xlnet_jax.training.run import runtime


@command.naming_flags
def main(argv: Sequence[str]) -> int:
    """Finetune, evaluate and predict; return the exit code."""
    line = CommandLine.of(argv)
    default, origin = (
        cli.named_default(each, "--task", DEFAULTS, "classification") for each in (line, line.of_file_alone)
    )
    config = command.parse(FinetuneConfig, line, __doc__, default, origin)
    cli.refuse_fixed(line)
    validate_finetuning(config)
    command_again = ("xlnet_jax.finetune", *argv)
    return runs.start(config, lambda: import_module("xlnet_jax.tasks.run").finetune, folder_of, command_again)


if __name__ == "__main__":
    runtime.start_with_huge_pages()
    command.run(main, "give a smaller --data.batch-size, or --model.remat full")
