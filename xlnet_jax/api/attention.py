"""Pictures of the attention weights of a text, with any checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from xlnet_jax.api.command import CheckpointArgument
from xlnet_jax.errors import InputError

if TYPE_CHECKING:
    from xlnet_jax.checkpoints.pretrained import Pretrained


@dataclass(frozen=True)
class AttentionSettings:
    """Attention weights of a text by layer and head, as a page for a browser (.html) or a picture (.png)."""

    checkpoint: CheckpointArgument
    """checkpoint with a tokenizer, in any format, tiny, or a name on the Hugging Face Hub"""
    text: str
    """text to look at, of at most 128 pieces"""
    targets: tuple[str, ...] = ()
    """words of the text to predict, in the order of prediction, such as "New York", or York New: adds the query stream,
    in which they do not see themselves; none = every piece sees every other"""
    out: str = "attention.html"
    """file to write: .html, where layers, heads and rows are chosen, or .png; an older one is replaced"""
    layer: int | None = None
    """layer to show large, or first, from 0; None = the last"""
    head: int | None = None
    """head to show large, or first, from 0; None = the mean of all"""
    tokenizer: str | None = None
    """SentencePiece model, for a checkpoint without one"""


def draw_attention(
    model: "Pretrained | str",
    text: str,
    targets: str | Sequence[str] = (),
    out: str | Path = "attention.html",
    *,
    layer: int | None = None,
    head: int | None = None,
    tokenizer: str | None = None,
) -> Path:
    """Write a page (.html) or a picture (.png) of the attention weights of a text, by layer and head; return its path.

    model: a loaded checkpoint, or its folder or name. The other arguments are fields of AttentionSettings. Weights are
    those of `attention_weights`; the page has them to 1 / 65535. Raises InputError for a text of more than 128 pieces,
    words that are not whole pieces of it, a layer or head that the network lacks, and a file that cannot be written.
    """
    path = Path(out)
    kind = path.suffix.lower()
    if kind not in (".html", ".png"):
        raise InputError(f"`out` {out} must end in .html, a page for a browser, or .png, a picture")
    from xlnet_jax.storage.files import demand_new_file, write_durably

    demand_new_file(path, overwrite=True)
    from xlnet_jax.checkpoints.formats import load_with_tokenizer
    from xlnet_jax.inference.attention_view import view_attention
    from xlnet_jax.plots.attention import attention_page, draw_attention_png

    name = model if isinstance(model, str) else "a loaded checkpoint"
    pretrained = load_with_tokenizer(model, tokenizer) if isinstance(model, str) else model
    network = pretrained.model
    for what, number, count in (("layer", layer, network.num_layers), ("head", head, network.num_heads)):
        if number is not None and not 0 <= number < count:
            raise InputError(f"`{what}` {number}: the network has {count}, counted from 0 to {count - 1}")
    layer = network.num_layers - 1 if layer is None else layer
    found = view_attention(pretrained, text, (targets,) if isinstance(targets, str) else tuple(targets))
    if kind == ".png":
        draw_attention_png(found, text, name, layer, head, path)
    else:
        write_durably(path, attention_page(found, text, name, layer, head).encode())
    return path
