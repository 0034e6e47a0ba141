"""Masked language modelling: BERT (Devlin et al. 2019, section 3.1)."""

from collections.abc import Iterator
from dataclasses import replace

from data_pipelines.objectives import mlm
from xlnet_jax.objectives.record import Record
from xlnet_jax.objectives.refusals import nothing_masked, unread_spans, without_query_stream
from xlnet_jax.settings.config import Config

MASKED_SHARE = 0.15  # share of a window's pieces that are targets (Devlin et al. 2019, section 3.1)


def _start(config: Config) -> Config:
    data = config.data
    return replace(
        config,
        objective="mlm",
        model=replace(config.model, mem_len=0),
        data=replace(
            data, reuse_len=0, num_predict=round(MASKED_SHARE * data.seq_len), targets="pieces", bidirectional=False
        ),
    )


def _unread(config: Config) -> Iterator[tuple[str, str]]:
    yield from unread_spans(config.data)


def _contradictions(config: Config) -> Iterator[str]:
    yield from without_query_stream("mlm", config.data)
    if config.model.attn_type == "uni":
        yield "--objective mlm with model.attn-type uni: a masked piece is read from both sides (bi)"
    yield from nothing_masked(config.data)


MLM = Record(
    name="mlm",
    summary="masked pieces (BERT)",
    title="Masked language modelling",
    learns="masked pieces",
    filling=mlm.FILLING,
    start=_start,
    unread=_unread,
    contradictions=_contradictions,
    positions=("relative", "sinusoidal", "learned"),
    loss="pseudo",
    order=None,
)
