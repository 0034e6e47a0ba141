"""Settings that several commands share."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import tyro

from xlnet_jax.settings.fields import at_least, operational, setting


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


@dataclass(frozen=True, kw_only=True)
class RecordSettings(TextSourceSettings):
    """Settings of commands that learn from records: sequences of symbols that are not prose."""

    fields: tuple[str, ...] = setting((), "text", "common")
    """read records: NAME:LEVEL of each field, the name of a column and what its symbols are: character, word, item,
    protein, dna, smiles or /REGULAR EXPRESSION/ (docs/sequences.md); none = prose"""
    group_by: str | None = setting(None, "text")
    """column: consecutive rows with the same value in it form one record"""
    unknown: Literal["refuse", "count"] = setting("refuse", "text")
    """what to do with a symbol outside a named alphabet and with a missing value: refuse the text, or read <unk>"""
    min_count: int = setting(1, at_least(1), "text")
    """number of times that a symbol must occur in the training text to be in the vocabulary; rarer ones are <unk>"""
    hold_out: str = setting("record", "text")
    """what to hold out of records: whole records (record), the last symbol of each (last), or all records with the same
    value in a column (its name)"""
    long: Literal["refuse", "cut", "continue"] = setting("refuse", "blocks")
    """what to do with a record that is longer than a window: refuse it, leave out its end (with hold_out last its
    beginning), or continue it in the next windows, with memory if the network has one"""


@dataclass(frozen=True)
class CheckpointSettings:
    """Settings of all commands that read a checkpoint."""

    checkpoint: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """folder of a run or of any other checkpoint, in any format and with any head; tiny, which comes with the package;
    or a name on the Hugging Face Hub"""
    tokenizer: str | None = field(default=None, kw_only=True)
    """SentencePiece model, for a checkpoint without a tokenizer"""


@dataclass(frozen=True, kw_only=True)
class PerTextSettings(CheckpointSettings, TextSourceSettings):
    """Settings of commands that read texts with a checkpoint, and write a record for each."""

    max_len: int | None = setting(None, at_least(1))
    """longest segment, in pieces; longer texts are read in segments with memory; None = the window length of the run,
    or 512"""
    mem_len: int | None = setting(None, at_least(0))
    """memory of earlier segments, in positions; None = as in training, or the paper's 384; 0 = none"""
    overwrite: bool = False
    """replace an existing file"""
    id_field: str | None = None
    """field with the id of a text in JSON and Parquet, copied to the output; None = number the texts from 0"""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """compute type"""
