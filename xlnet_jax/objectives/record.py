"""Description of an objective for everything else: one record, in a file of its own, listed in registry.py.

Records are read before any work starts (`--help`, checks of settings), so neither flax nor jax is imported here, and
the class that computes the loss is named, not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from data_pipelines.objectives.base import Filling
from xlnet_jax.costs import MultiplyAdds
from xlnet_jax.settings.config import Config


@dataclass(frozen=True)
class Record:
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
    """return the settings for this objective from those of another; sizes and optimizer stay"""
    attn_type: Literal["uni", "bi"]
    """value of model.attn_type that it needs"""
    positions: tuple[str, ...]
    """values of model.positions that it can be learned with"""
    loss: Literal["likelihood", "targets", "pseudo"]
    """meaning of the loss. likelihood: nats of text given the text before it, so that bits and perplexity follow a
    character, byte and word, and every block is read once; targets: nats a predicted piece, and bits of a text of such
    pieces; pseudo: nats a masked piece, from which no likelihood follows"""
    order: Literal["any", "left to right"] | None
    """order in which a checkpoint can be asked for pieces: any (scores, generation, gaps), left to right (scores and
    generation), or none"""
    contradictions: Callable[[Config], Iterator[str]] = lambda config: iter(())
    """yield the contradictions with other settings that do not follow from the fields above, one line each"""
    loss_class: str = "language_model.LanguageModel"
    """module of this package, and the class in it, that computes the loss: loaded when a run begins"""
    multiply_adds: Callable[[Config], dict[str, MultiplyAdds]] | None = None
    """return the multiply-adds of one step by part of the network; None = those of the one network of the settings"""
    judges_tokens: bool = False
    """True if checkpoints hold a detector (models/bert.py), and pieces are predicted by a generator beside it"""
