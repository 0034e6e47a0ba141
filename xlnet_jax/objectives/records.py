"""One record per objective, which the rest of the code reads: starting settings, requirements, and the meaning of its
loss.

`--help` and the checks of settings read the records, so this module imports neither flax nor jax, and imports the class
that computes a loss when a run begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from data_pipelines.objectives import Filling, clm, mdlm, mlm, plm, prefix, rtd
from xlnet_jax.costs import PIECES, MultiplyAdds, add_counts, network_multiply_adds
from xlnet_jax.errors import InputError
from xlnet_jax.settings.config import Config
from xlnet_jax.settings.fields import with_values
from xlnet_jax.settings.rules import least_new

MASKED_SHARE = 0.15  # share of a window's tokens that are targets (Devlin et al. 2019, section 3.1)


def _language_model() -> type:
    from xlnet_jax.objectives.language_model import LanguageModel

    return LanguageModel


@dataclass(frozen=True)
class ObjectiveRecord:
    """One objective."""

    name: str
    """value of --objective; stored in checkpoints"""
    summary: str
    """a few words for --help"""
    title: str
    """name of the loss, for pictures"""
    learns: str
    """completes 'the checkpoint has learned to predict …'"""
    filling: Filling
    """how windows become batches, and which stream predicts"""
    start: Callable[[Config], Config]
    """return the settings for this objective, given those of another; sizes and optimizer do not change"""
    attn_type: Literal["uni", "bi"]
    """required value of model.attn_type"""
    positions: tuple[str, ...]
    """supported values of model.positions"""
    loss: Literal["likelihood", "bound", "targets", "pseudo"]
    """meaning of the loss. likelihood: nats of each token given the text before it; every block is read once, and bits
    and perplexity per character, byte and word can be computed. bound: an upper bound on that, in the same units, for
    every token of a window. targets: nats per predicted piece, and bits as if all
    pieces had that loss. pseudo: nats per masked piece, which is not a likelihood"""
    order: Literal["any", "left to right"] | None
    """order in which a checkpoint can predict pieces: any (scores, generation, gaps), left to right (scores and
    generation), or None (no predictions in an order)"""
    contradictions: Callable[[Config], Iterator[InputError]] = lambda config: iter(())
    """yield contradictions with other settings that the fields above do not cover, one line each"""
    import_loss: Callable[[], type] = _language_model
    """import and return the class that computes the loss (`Objective`)"""
    multiply_adds: Callable[[Config], dict[str, MultiplyAdds]] | None = None
    """return the multiply-adds of one step by part of the network; None = count one network with these settings"""
    is_discriminator: bool = False
    """True if checkpoints hold a detector (models/bert.py), and a separate generator predicts pieces"""

    @property
    def is_of_text(self) -> bool:
        """True if the loss is that of a text, and not only of some of its pieces."""
        return self.loss in ("likelihood", "bound")


# ---- XLNet (Yang et al. 2019, sections 2.2 and 2.3) ------------------------------------------------------------------


def _plm_contradictions(config: Config) -> Iterator[InputError]:
    data = config.data
    new = data.seq_len - data.reuse_len
    if data.perm_size > 0 and new >= least_new(data) and (data.reuse_len % data.perm_size or new % data.perm_size):
        why = (
            f"must divide both parts of the window: `data.reuse_len` {data.reuse_len} and `data.seq_len` - "
            f"`data.reuse_len` = {new}"
        )
        yield InputError("data.perm_size", data.perm_size, why)
    if not data.group_sizes:
        yield InputError("data.group_sizes", "", "has no size: give at least one, such as 1")
    elif (largest := max(data.group_sizes)) > data.num_slots:
        slots = f"seq_len` {data.seq_len}" if data.num_predict is None else f"num_predict` {data.num_predict}"
        why = f"is more than the targets of a window: give at most `data.{slots}"
        yield InputError("data.group_sizes", largest, why)


PLM = ObjectiveRecord(
    name="plm",
    summary="permutations (XLNet)",
    title="Permutation language modeling",
    learns="pieces in permuted orders",
    filling=plm.FILLING,
    # This does not undo the settings of another objective, so the config must come from an XLNet preset.
    start=lambda config: with_values(config, {"objective": "plm"}),
    attn_type="bi",
    positions=("relative",),
    loss="targets",
    order="any",
    contradictions=_plm_contradictions,
)


# ---- BERT (Devlin et al. 2019, section 3.1) --------------------------------------------------------------------------


def _start_mlm(config: Config) -> Config:
    return with_values(
        config,
        {
            "objective": "mlm",
            "model.mem_len": 0,
            "data": {
                "reuse_len": 0,
                "num_predict": round(MASKED_SHARE * config.data.seq_len),
                "targets": "pieces",
                "bidirectional": False,
            },
        },
    )


MLM = ObjectiveRecord(
    name="mlm",
    summary="masked pieces (BERT)",
    title="Masked language modeling",
    learns="masked pieces",
    filling=mlm.FILLING,
    start=_start_mlm,
    attn_type="bi",
    positions=("relative", "sinusoidal", "learned"),
    loss="pseudo",
    order=None,
)


# ---- Transformer-XL (Dai et al. 2019, section 3) ---------------------------------------------------------------------


def _start_clm(config: Config) -> Config:
    return with_values(
        config,
        {
            "objective": "clm",
            "model": {"attn_type": "uni", "num_segments": 0},
            "data": {
                "window": "text", "reuse_len": config.data.seq_len, "num_predict": None, "bidirectional": False
            },
        },
    )  # fmt: skip


def _clm_contradictions(config: Config) -> Iterator[InputError]:
    if config.data.masking == "static":
        yield InputError("objective", "clm", "with `data.masking` static: it masks nothing; leave it out")


CLM = ObjectiveRecord(
    name="clm",
    summary="the next piece (Transformer-XL)",
    title="Causal language modeling",
    learns="the next piece",
    filling=clm.FILLING,
    start=_start_clm,
    attn_type="uni",
    positions=("relative", "sinusoidal"),
    loss="likelihood",
    order="left to right",
    contradictions=_clm_contradictions,
)


# ---- ELECTRA (Clark et al. 2020, section 2) --------------------------------------------------------------------------


def _start_rtd(config: Config) -> Config:
    return with_values(
        _start_mlm(config),
        {
            "objective": "rtd",
            # The networks share embeddings, whose width must differ from the layers': only BERT's encoder does that.
            "model.positions": "learned",
            "data": {"mask_share": 1.0, "random_share": 0.0, "pair_loss": "none"},
        },
    )


def _replaced_token_detection() -> type:
    from xlnet_jax.objectives.replaced import ReplacedTokenDetection

    return ReplacedTokenDetection


def _rtd_contradictions(config: Config) -> Iterator[InputError]:
    if (pair_loss := config.data.pair_loss) != "none":
        why = f"with `data.pair_loss` {pair_loss}: it classifies tokens, not pairs; give none"
        yield InputError("objective", "rtd", why)
    if (width := config.rtd.generator_of(config.model).d_model) < 1:
        why = f"of `model.d_model` {config.model.d_model} leaves a generator of width {width}; give more"
        yield InputError("rtd.generator_share", f"{config.rtd.generator_share:g}", why)


def _rtd_multiply_adds(config: Config) -> dict[str, MultiplyAdds]:
    """Return the multiply-adds of both networks: only the generator scores the vocabulary; the network scores every
    token."""
    network = network_multiply_adds(config, query_rows=0)
    generator = with_values(config, {"model": config.rtd.generator_of(config.model)})
    width = config.model.d_model
    detector = config.data.batch_size * config.data.seq_len * (width**2 + width)
    return {
        **add_counts(
            {part: count for part, count in network.items() if part not in PIECES},
            network_multiply_adds(generator, query_rows=0),
        ),
        "detector": MultiplyAdds(detector, 2 * detector),
    }


RTD = ObjectiveRecord(
    name="rtd",
    summary="which tokens a generator has replaced (ELECTRA)",
    title="Replaced token detection: its generator",
    learns="which pieces are replaced",
    filling=rtd.FILLING,
    start=_start_rtd,
    attn_type="bi",
    positions=("learned",),
    loss="pseudo",
    order=None,
    contradictions=_rtd_contradictions,
    import_loss=_replaced_token_detection,
    multiply_adds=_rtd_multiply_adds,
    is_discriminator=True,
)


# ---- UniLM (Dong et al. 2019, section 2.3) without segments; T5's prefix LM (Raffel et al. 2020, section 3.2.1) ------


def _start_prefix(config: Config) -> Config:
    # Ranks hide what a token must not see, so the network stays bidirectional. Memory works as for clm, with
    # data.reuse_len = data.seq_len: windows do not overlap, so no hidden state in memory has seen a later target.
    return with_values(
        config,
        {
            "objective": "prefix",
            "model": {"attn_type": "bi", "num_segments": 0, "mem_len": 0},
            "data": {"window": "text", "reuse_len": 0, "num_predict": None, "bidirectional": False, "pack": False},
        },
    )


def _prefix_contradictions(config: Config) -> Iterator[InputError]:
    if config.data.window == "records":
        yield InputError("objective", "prefix", "does not read records: choose plm, clm, mdlm or mlm")
    elif config.data.pack:
        why = "with `data.pack` True: only one document of a window would have a prefix; leave it out"
        yield InputError("objective", "prefix", why)
    if config.data.seq_len < 2:
        yield InputError(
            "data.seq_len", config.data.seq_len, ": a prefix and a token after it need at least 2 positions"
        )


PREFIX = ObjectiveRecord(
    name="prefix",
    summary="the tokens after a prefix that is read in both directions (UniLM, T5)",
    title="Prefix language modeling",
    learns="the pieces after a prefix",
    filling=prefix.FILLING,
    start=_start_prefix,
    attn_type="bi",
    positions=("relative", "sinusoidal"),
    loss="likelihood",
    order="left to right",
    contradictions=_prefix_contradictions,
)


# ---- Masked diffusion (Sahoo et al. 2024; LLaDA, Nie et al. 2025) ----------------------------------------------------


def _mdlm_contradictions(config: Config) -> Iterator[InputError]:
    if config.model.mem_len:
        why = f"with `model.mem_len` {config.model.mem_len}: memory would hold masked text; give 0"
        yield InputError("objective", "mdlm", why)


MDLM = ObjectiveRecord(
    name="mdlm",
    summary="masked pieces, at any masked share (masked diffusion)",
    title="Masked diffusion: bound",
    learns="pieces masked at any share",
    filling=mdlm.FILLING,
    start=lambda config: with_values(_start_prefix(config), {"objective": "mdlm"}),
    attn_type="bi",
    positions=("relative", "sinusoidal", "learned"),
    loss="bound",
    order="any",
    contradictions=_mdlm_contradictions,
)


OBJECTIVES = (PLM, MLM, CLM, RTD, PREFIX, MDLM)
