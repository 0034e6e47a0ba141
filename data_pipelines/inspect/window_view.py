"""One window of a batch with all that can be said of it: its parts, its targets in their order, and who sees whom."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from data_pipelines.batches import BatchSource
from data_pipelines.tokenizer import CLS, SEP, Tokenizer

UNUSED_MEMORY = np.iinfo(np.int32).max
FILLED_MEMORY = np.iinfo(np.int32).min


@dataclass(frozen=True)
class Part:
    """The positions begin ... end - 1 of a window."""

    name: str
    segment: int
    begin: int
    end: int


@dataclass(frozen=True)
class WindowView:
    """A row of a batch. Dimensions as in dims.py, with T the real targets and K = mem_len + L."""

    step: int
    row: int
    steps_per_block: int
    block: int
    partner: int  # the block that a random B comes from
    is_next: bool  # B is the continuation of A
    is_reversed: bool
    mem_len: int
    mem_filled: int
    reuse_len: int
    num_predict: int
    input_ids: np.ndarray  # int32 [L]
    pieces: list[str]  # L of them
    segment_ids: np.ndarray  # int32 [L]
    perm_rank: np.ndarray  # int32 [L]
    targets: np.ndarray  # int32 [T], positions, ascending

    @property
    def visit(self) -> int:
        return self.step // self.steps_per_block

    @cached_property
    def parts(self) -> list[Part]:
        """The window from its first position to its last: reused, A, <sep>, B, <sep>, <cls>."""
        length, sep = len(self.pieces), int(np.flatnonzero(self.segment_ids == 0)[-1])
        return [
            Part("reused", 0, 0, self.reuse_len),
            Part("A", 0, self.reuse_len, sep),
            Part("<sep>", 0, sep, sep + 1),
            Part("B", 1, sep + 1, length - 2),
            Part("<sep>", 1, length - 2, length - 1),
            Part("<cls>", 2, length - 1, length),
        ]

    @cached_property
    def order(self) -> list[int]:
        """The positions of the targets as they are predicted."""
        return self.targets[np.argsort(self.perm_rank[self.targets])].tolist()

    @cached_property
    def place(self) -> dict[int, int]:
        """Position of a target -> its place in the order, from 1."""
        return {position: place for place, position in enumerate(self.order, start=1)}

    @cached_property
    def is_target(self) -> np.ndarray:
        """bool [L]"""
        return np.isin(np.arange(len(self.pieces)), self.targets)

    @cached_property
    def is_special(self) -> np.ndarray:
        """bool [L]: <sep> and <cls>, which have a place in the order but are never predicted."""
        return np.isin(self.input_ids, (SEP, CLS))

    @cached_property
    def key_rank(self) -> np.ndarray:
        """int64 [K]: memory, then the tokens; a row sees the keys whose rank is not above its own (design of ranks:
        `permutation`)."""
        memory = np.full(self.mem_len, UNUSED_MEMORY, np.int64)
        memory[self.mem_len - self.mem_filled :] = FILLED_MEMORY
        return np.concatenate([memory, 2 * self.perm_rank.astype(np.int64)])

    @cached_property
    def content_sees(self) -> np.ndarray:
        """bool [L, K]: what each row of the content stream may see."""
        return self.key_rank <= 2 * self.perm_rank[:, None]

    @cached_property
    def query_sees(self) -> np.ndarray:
        """bool [T, K]: what each row of the query stream may see."""
        return self.key_rank <= 2 * self.perm_rank[self.targets, None] - 1


def view_window(source: BatchSource, tokenizer: Tokenizer, step: int, row: int) -> WindowView:
    """Row `row` of batch `step`."""
    rows = range(row, row + 1)
    compact = dataclasses.replace(source, data=dataclasses.replace(source.data, emit="compact", pair_loss="next"))
    visit = step // source.steps_per_block
    block, partner, _ = compact.assign(visit, rows)
    batch = {name: values[0] for name, values in compact.batch_at(step, rows).items()}
    targets = batch["target_positions"][batch["target_weights"] > 0]
    return WindowView(
        step=step,
        row=row,
        steps_per_block=source.steps_per_block,
        block=int(block[0]),
        partner=int(partner[0]),
        is_next=bool(batch["is_next"]),
        is_reversed=bool(batch["is_reversed"]),
        mem_len=source.mem_len,
        mem_filled=int(batch["mem_filled"]),
        reuse_len=source.data.reuse_len,
        num_predict=len(targets) if source.data.num_predict is None else source.data.num_predict,
        input_ids=batch["input_ids"],
        pieces=[tokenizer.pieces[i] for i in batch["input_ids"]],
        segment_ids=batch["segment_ids"],
        perm_rank=batch["perm_rank"],
        targets=targets,
    )
