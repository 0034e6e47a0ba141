"""python -m xlnet_jax.train: from a text file to a pretrained XLNet."""

from collections.abc import Sequence

from xlnet_jax import cli, runtime


def main(argv: Sequence[str]) -> int:
    """Pretrains as the command line says; returns the exit code."""
    config = cli.parse_config(argv, "python -m xlnet_jax.train", __doc__ or "")
    # Imported here, so that --help and mistakes answer at once.
    from xlnet_jax.training.pretrain import pretrain

    if config.tpu:
        runtime.demand_tpu()
    return pretrain(config)


if __name__ == "__main__":
    runtime.start_with_huge_pages()
    cli.run(main)
