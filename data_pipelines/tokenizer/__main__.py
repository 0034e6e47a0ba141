"""python -m data_pipelines.tokenizer: train a tokenizer, describe one, or encode text with it."""

from collections.abc import Sequence

from xlnet_jax.api import command
from xlnet_jax.api.tokenizers import Encode, Show, Train, describe_tokenizer, encode, train_tokenizer


@command.naming_flags
def main(argv: Sequence[str]) -> int:
    """Do what the first word of the command line names; return the exit code."""
    settings = command.parse(Train | Show | Encode, argv, __doc__)  # type: ignore[arg-type]
    with command.printing():
        if isinstance(settings, Encode):
            for line in encode(settings):
                print(line)
            return 0
        fields = train_tokenizer(settings) if isinstance(settings, Train) else describe_tokenizer(settings)
        width = max(map(len, fields)) + 2
        for name, value in fields.items():
            print(f"{name:{width}}{value}")
    return 0


if __name__ == "__main__":
    command.run(main)
