"""View of one window of a batch: its parts, its targets in their order, the tokens read in place of targets, and the
keys that each row sees.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from data_pipelines.batches import BatchSource
from data_pipelines.objectives.base import Filling
from data_pipelines.tokenizer import CLS, SEP, Tokenizer
from xlnet_jax.settings.config import DataConfig

UNUSED_MEMORY = np.iinfo(np.int32).max
FILLED_MEMORY = np.iinfo(np.int32).min


@dataclass(frozen=True)
class Part:
    """Positions begin ... end - 1 of a window."""

    name: str
    segment: int
    begin: int
    end: int


@dataclass(frozen=True)
class WindowView:
    """One row of a batch. Dimensions as in dims.py; arrays over the real targets have P rows, without padding."""

    filling: Filling
    data: DataConfig
    step: int
    row: int
    steps_per_block: int
    block: int
    partner: int  # block of a random B
    is_next: bool  # B continues A, and comes after it
    is_reversed: bool
    mem_len: int
    mem_filled: int
    input_ids: np.ndarray  # int32 [L]
    pieces: list[str]  # L pieces, as they are read
    segment_ids: np.ndarray  # int32 [L]
    perm_rank: np.ndarray  # int32 [L]
    document_start: np.ndarray | None  # int32 [L]; None = documents see each other
    targets: np.ndarray  # int32 [P], positions, ascending
    predicted: dict[int, str]  # position of a target -> piece predicted there

    @property
    def reuse_len(self) -> int:
        return self.data.reuse_len

    @property
    def num_predict(self) -> int:
        return len(self.targets) if self.data.num_predict is None else self.data.num_predict

    @property
    def by_query_stream(self) -> bool:
        """True if the query stream predicts the targets, in their order."""
        return self.filling.stream == "query"

    @property
    def predicts_next(self) -> bool:
        """True if a row predicts the token after its own, so that no token of the window is hidden."""
        return self.filling.target == "next"

    @cached_property
    def parts(self) -> list[Part]:
        """Parts of the window from its first position to its last, as data.window says; none is empty."""
        length, reuse = len(self.pieces), self.reuse_len
        if self.data.window == "pairs":
            sep = int(np.flatnonzero(self.segment_ids == 0)[-1])
            after = [
                Part("A", 0, reuse, sep),
                Part("<sep>", 0, sep, sep + 1),
                Part("B", 1, sep + 1, length - 2),
                Part("<sep>", 1, length - 2, length - 1),
                Part("<cls>", 2, length - 1, length),
            ]
        elif self.data.window == "sentences":
            after = [
                Part("text", 0, reuse, length - 2),
                Part("<sep>", 0, length - 2, length - 1),
                Part("<cls>", 2, length - 1, length),
            ]
        else:
            after = [Part("text", 0, reuse, length)]
        return [part for part in (Part("reused", 0, 0, reuse), *after) if part.begin < part.end]

    @cached_property
    def order(self) -> list[int]:
        """Positions of the targets, in the order of prediction."""
        return self.targets[np.argsort(self.perm_rank[self.targets], kind="stable")].tolist()

    @cached_property
    def place(self) -> dict[int, int]:
        """Place of each target in the order, from 1, by its position."""
        return {position: place for place, position in enumerate(self.order, start=1)}

    @cached_property
    def is_target(self) -> np.ndarray:
        """Mask of the target positions, bool [L]."""
        return np.isin(np.arange(len(self.pieces)), self.targets)

    @cached_property
    def is_special(self) -> np.ndarray:
        """Mask of <sep> and <cls>, bool [L]: they have a place in the order but are never predicted."""
        return np.isin(self.input_ids, (SEP, CLS))

    @cached_property
    def key_rank(self) -> np.ndarray:
        """Ranks of the keys, int64 [K]: memory, then the tokens. A row sees the keys whose rank is not above its own
        (`permutation`)."""
        memory = np.full(self.mem_len, UNUSED_MEMORY, np.int64)
        memory[self.mem_len - self.mem_filled :] = FILLED_MEMORY
        return np.concatenate([memory, 2 * self.perm_rank.astype(np.int64)])

    @cached_property
    def document_begins(self) -> np.ndarray:
        """Positions at which a document begins inside the window, int64, ascending."""
        if self.document_start is None:
            return np.zeros(0, np.int64)
        return np.flatnonzero(self.document_start == np.arange(len(self.pieces)))

    @property
    def num_documents(self) -> int:
        """Number of documents that the window has tokens of, where they do not see each other."""
        return len(self.document_begins) + (self.document_begins[:1].tolist() != [0])

    def document_of(self, positions: np.ndarray) -> np.ndarray:
        """Return the number of the document of each position, from 1, in reading order."""
        before = self.num_documents - len(self.document_begins)  # 1 where a document goes on from before the window
        return np.searchsorted(self.document_begins, positions, side="right") + before

    def content_sees(self, positions: np.ndarray, keys: np.ndarray | None = None) -> np.ndarray:
        """Return bool [rows, keys]: True where the rows of the content stream at these positions may see a key. keys:
        indices of [0, K); None = all."""
        return self._sees(2 * self.perm_rank[positions], positions, keys)

    def query_sees(self, positions: np.ndarray, keys: np.ndarray | None = None) -> np.ndarray:
        """Return as `content_sees`, for rows of the query stream at these targets."""
        return self._sees(2 * self.perm_rank[positions] - 1, positions, keys)

    @cached_property
    def prediction_sees(self) -> np.ndarray:
        """Mask of the keys that the rows which predict the targets may see, bool [P, K]."""
        return (self.query_sees if self.by_query_stream else self.content_sees)(self.targets)

    def _sees(self, rank: np.ndarray, positions: np.ndarray, keys: np.ndarray | None) -> np.ndarray:
        keys = np.arange(len(self.key_rank)) if keys is None else keys
        sees = self.key_rank[keys] <= rank[:, None]
        if self.document_start is None:
            return sees
        place = keys - self.mem_len
        ends = np.append(self.document_begins, len(self.pieces))
        end = ends[np.searchsorted(self.document_begins, positions, side="right")]
        return sees & (place >= self.document_start[positions, None]) & (place < end[:, None])


def view_window(source: BatchSource, tokenizer: Tokenizer, step: int, row: int) -> WindowView:
    """Return the view of row `row` of batch `step`."""
    rows = range(row, row + 1)
    data = dataclasses.replace(source.data, emit="compact")
    if data.window == "pairs" and data.pair_loss == "none":
        data = dataclasses.replace(data, pair_loss="next")  # so that is_next says where B comes from
    compact = dataclasses.replace(source, data=data)
    visit = step // source.steps_per_block
    block, partner, _ = compact.assign(visit, rows)
    batch = {name: values[0] for name, values in compact.batch_at(step, rows).items()}
    real = batch["target_weights"] > 0
    targets = batch["target_positions"][real]
    return WindowView(
        filling=source.filling,
        data=source.data,
        step=step,
        row=row,
        steps_per_block=source.steps_per_block,
        block=int(block[0]),
        partner=int(partner[0]),
        is_next=bool(batch.get("is_next")),
        is_reversed=bool(batch["is_reversed"]),
        mem_len=source.mem_len,
        mem_filled=int(batch["mem_filled"]),
        input_ids=batch["input_ids"],
        pieces=[tokenizer.pieces[i] for i in batch["input_ids"]],
        segment_ids=batch.get("segment_ids", np.zeros_like(batch["input_ids"])),
        perm_rank=batch["perm_rank"],
        document_start=batch.get("document_start"),
        targets=targets,
        predicted={p: tokenizer.pieces[i] for p, i in zip(targets.tolist(), batch["target_ids"][real], strict=True)},
    )
