"""python -m xlnet_jax.score: the log-likelihood of sentences, under one or several orders of their pieces."""

from collections.abc import Sequence

from xlnet_jax.api import command
from xlnet_jax.api.scores import ScoreSettings, print_scores


@command.naming_flags
def main(argv: Sequence[str]) -> int:
    """Write or print the scores; return the exit code."""
    print_scores(command.parse(ScoreSettings, argv, __doc__))
    return 0


if __name__ == "__main__":
    command.run(main, "give a smaller --max-len")
