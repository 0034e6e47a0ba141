"""Attention weights of every layer and head on texts, for the content stream and, with targets, the query stream
(paper, section 2.3); and pictures of them."""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from data_pipelines.tokenizer import CLS, SEP
from xlnet_jax.dims import CLS_SEGMENT
from xlnet_jax.errors import InputError
from xlnet_jax.inference.words import find_words
from xlnet_jax.plots.attention import AttentionWeights, attention_page, draw_attention_png
from xlnet_jax.settings.common import CheckpointSettings
from xlnet_jax.settings.config import ModelConfig
from xlnet_jax.settings.fields import list_of_texts
from xlnet_jax.storage.outputs import new_file

if TYPE_CHECKING:
    from xlnet_jax.checkpoints.pretrained import Pretrained

MOST_PIECES = 128  # the page then has 17 MB for XLNet-Large, 24 x 16 heads


@dataclass(frozen=True)
class AttentionSettings(CheckpointSettings):
    """Attention weights of a text by layer and head, as a web page (.html) or a picture (.png)."""

    text: str
    """text to read, at most 128 pieces"""
    targets: tuple[str, ...] = ()
    """words of the text to predict, in the order of prediction, such as "New York", or York New; adds the query stream,
    where a piece does not see itself; none = only the content stream, where all pieces see each other"""
    out: str = "attention.html"
    """file to write or replace: .html, an interactive page, or .png"""
    layer: int | None = None
    """layer to show, counted from 0; None = the last"""
    head: int | None = None
    """head to show, counted from 0; None = the mean of all"""


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

    model: a loaded checkpoint, or its folder or name. The other arguments are fields of AttentionSettings. The pieces
    of one target are predicted from left to right. The weights are those of `attention_weights`, rounded to 1 / 65535
    in the page. Raises InputError for a text of more than 128 pieces, words that are not whole pieces of it, a layer or
    head that does not exist, and a file that cannot be written.
    """
    path = Path(out)
    if path.suffix.lower() not in (".html", ".png"):
        raise InputError("out", out, "must end in .html, for a web page, or .png, for a picture")
    from xlnet_jax.checkpoints.formats import load_with_tokenizer

    with new_file(path, overwrite=True) as file:
        name = model if isinstance(model, str) else "a loaded checkpoint"
        pretrained = load_with_tokenizer(model, tokenizer) if isinstance(model, str) else model
        network = pretrained.model
        for what, number, count in (("layer", layer, network.num_layers), ("head", head, network.num_heads)):
            if number is not None and not 0 <= number < count:
                raise InputError(what, number, f"does not exist: the network has {count}, from 0 to {count - 1}")
        layer = network.num_layers - 1 if layer is None else layer
        own_tokenizer = pretrained.require_tokenizer()
        ids_L = own_tokenizer.encode_lines([text])[0]
        if len(ids_L) > MOST_PIECES:
            why = f"has {len(ids_L):,} pieces, but a picture shows at most {MOST_PIECES}: shorten it"
            raise InputError("text", "", why)
        words = list_of_texts(targets, "targets")
        positions = [int(i) for word in words for i in find_words(own_tokenizer, ids_L, word)]
        found = attention_weights(pretrained, [text], [positions] if positions else None)
        if file.suffix.lower() == ".png":
            draw_attention_png(found, text, name, layer, head, file)
        else:
            file.write_text(attention_page(found, text, name, layer, head), encoding="utf-8")
    return path


def print_attention(settings: AttentionSettings) -> None:
    """Write the file, and print its name."""
    path = draw_attention(
        settings.checkpoint, settings.text, settings.targets, settings.out, layer=settings.layer, head=settings.head,
        tokenizer=settings.tokenizer,
    )  # fmt: skip
    about = "page for any browser" if path.suffix.lower() == ".html" else "picture"
    print(f"{path}  {about}, {path.stat().st_size / 1000:,.0f} kB")


def attention_weights(
    pretrained: "Pretrained", texts: str | Iterable[str], targets: Sequence[Sequence[int]] | None = None
) -> AttentionWeights:
    """Return the attention weights of all layers and heads on texts, read as one batch by plain attention, each
    followed by <sep> <cls>, as in finetuning.

    targets: for each text the positions of the pieces to predict, in the order of prediction. A target sees the pieces
    that are not targets and the targets before it; its query row does not see itself. None = only the content stream,
    where all pieces see each other (in a causal model, only earlier ones).

    Raises InputError if the checkpoint has no tokenizer, or a text has no pieces or exceeds the learned positions of
    the network; with targets, also if a position is not in the text or occurs twice, or the checkpoint has no query
    stream.
    """
    from xlnet_jax.checkpoints.pretrained import scoring_tokenizer
    from xlnet_jax.inference.log_probs import Query, padded, stack_queries
    from xlnet_jax.objectives.registry import objective_named

    tokenizer = pretrained.require_tokenizer() if targets is None else scoring_tokenizer(pretrained)
    if targets is not None and objective_named(pretrained.objective).filling.stream == "content":
        why = f": the checkpoint ({pretrained.objective}) has no query stream: leave `targets` out"
        raise InputError("targets", "", why)
    rows = [np.array([*ids, SEP, CLS], np.int32) for ids in tokenizer.encode_lines(list_of_texts(texts))]
    lengths = [len(row) for row in rows]
    if 2 in lengths or not rows:
        raise InputError("texts", "", "must be a list of at least one text, and each must have pieces")
    ordered = [[int(i) for i in own] for own in ([[]] * len(rows) if targets is None else targets)]
    if len(ordered) != len(rows):
        why = f"has {len(ordered)} lists of positions for {len(rows)} texts: give one for each"
        raise InputError("targets", "", why)
    for number, (own, length) in enumerate(zip(ordered, lengths, strict=True)):
        if len(set(own)) < len(own) or not set(own) <= set(range(length - 2)):
            raise InputError("targets", "", f"of text {number}: give positions from 0 to {length - 3}, each once")
    queries = [Query(row, np.array(own, int), np.arange(len(own))) for row, own in zip(rows, ordered, strict=True)]
    ids_BL, rank_BL, positions_BP, _ = stack_queries(queries, len(rows), max(lengths), max(1, *map(len, ordered)))
    model, params = replace(pretrained.model, dtype="float32", same_length=False), pretrained.params["backbone"]
    weights_ZBNTK = _program(model, targets is not None)(params, ids_BL, rank_BL, positions_BP)
    real_BL = padded([np.ones_like(row) for row in rows], len(rows), max(lengths), 0)
    is_target_BP = padded([np.ones(len(own)) for own in ordered], len(rows), weights_ZBNTK.shape[3] - max(lengths), 0)
    is_row_BT = np.concatenate([real_BL, is_target_BP], axis=1)
    content_ZBNLK, query_ZBNPK = np.split(
        np.where(is_row_BT[None, :, None, :, None], weights_ZBNTK, np.float32(0)), [max(lengths)], axis=3
    )
    pieces = [[tokenizer.pieces[i] for i in row] for row in rows]
    return AttentionWeights(pieces, ordered, content_ZBNLK, None if targets is None else query_ZBNPK)


@functools.cache
def _program(config: ModelConfig, with_targets: bool) -> Callable[..., Any]:
    """Return the compiled function from parameters and `stack_queries` to attention weights [layers, B, N, T, L]:
    content rows, then, with targets, query rows."""
    import jax
    import jax.numpy as jnp

    from xlnet_jax.inference.log_probs import PADDING, query_inputs
    from xlnet_jax.models.heads import build_encoder
    from xlnet_jax.models.inputs import text_inputs
    from xlnet_jax.models.layers import ATTENTION_WEIGHTS

    @jax.jit
    def weights_ZBNTK(backbone: Any, ids_BL: jax.Array, rank_BL: jax.Array, positions_BP: jax.Array) -> jax.Array:
        segments_BL = jnp.where(ids_BL == CLS, CLS_SEGMENT, 0)
        if with_targets:
            inputs: tuple[Any, ...] = query_inputs(config, ids_BL, segments_BL, rank_BL, positions_BP, None)
        else:
            inputs = (text_inputs(ids_BL, rank_BL != PADDING, segments_BL),)
        encoder = cast(Any, build_encoder(config))
        _, sown = encoder.apply({"params": backbone}, *inputs, mutable=[ATTENTION_WEIGHTS])
        (found_ZBNTK,) = jax.tree.leaves(sown[ATTENTION_WEIGHTS])
        return found_ZBNTK[..., -ids_BL.shape[1] :]  # without the memory slot for rows that see nothing

    return weights_ZBNTK
