"""python -m xlnet_jax.convert: checkpoints from and to the 2019 code's, Hugging Face's and this project's format."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from xlnet_jax.api import command
from xlnet_jax.errors import InputError
from xlnet_jax.settings import cli


@dataclass(frozen=True)
class Conversion:
    """What to convert into what."""

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
    """folder of the checkpoint, whose format is recognised from its files; of TensorFlow 1 also a prefix, as
    model.ckpt-1000"""
    target: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TARGET")]
    """folder to make"""
    to: Literal["native", "hf", "tf1"] | None = None
    """format to write; None = native"""
    partial: bool = False
    """convert what fits where something is missing, unknown or of another shape; what is missing is drawn afresh"""
    activation: Literal["gelu", "gelu_erf", "relu"] | None = None
    """activation of the feed-forward layers, in place of what the source says"""


@command.naming_flags
def main(argv: Sequence[str]) -> int:
    """Converts as the command line says; returns the exit code."""
    args = cli.parse(Conversion, argv, "python -m xlnet_jax.convert", __doc__ or "")
    from pathlib import Path

    from xlnet_jax.checkpoints.formats import demand_new, load, recognise, save

    demand_new(Path(args.target))  # before minutes of reading
    kind = recognise(Path(args.source))
    if kind == "native" and args.to is None:
        raise InputError(f"{args.source} is this project's own already: say --to hf or --to tf1")
    loaded = load(args.source, partial=args.partial, activation=args.activation)
    to = args.to or "native"
    notes = [*loaded.notes, *save(loaded, args.target, to)]
    m = loaded.model
    print(f"{args.source} ({kind}) -> {args.target} ({to})")
    print(f"  {loaded.head.task if loaded.head else 'language model'}, {m.num_layers} layers of {m.d_model}")
    for note in notes:
        print(f"  note: {note}")
    return 0


if __name__ == "__main__":
    command.run(main)
