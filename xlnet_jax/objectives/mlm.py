"""Masked language modelling: BERT (Devlin et al. 2019, section 3.1)."""

from dataclasses import replace

from data_pipelines.objectives import mlm
from xlnet_jax.objectives.record import Record
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


MLM = Record(
    name="mlm",
    summary="masked pieces (BERT)",
    title="Masked language modelling",
    learns="masked pieces",
    filling=mlm.FILLING,
    start=_start,
    attn_type="bi",
    positions=("relative", "sinusoidal", "learned"),
    loss="pseudo",
    order=None,
)
