"""Permutation language modelling: XLNet (Yang et al. 2019, sections 2.2 and 2.3)."""

from collections.abc import Iterator
from dataclasses import replace

from data_pipelines.objectives import plm
from xlnet_jax.costs import MultiplyAdds, network_multiply_adds
from xlnet_jax.objectives.record import Record
from xlnet_jax.objectives.refusals import unread_replacements, unread_spans
from xlnet_jax.settings.config import Config
from xlnet_jax.settings.rules import least_new


def _start(config: Config) -> Config:
    # This does not undo another objective's settings: start from an XLNet preset.
    return replace(config, objective="plm")


def _unread(config: Config) -> Iterator[tuple[str, str]]:
    yield from unread_replacements("plm")
    yield from unread_spans(config.data)


def _contradictions(config: Config) -> Iterator[str]:
    model, data = config.model, config.data
    if model.positions == "sinusoidal":
        yield "--objective plm with model.positions sinusoidal: a query row knows its place by relative ones alone"
    if model.attn_type == "uni":
        yield "--objective plm with model.attn-type uni: a permuted order needs rows that look both ways (bi)"
    new = data.seq_len - data.reuse_len
    if data.perm_size > 0 and new >= least_new(data) and (data.reuse_len % data.perm_size or new % data.perm_size):
        yield (
            f"data.perm-size {data.perm_size} must divide both parts of the window: data.reuse-len {data.reuse_len} "
            f"and data.seq-len - data.reuse-len = {new}"
        )


def _multiply_adds(config: Config) -> dict[str, MultiplyAdds]:
    return network_multiply_adds(config, query_rows=config.data.num_slots)


PLM = Record(
    name="plm",
    summary="permutations (XLNet)",
    title="Permutation language modelling",
    learns="pieces in permuted orders",
    filling=plm.FILLING,
    start=_start,
    unread=_unread,
    contradictions=_contradictions,
    positions=("relative",),
    loss="targets",
    order="any",
    multiply_adds=_multiply_adds,
)
