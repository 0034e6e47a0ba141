"""The arithmetic of a training step, counted by hand from the network: the multiply-adds of its matrix products.

What the compiler counts will not do: it takes the body of the loop over layers once.
"""

from typing import NamedTuple

from xlnet_jax.config import Config, DataConfig, ModelConfig


class MultiplyAdds(NamedTuple):
    """Of one kind of matrix products in one step, over the global batch."""

    forward: int
    backward: int  # twice the forward's; once where one of the factors has no gradient


def multiply_adds(model: ModelConfig, data: DataConfig) -> dict[str, MultiplyAdds]:
    """By part of the network, over all layers.

    The query stream has a row for each target slot; position keys are projected once (sine and cosine half apart), from
    signals that do not learn; memory is given, and gets no gradient; a segment score is one number for each row.
    """
    batch, width, heads = data.batch_size, model.d_model, model.num_heads * model.d_head
    rows, keys = data.seq_len + data.num_slots, model.mem_len + data.seq_len
    distances = keys + data.seq_len
    scores = batch * rows * heads

    def all_layers(forward: int, gradients: int = 2) -> MultiplyAdds:
        return MultiplyAdds(model.num_layers * forward, model.num_layers * gradients * forward)

    vocabulary = batch * data.num_slots * width * model.vocab_size
    return {
        "projections q, k, v, o": all_layers(2 * batch * (rows + data.seq_len) * width * heads),
        "keys and values of memory": all_layers(2 * batch * model.mem_len * width * heads, gradients=1),
        "position keys": all_layers(distances * width * heads, gradients=1),
        "content scores": all_layers(scores * keys),
        "position scores": all_layers(scores * distances),
        "segment scores": all_layers(scores),
        "values": all_layers(scores * keys),
        "feed-forward": all_layers(2 * batch * rows * width * model.d_ff),
        "vocabulary": MultiplyAdds(vocabulary, 2 * vocabulary),
    }


def step_operations(config: Config) -> int:
    """Operations of one update, two a multiply-add: what the model demands, and what utilisation (MFU) is a share of.
    What remat computes again is not in it."""
    counted = multiply_adds(config.model, config.data)
    return 2 * sum(part.forward + part.backward for part in counted.values())


def recomputed_operations(config: Config) -> int:
    """Operations that remat adds to an update: with `step_operations`, what the hardware does (HFU)."""
    parts = _RECOMPUTED[config.model.remat]
    counted = multiply_adds(config.model, config.data)
    return 2 * sum(counted[part].forward for part in counted if part in parts)


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
