"""Settings that several commands share."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import tyro

from xlnet_jax.settings.fields import operational, setting


@dataclass(frozen=True, kw_only=True)
class RecordingSettings:
    """Settings that record which of them the user gave."""

    given: Annotated[frozenset[str], tyro.conf.Fixed, tyro.conf.Suppress] = field(
        default=frozenset(), compare=False, repr=False
    )
    """dotted names, which settings/resolution.py reads; not a setting"""


@dataclass(frozen=True, kw_only=True)
class TextSourceSettings:
    """Settings of all commands that read text."""

    text_field: str = operational("text", "text")
    """field with the text of a document, in JSON, Parquet, TFDS and on the Hub"""
    corpus_errors: Literal["strict", "replace"] = setting("strict", "text")
    """what to do with bytes that are not UTF-8: strict = refuse the text, and name the line; replace = read them as
    U+FFFD"""


@dataclass(frozen=True)
class CheckpointSettings:
    """Settings of all commands that read a checkpoint."""

    checkpoint: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """folder of a run or of any other checkpoint, in any format and with any head; tiny, which comes with the package;
    or a name on the Hugging Face Hub"""
    tokenizer: str | None = field(default=None, kw_only=True)
    """SentencePiece model, for a checkpoint without a tokenizer"""
