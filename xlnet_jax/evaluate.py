"""python -m xlnet_jax.evaluate: the held-out loss and perplexity of a checkpoint on any text."""

from collections.abc import Sequence
from dataclasses import replace

from xlnet_jax.api import command
from xlnet_jax.api.evaluation import EvaluateSettings, measured_loss
from xlnet_jax.api.evaluation_report import report
from xlnet_jax.api.scores import print_scores
from xlnet_jax.settings.config import DataConfig


@command.naming_flags
def main(argv: Sequence[str]) -> int:
    """Print the loss, or the scores of sentences; return the exit code."""
    settings = command.parse(EvaluateSettings, argv, __doc__)
    settings.check()
    if scoring := settings.scoring():
        print_scores(scoring)
        return 0

    def windows_of(data: DataConfig) -> DataConfig:
        return command.parse(EvaluateSettings, argv, __doc__, replace(settings, data=data)).data

    with command.progress() as show:
        found = measured_loss(settings, windows_of, lambda number, batches: show(f"batch {number:,} of {batches:,}"))
    with command.printing():
        print(report(found))
    return 0


if __name__ == "__main__":
    command.run(main, "give a smaller --data.batch-size, or --max-len")
