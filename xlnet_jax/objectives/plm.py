"""Permutation language modelling: XLNet (Yang et al. 2019, sections 2.2 and 2.3)."""

from collections.abc import Iterator
from dataclasses import replace

from data_pipelines.objectives import plm
from xlnet_jax.objectives.record import Record
from xlnet_jax.settings.config import Config
from xlnet_jax.settings.rules import least_new


def _start(config: Config) -> Config:
    # This does not undo another objective's settings: start from an XLNet preset.
    return replace(config, objective="plm")


def _contradictions(config: Config) -> Iterator[str]:
    data = config.data
    new = data.seq_len - data.reuse_len
    if data.perm_size > 0 and new >= least_new(data) and (data.reuse_len % data.perm_size or new % data.perm_size):
        yield (
            f"data.perm-size {data.perm_size} must divide both parts of the window: data.reuse-len {data.reuse_len} "
            f"and data.seq-len - data.reuse-len = {new}"
        )


PLM = Record(
    name="plm",
    summary="permutations (XLNet)",
    title="Permutation language modelling",
    learns="pieces in permuted orders",
    filling=plm.FILLING,
    start=_start,
    attn_type="bi",
    positions=("relative",),
    loss="targets",
    order="any",
    contradictions=_contradictions,
)
