"""Costs of a run: FLOPs of a training step, and chips by their vendors' data sheets.

FLOPs are counted by hand from the multiply-adds of the network's einsums, since the compiler counts the body of the
loop over layers once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from xlnet_jax.settings.config import Config, ModelConfig

GIB = 2**30


@dataclass(frozen=True)
class Chip:
    """One chip. Rates are peaks, per second."""

    name: str
    device_kinds: tuple[str, ...]
    """names that jax gives to its devices"""
    devices: int
    """devices that jax sees in one chip; they share everything below"""
    flops: float
    """dense bfloat16 FLOPs"""
    memory: int
    """bytes of high-bandwidth memory"""
    memory_bandwidth: float
    """bytes of memory traffic"""
    link_bandwidth: float
    """bytes that leave the chip over all its links, one way; 0 = no links"""
    clock: float = 0.0
    """Hz of a TPU's cores; 0 = not given, for a GPU"""
    cores: int = 1
    """cores of a TPU chip; names of slices such as v3-32 count them"""


# Cloud: cloud.google.com/tpu/docs/NAME, its table of key specifications, which gives links both ways.
# Clocks of v2 to v4: Jouppi 2020 and Jouppi 2023. Google publishes none for later ones: peak FLOPs / (2 x multipliers),
# where a device has 4 (v5e) or 8 (v5p, both cores) arrays of 128 x 128 multipliers, or 4 of 256 x 256 (v6e, v7).
# Jouppi 2020: A Domain-Specific Supercomputer for Training Deep Neural Networks, CACM 63(7), table 3.
# Jouppi 2023: TPU v4: An Optically Reconfigurable Supercomputer for Machine Learning, ISCA 2023, table 4.
CHIPS = (
    # Jouppi 2020: 46 TFLOP/s, 16 GiB at 700 GB/s, 4 links of 496 Gbit/s.
    Chip("v2", ("TPU v2",), 2, 46e12, 16 * GIB, 700e9, 4 * 496e9 / 8, 0.7e9, cores=2),
    # Cloud (123 TFLOP/s, 32 GiB at 900 GB/s); Jouppi 2020: 4 links of 656 Gbit/s.
    Chip("v3", ("TPU v3",), 2, 123e12, 32 * GIB, 900e9, 4 * 656e9 / 8, 0.94e9, cores=2),
    # Cloud; jax sees its two cores as one ("megacore"). Links: Jouppi 2023, 6 of 50 GB/s.
    Chip("v4", ("TPU v4",), 1, 275e12, 32 * GIB, 1228e9, 6 * 50e9, 1.05e9, cores=2),
    # Cloud: 197 TFLOP/s, 16 GB at 819 GB/s, links of 400 GB/s both ways.
    Chip("v5e", ("TPU v5 lite", "TPU v5e"), 1, 197e12, 16 * GIB, 819e9, 200e9, 1.5e9),
    # Cloud: 459 TFLOP/s, 95 GiB at 2,765 GB/s, links of 1,200 GB/s both ways.
    Chip("v5p", ("TPU v5", "TPU v5p"), 1, 459e12, 95 * GIB, 2765e9, 600e9, 1.75e9, cores=2),
    # Cloud: 918 TFLOP/s, 32 GiB at 1,638 GB/s, links of 800 GB/s both ways.
    Chip("v6e", ("TPU v6 lite", "TPU v6e"), 1, 918e12, 32 * GIB, 1638e9, 400e9, 1.75e9),
    # Cloud (tpu7x): 2,307 TFLOP/s, 192 GiB at 7,380 GB/s, links of 1,200 GB/s both ways.
    Chip("v7", ("TPU7x", "TPU v7x", "TPU v7"), 2, 2307e12, 192 * GIB, 7380e9, 600e9, 2.2e9, cores=2),
    # NVIDIA's data sheets. Where one gives a rate "with sparsity", this is half of it; NVLink one way is half as well.
    Chip("A100 40GB", ("NVIDIA A100-SXM4-40GB",), 1, 312e12, 40 * GIB, 1555e9, 300e9),
    Chip("A100 40GB PCIe", ("NVIDIA A100-PCIE-40GB",), 1, 312e12, 40 * GIB, 1555e9, 0.0),
    Chip("A100 80GB", ("NVIDIA A100-SXM4-80GB",), 1, 312e12, 80 * GIB, 2039e9, 300e9),
    Chip("A100 80GB PCIe", ("NVIDIA A100 80GB PCIe",), 1, 312e12, 80 * GIB, 1935e9, 0.0),
    Chip("H100", ("NVIDIA H100 80GB HBM3",), 1, 989e12, 80 * GIB, 3350e9, 450e9),
    Chip("H100 PCIe", ("NVIDIA H100 PCIe",), 1, 756e12, 80 * GIB, 2000e9, 0.0),
    Chip("H100 NVL", ("NVIDIA H100 NVL",), 1, 835e12, 94 * GIB, 3900e9, 300e9),
    Chip("H200", ("NVIDIA H200",), 1, 989e12, 141 * 10**9, 4800e9, 450e9),
    Chip("B200", ("NVIDIA B200",), 1, 2250e12, 180 * 10**9, 8000e9, 900e9),
    # NVLink joins two of them at most, and not in every machine.
    Chip("RTX A6000", ("NVIDIA RTX A6000",), 1, 154.8e12, 48 * GIB, 768e9, 0.0),
    Chip("L4", ("NVIDIA L4",), 1, 121e12, 24 * 10**9, 300e9, 0.0),
    Chip("L40S", ("NVIDIA L40S",), 1, 362e12, 48 * 10**9, 864e9, 0.0),
)


def chip_named(name: str) -> Chip:
    """Return the chip of this name."""
    return next(chip for chip in CHIPS if chip.name == name)


def chip_of(device_kind: str) -> Chip | None:
    """Return the chip whose devices jax calls so; None where it is unknown, as for a CPU."""
    return next((chip for chip in CHIPS if device_kind in chip.device_kinds), None)


def peak_flops(device_kind: str) -> float | None:
    """Return the peak bfloat16 FLOP/s of one device; None where it is unknown."""
    chip = chip_of(device_kind)
    return chip.flops / chip.devices if chip else None


def layer_parameters(model: ModelConfig) -> int:
    """Return the number of weights of the matrices in all layers: attention's q, k, v, o and, with relative positions,
    r, and the feed-forward's two. Embeddings, biases and normalization are not counted."""
    attention = (5 if model.positions == "relative" else 4) * model.num_heads * model.d_head
    return model.num_layers * model.d_model * (attention + 2 * model.d_ff)


class MultiplyAdds(NamedTuple):
    """Multiply-adds of one part of a network in one step, over the global batch."""

    forward: int
    backward: int  # twice the forward's; as many where one factor has no gradient


PIECES = ("transform", "vocabulary")
"""Parts that score pieces."""


def network_multiply_adds(config: Config, query_rows: int) -> dict[str, MultiplyAdds]:
    """Return the multiply-adds by part of the network, over all layers; without the parts that it does not have.
    Both streams count in all layers, and a row's position scores count a column for each distance between any two
    positions. `spared_multiply_adds` are those of them that no result needs.

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
        "segment scores": all_layers(scores * model.has_segment_scores),
        "values": all_layers(scores * keys),
        "feed-forward": all_layers(2 * batch * rows * width * model.d_ff),
        "embedding projection": once(batch * data.seq_len * narrow * width * (model.embedding_width is not None)),
        "transform": once(targets * width * narrow * model.has_transform),
        "vocabulary": once(targets * narrow * model.vocab_size),
        "pairs": once(batch * (width**2 + 2 * width) * (data.pair_loss != "none")),
    }
    return {part: count for part, count in counted.items() if count.forward}


def spared_multiply_adds(config: Config, query_rows: int) -> int:
    """Return the forward multiply-adds of `network_multiply_adds` that the result of a step does not need.

    A row's position scores need a column for each of the K = M + L keys, not for each of the K + L distances. If the
    query stream predicts, the content rows of the last layer are needed for keys and values alone
    (models/last_layer.py).
    """
    model, data = config.model, config.data
    batch, width, heads = data.batch_size, model.d_model, model.num_heads * model.d_head
    keys, is_relative = model.mem_len + data.seq_len, model.positions == "relative"
    columns = model.num_layers * (data.seq_len + query_rows) * heads * data.seq_len * is_relative
    content_row = heads * (2 * width + (2 + is_relative) * keys + model.has_segment_scores) + 2 * width * model.d_ff
    return batch * (columns + data.seq_len * content_row * (query_rows > 0))


def add_counts(*networks: Mapping[str, MultiplyAdds]) -> dict[str, MultiplyAdds]:
    """Return the multiply-adds of several networks together, by part."""
    counts: dict[str, MultiplyAdds] = {}
    for part, count in (item for network in networks for item in network.items()):
        forward, backward = counts.get(part, (0, 0))
        counts[part] = MultiplyAdds(forward + count.forward, backward + count.backward)
    return counts


def total_flops(parts: Mapping[str, MultiplyAdds]) -> int:
    """Return the FLOPs of all parts, forward and backward, two per multiply-add."""
    return 2 * sum(count.forward + count.backward for count in parts.values())


def remat_flops(parts: Mapping[str, MultiplyAdds], remat: str) -> int:
    """Return the FLOPs that a remat policy adds."""
    return 2 * sum(round(count.forward * _RECOMPUTED[remat].get(part, 0)) for part, count in parts.items())


_LAYER = (
    "projections q, k, v, o", "keys and values of memory", "position keys", "content scores", "position scores",
    "segment scores", "values", "feed-forward",
)  # fmt: skip
_RECOMPUTED: dict[str, dict[str, float]] = {
    "none": {},
    "full": dict.fromkeys(_LAYER, 1),
    "dots": {},
    # Attention probabilities are not saved: the steps up to them are computed again. Of the two feed-forward products,
    # the sum after the second is saved.
    "attention": dict.fromkeys(_LAYER, 1) | {"values": 0, "feed-forward": 1 / 2},
    "feed_forward": dict.fromkeys(_LAYER, 1) | {"values": 0, "feed-forward": 0.0},
}
