"""The arithmetic of a training step, counted by hand from the network: the multiply-adds of its matrix products.

What the compiler counts will not do: it takes the body of the loop over layers once.
"""

from dataclasses import replace
from typing import NamedTuple

from xlnet_jax.settings.config import Config


class MultiplyAdds(NamedTuple):
    """Of one kind of matrix products in one step, over the global batch."""

    forward: int
    backward: int  # twice the forward's; once where one of the factors has no gradient


def multiply_adds(config: Config) -> dict[str, MultiplyAdds]:
    """By part of the network, over all layers; without the parts that it does not have. Of rtd those of both networks
    together: the generator alone scores pieces, and the discriminator every token.

    The query stream of plm has a row for each target slot; relative position keys are projected once (sine and cosine
    half apart), from signals that do not learn; memory is given, and gets no gradient; a relative segment score is one
    number for each row. Pieces are scored at target slots alone, and those of BERT transformed before.
    """
    own = _of_network(config)
    if config.objective != "rtd":
        return own
    width = config.model.d_model
    detector = config.data.batch_size * config.data.seq_len * (width**2 + width)
    of_generator = _of_network(replace(config, model=config.rtd.generator_of(config.model)))
    own = {part: count for part, count in own.items() if part not in _OF_PIECES}
    both = {part: _sum(own.get(part), of_generator.get(part)) for part in {**own, **of_generator}}
    return both | {"detector": MultiplyAdds(detector, 2 * detector)}


def _sum(*counts: MultiplyAdds | None) -> MultiplyAdds:
    there = [count for count in counts if count]
    return MultiplyAdds(sum(count.forward for count in there), sum(count.backward for count in there))


_OF_PIECES = ("transform", "vocabulary")


def _of_network(config: Config) -> dict[str, MultiplyAdds]:
    model, data = config.model, config.data
    batch, width, heads = data.batch_size, model.d_model, model.num_heads * model.d_head
    rows = data.seq_len + (data.num_slots if config.objective == "plm" else 0)
    keys = model.mem_len + data.seq_len
    narrow = model.embedding_width or width
    distances = keys + data.seq_len if model.positions == "relative" else 0
    has_segment_scores = model.positions != "learned" and model.num_segments > 0
    scores, targets = batch * rows * heads, batch * data.num_slots

    def all_layers(forward: int, gradients: int = 2) -> MultiplyAdds:
        return MultiplyAdds(model.num_layers * forward, model.num_layers * gradients * forward)

    def once(forward: int) -> MultiplyAdds:
        return MultiplyAdds(forward, 2 * forward)

    counted = {
        "projections q, k, v, o": all_layers(2 * batch * (rows + data.seq_len) * width * heads),
        "keys and values of memory": all_layers(2 * batch * model.mem_len * width * heads, gradients=1),
        "position keys": all_layers(distances * width * heads, gradients=1),
        "content scores": all_layers(scores * keys),
        "position scores": all_layers(scores * distances),
        "segment scores": all_layers(scores * has_segment_scores),
        "values": all_layers(scores * keys),
        "feed-forward": all_layers(2 * batch * rows * width * model.d_ff),
        "embedding projection": once(batch * data.seq_len * narrow * width * (model.embedding_width is not None)),
        "transform": once(targets * width * narrow * (model.positions == "learned")),
        "vocabulary": once(targets * narrow * model.vocab_size),
        "pairs": once(batch * (width**2 + 2 * width) * (data.pair_loss != "none")),
    }
    return {part: count for part, count in counted.items() if count.forward}


def step_operations(config: Config) -> int:
    """Operations of one update, two a multiply-add: what the model demands, and what utilisation (MFU) is a share of.
    What remat computes again is not in it."""
    return 2 * sum(part.forward + part.backward for part in multiply_adds(config).values())


def recomputed_operations(config: Config) -> int:
    """Operations that remat adds to an update: with `step_operations`, what the hardware does (HFU)."""
    parts = _RECOMPUTED[config.model.remat]
    return 2 * sum(count.forward for part, count in multiply_adds(config).items() if part in parts)


_LAYER = (
    "projections q, k, v, o", "keys and values of memory", "position keys", "content scores", "position scores",
    "segment scores", "values", "feed-forward",
)  # fmt: skip
_RECOMPUTED: dict[str, tuple[str, ...]] = {
    "none": (),
    "full": _LAYER,
    "dots": (),
    # The weights of attention are not kept: what leads to them is computed again.
    "attention": tuple(part for part in _LAYER if part != "values"),
}
