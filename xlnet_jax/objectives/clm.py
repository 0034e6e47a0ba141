"""Causal language modelling: Transformer-XL (Dai et al. 2019, section 3)."""

from collections.abc import Iterator
from dataclasses import replace

from data_pipelines.objectives import clm
from xlnet_jax.objectives.record import Record
from xlnet_jax.objectives.refusals import next_token, unread_replacements, unread_targets
from xlnet_jax.settings.config import Config


def _start(config: Config) -> Config:
    data = config.data
    return replace(
        config,
        objective="clm",
        model=replace(config.model, attn_type="uni", num_segments=0),
        data=replace(data, window="text", reuse_len=data.seq_len, num_predict=None, bidirectional=False),
    )


def _unread(config: Config) -> Iterator[tuple[str, str]]:
    yield from unread_replacements("clm")
    yield from unread_targets("clm")


def _contradictions(config: Config) -> Iterator[str]:
    if config.model.attn_type != "uni":
        yield "--objective clm with model.attn-type bi: a row must not see what it predicts; it needs uni"
    yield from next_token("clm", config)
    if config.data.masking == "static":
        yield "--objective clm with data.masking static: it masks nothing"


CLM = Record(
    name="clm",
    summary="the next piece (Transformer-XL)",
    title="Causal language modelling",
    learns="the next piece",
    filling=clm.FILLING,
    start=_start,
    unread=_unread,
    contradictions=_contradictions,
    positions=("relative", "sinusoidal"),
    loss="likelihood",
    order="left to right",
)
