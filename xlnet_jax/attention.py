"""python -m xlnet_jax.attention: where each piece of a text looks, by layer and head, as a page or a picture."""

from collections.abc import Sequence

from xlnet_jax.api import command
from xlnet_jax.api.attention import AttentionSettings, draw_attention


@command.naming_flags
def main(argv: Sequence[str]) -> int:
    """Write the file and print its name; return the exit code."""
    settings = command.parse(AttentionSettings, argv, __doc__)
    path = draw_attention(
        settings.checkpoint, settings.text, settings.targets, settings.out, layer=settings.layer, head=settings.head,
        tokenizer=settings.tokenizer,
    )  # fmt: skip
    about = "page, which any browser opens" if path.suffix.lower() == ".html" else "picture"
    print(f"{path}  {about}, {path.stat().st_size / 1000:,.0f} kB")
    return 0


if __name__ == "__main__":
    command.run(main)
