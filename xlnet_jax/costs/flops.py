"""FLOPs of a training step, counted by hand from the network: the multiply-adds of its einsums.

The compiler's own count will not do: it takes the body of the loop over layers once.
"""

from collections.abc import Mapping
from typing import NamedTuple

from xlnet_jax.settings.config import Config


class MultiplyAdds(NamedTuple):
    """Multiply-adds of one part of a network in one step, over the global batch."""

    forward: int
    backward: int  # twice the forward's; as many where one factor has no gradient


PIECES = ("transform", "vocabulary")
"""Parts that score pieces."""


def network_multiply_adds(config: Config, query_rows: int) -> dict[str, MultiplyAdds]:
    """Return the multiply-adds by part of the network, over all layers; without the parts that it does not have.

    query_rows: rows of the query stream in a window. Relative position keys are projected once (sine and cosine half
    apart), from signals that do not learn; memory is given, and gets no gradient; a relative segment score is one
    number for each row. Pieces are scored at target slots alone, and those of BERT transformed before.
    """
    model, data = config.model, config.data
    batch, width, heads = data.batch_size, model.d_model, model.num_heads * model.d_head
    rows = data.seq_len + query_rows
    keys = model.mem_len + data.seq_len
    narrow = model.embedding_width or width
    distances = keys + data.seq_len if model.positions == "relative" else 0
    has_segment_scores = model.network != "bert" and model.num_segments > 0
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
        "transform": once(targets * width * narrow * (model.network == "bert")),
        "vocabulary": once(targets * narrow * model.vocab_size),
        "pairs": once(batch * (width**2 + 2 * width) * (data.pair_loss != "none")),
    }
    return {part: count for part, count in counted.items() if count.forward}


def summed(*networks: Mapping[str, MultiplyAdds]) -> dict[str, MultiplyAdds]:
    """Return the multiply-adds of several networks together, by part."""
    counts: dict[str, MultiplyAdds] = {}
    for part, count in (item for network in networks for item in network.items()):
        forward, backward = counts.get(part, (0, 0))
        counts[part] = MultiplyAdds(forward + count.forward, backward + count.backward)
    return counts


def total(parts: Mapping[str, MultiplyAdds]) -> int:
    """Return the FLOPs of all parts, forward and backward, two a multiply-add."""
    return 2 * sum(count.forward + count.backward for count in parts.values())


def recomputed(parts: Mapping[str, MultiplyAdds], remat: str) -> int:
    """Return the FLOPs that a remat policy adds."""
    return 2 * sum(count.forward for part, count in parts.items() if part in _RECOMPUTED[remat])


_LAYER = (
    "projections q, k, v, o", "keys and values of memory", "position keys", "content scores", "position scores",
    "segment scores", "values", "feed-forward",
)  # fmt: skip
_RECOMPUTED: dict[str, tuple[str, ...]] = {
    "none": (),
    "full": _LAYER,
    "dots": (),
    # Attention probabilities are not saved: the steps up to them are computed again.
    "attention": tuple(part for part in _LAYER if part != "values"),
}
