"""Prefix language modelling: UniLM's sequence-to-sequence masks (Dong et al. 2019, section 2.3) without segments; T5's
prefix LM (Raffel et al. 2020, section 3.2.1).

Ranks alone hide what a row must not see, so the network stays bidirectional (model.attn_type bi). Memory works as for
clm, with data.reuse_len = data.seq_len: windows do not overlap, so no hidden state in memory has seen a later target.
"""

from collections.abc import Iterator
from dataclasses import replace

from data_pipelines.objectives import prefix
from xlnet_jax.objectives.record import Record
from xlnet_jax.settings.config import Config


def _start(config: Config) -> Config:
    return replace(
        config,
        objective="prefix",
        model=replace(config.model, attn_type="bi", num_segments=0, mem_len=0),
        data=replace(config.data, window="text", reuse_len=0, num_predict=None, bidirectional=False, pack=False),
    )


def _contradictions(config: Config) -> Iterator[str]:
    if config.data.pack:
        yield "--objective prefix with data.pack: a window has one prefix, and its other documents would have none"
    if config.data.seq_len < 2:
        yield f"data.seq-len {config.data.seq_len}: a prefix and a piece behind it need 2 positions at least"


PREFIX = Record(
    name="prefix",
    summary="the pieces behind a prefix that is read both ways (UniLM, T5)",
    title="Prefix language modelling",
    learns="the pieces behind a prefix",
    filling=prefix.FILLING,
    start=_start,
    attn_type="bi",
    positions=("relative", "sinusoidal"),
    loss="likelihood",
    order="left to right",
    contradictions=_contradictions,
)
