"""The sizes of ELECTRA's generator (Clark et al. 2020, section 3.2)."""

from dataclasses import replace

from xlnet_jax.config import Config, ModelConfig


def generator_of(config: Config) -> ModelConfig:
    """A narrower network of as many layers, one head at the least, whose embeddings are those of config.model."""
    model, share = config.model, config.rtd.generator_share
    width, shared = round(share * model.d_model), model.embedding_width or model.d_model
    return replace(
        model,
        d_model=width,
        num_heads=max(1, round(share * model.num_heads)),
        d_ff=max(1, round(share * model.d_ff)),
        embedding_width=None if shared == width else shared,
    )
