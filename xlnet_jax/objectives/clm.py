"""Causal language modelling: Transformer-XL (Dai et al. 2019, section 3)."""

from collections.abc import Iterator
from dataclasses import replace

from data_pipelines.objectives import clm
from xlnet_jax.objectives.record import Record
from xlnet_jax.settings.config import Config


def _start(config: Config) -> Config:
    data = config.data
    return replace(
        config,
        objective="clm",
        model=replace(config.model, attn_type="uni", num_segments=0),
        data=replace(data, window="text", reuse_len=data.seq_len, num_predict=None, bidirectional=False),
    )


def _contradictions(config: Config) -> Iterator[str]:
    if config.data.masking == "static":
        yield "--objective clm with data.masking static: it masks nothing"


CLM = Record(
    name="clm",
    summary="the next piece (Transformer-XL)",
    title="Causal language modelling",
    learns="the next piece",
    filling=clm.FILLING,
    start=_start,
    attn_type="uni",
    positions=("relative", "sinusoidal"),
    loss="likelihood",
    order="left to right",
    contradictions=_contradictions,
)
