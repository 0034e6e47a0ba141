"""Replaced token detection: ELECTRA (Clark et al. 2020, section 2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from data_pipelines.objectives import rtd
from xlnet_jax.costs import PIECES, MultiplyAdds, add_counts, network_multiply_adds
from xlnet_jax.objectives.mlm import MLM
from xlnet_jax.objectives.record import Record
from xlnet_jax.settings.config import Config


def _start(config: Config) -> Config:
    masked = MLM.start(config)
    return replace(
        masked,
        objective="rtd",
        # Only BERT's encoder has embeddings of another width than its layers', which both networks can share.
        model=replace(masked.model, positions="learned"),
        data=replace(masked.data, mask_share=1.0, random_share=0.0, pair_loss="none"),
    )


def _contradictions(config: Config) -> Iterator[str]:
    if (pair_loss := config.data.pair_loss) != "none":
        yield f"--objective rtd with data.pair-loss {pair_loss}: every token is judged, and no pair; it needs none"
    if (width := config.rtd.generator_of(config.model).d_model) < 1:
        share = f"rtd.generator-share {config.rtd.generator_share:g}"
        yield f"{share} of model.d-model {config.model.d_model} leaves a width of {width}"


def _multiply_adds(config: Config) -> dict[str, MultiplyAdds]:
    """Return the multiply-adds of both networks: the generator alone scores pieces, and the network every token."""
    network = network_multiply_adds(config, query_rows=0)
    generator = replace(config, model=config.rtd.generator_of(config.model))
    width = config.model.d_model
    detector = config.data.batch_size * config.data.seq_len * (width**2 + width)
    return {
        **add_counts(
            {part: count for part, count in network.items() if part not in PIECES},
            network_multiply_adds(generator, query_rows=0),
        ),
        "detector": MultiplyAdds(detector, 2 * detector),
    }


RTD = Record(
    name="rtd",
    summary="which pieces a generator has replaced (ELECTRA)",
    title="Replaced token detection: its generator",
    learns="which pieces are replaced",
    filling=rtd.FILLING,
    start=_start,
    attn_type="bi",
    positions=("learned",),
    loss="pseudo",
    order=None,
    contradictions=_contradictions,
    loss_class="replaced.ReplacedTokenDetection",
    multiply_adds=_multiply_adds,
    judges_tokens=True,
)
