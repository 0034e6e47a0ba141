"""Arrays of a pretraining batch, and the types that the modules of this folder share. Each module turns windows of text
into the batches of one objective, and lists the arrays of these batches. The pipeline, the initializer, the planner and
docs/windows.md take the shape, type and meaning of an array from here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from data_pipelines.stateless import Purpose
from data_pipelines.tokenizer import EOD, SPECIAL_PIECES, UNK
from xlnet_jax.dims import Batch
from xlnet_jax.settings.config import DataConfig


class Field(NamedTuple):
    """One array of a batch."""

    shape: str  # dimension letters (xlnet_jax/dims.py)
    dtype: str
    meaning: str


TOKENS = {
    "input_ids": Field("BL", "int32", "tokens, in the reading order of the row"),
    "perm_rank": Field("BL", "int32", "rank in the order of prediction"),
}
SEGMENTS = {"segment_ids": Field("BL", "int32", "0 = reused part and A, 1 = B, 2 = `<cls>`; of records, the field")}
TARGETS = {
    "target_positions": Field("BP", "int32", "positions of the targets, ascending; L - 1 on padding"),
    "target_ids": Field("BP", "int32", "token to predict at each target position; 0 on padding"),
    "target_weights": Field(
        "BP", "float32", "1.0, or 0.0 on padding; mdlm, held out or with data.bound_weights: L / number of targets"
    ),
}
ROWS = {
    "is_reversed": Field("B", "bool", "the row reads its text backwards"),
    "mem_filled": Field("B", "int32", "number of filled memory slots, newest first"),
}
"""Fields of every batch, filled by `BatchSource`."""
PAIRS = {"is_next": Field("B", "bool", "B is the text right after A; with `--data.pair-loss` next or order")}
"""Fields of a batch with data.pair_loss, filled by `BatchSource`."""
DOCUMENTS = {
    "document_start": Field("BL", "int32", "where the token's document starts, below 0 in memory; with `--data.pack`"),
}
"""Fields of a batch with data.pack, filled by `BatchSource`."""
HELD_OUT = {"row_weights": Field("B", "float32", "1.0, or 0.0 in a row without a block; in held-out batches")}
"""Fields of a batch of held-out text, filled by `BatchSource`."""
DENSE = {
    "perm_mask": Field("BLL", "bool", "True = the row may not attend to the key; with `data.emit` dense"),
    "target_mapping": Field("BPL", "float32", "one-hot position of each target; with `data.emit` dense"),
}
"""Fields that replace perm_rank and target_positions in a dense batch (`permutation.to_dense`)."""


def batch_spec(fields: Mapping[str, Field], data: DataConfig) -> dict[str, Field]:
    """Return the fields of a batch with these settings. fields: the ones that the objective fills."""
    spec = {**fields, **ROWS}
    spec |= PAIRS if data.pair_loss != "none" else {}
    spec |= DOCUMENTS if data.pack else {}
    if data.emit == "compact":
        return spec
    return {name: field for name, field in spec.items() if name not in ("perm_rank", "target_positions")} | DENSE


def shapes_of(fields: Mapping[str, Field], rows: int, data: DataConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays of a batch with `rows` rows, by name."""
    sizes = {"B": rows, "L": data.seq_len, "P": data.num_slots}
    return {name: tuple(sizes[letter] for letter in field.shape) for name, field in fields.items()}


Draw = Callable[[Purpose, int], np.ndarray]
"""(purpose, width) -> uniform float64 [B, width] in [0, 1), drawn for the rows of a batch."""


class FieldTables(NamedTuple):
    """The fields of records, by the ids of their symbols."""

    segment_V: np.ndarray  # int32, index of the field of each id
    place_OV: np.ndarray  # int32 [orders, V]: place of the field of each id in each order of the fields


@dataclass(frozen=True)
class Windows:
    """Windows before masking, and everything else that a batch is made from."""

    arrays: Batch  # of `cut_windows`, is_reversed and, with data.pack, those of `documents_of`
    is_word_start: np.ndarray  # bool [V]
    draw: Draw
    data: DataConfig
    has_memory: bool
    record_fields: FieldTables | None = None
    is_held_out: bool = False
    is_last_only: bool = False  # only the last symbol of a record is a target, as in held-out last symbols
    stratum_B: np.ndarray | None = None  # int64, the interval of each row in a stratified draw; None = draws go by text

    @property
    def is_symbol(self) -> np.ndarray:
        """True for the text of the windows, bool [B, L]: unknown pieces count, other special pieces do not. With
        is_last_only, True only before <eod>."""
        ids = self.arrays["input_ids"]
        is_symbol = (ids >= len(SPECIAL_PIECES)) | (ids == UNK)
        if self.is_last_only:
            is_symbol[:, :-1] &= ids[:, 1:] == EOD
            is_symbol[:, -1] = False
        return is_symbol

    @property
    def breaks(self) -> np.ndarray | None:
        """True where a record or a field begins, bool [B, L], which no span of targets crosses; None in prose."""
        if self.record_fields is None:
            return None
        begins, segments = self.arrays["document_start"] == np.arange(self.data.seq_len), self.arrays["segment_ids"]
        begins[:, 1:] |= segments[:, 1:] != segments[:, :-1]
        return begins


@dataclass(frozen=True)
class Filling:
    """Conversion of windows into batches of one objective, and its explanation for `data_pipelines.inspect`."""

    objective: str
    fill: Callable[[Windows], Batch]
    """returns the arrays listed in `fields`"""
    fields: Mapping[str, Field]
    """arrays that `fill` returns, in the compact form"""
    stream: Literal["query", "content"]
    """the stream that predicts; the query stream has a separate row for each target"""
    target: Literal["own", "next"]
    """token that a row at a target position predicts: the one at that position, or the one after it"""
    mark: str
    """explanation of the marks in the printed text of a window"""
    legend: str
    """explanation below the printed text and below the picture of a window"""
    draws_targets: bool = True
    """targets and their replacements are drawn as `--data.targets`, `--data.num-predict` and the shares of replacements
    say; otherwise windows are running text, and any token can be a target"""

    @property
    def replaces(self) -> bool:
        """True if targets are masked or replaced in input_ids, as a content row could otherwise copy its target."""
        return self.stream == "content" and self.target == "own"
