"""python -m xlnet_jax.convert: checkpoints from and to the formats of the 2019 code, Hugging Face and this project;
finetuned models to StableHLO."""

from collections.abc import Sequence

from xlnet_jax.api import command
from xlnet_jax.api.conversion import ConvertSettings, convert


@command.naming_flags
def main(argv: Sequence[str]) -> int:
    """Convert a checkpoint; return the exit code."""
    settings = command.parse(ConvertSettings, argv, __doc__)
    made = convert(settings)
    head, model = made.checkpoint.head, made.checkpoint.model
    print(f"{settings.source} ({made.source_format}) -> {settings.target} ({made.target_format})")
    print(f"  {head.task if head else 'language model'}, {model.num_layers} layers of {model.d_model}")
    for note in made.notes:
        print(f"  note: {note}")
    if made.address:
        print(f"  uploaded to {made.address}")
    return 0


if __name__ == "__main__":
    command.run(main)
