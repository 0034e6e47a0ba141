"""Batches addressed by step: batch t is a pure function of (corpus, settings, seed, t), for any subset of its rows.

A *visit* is one pass of one row over one block. It takes steps_per_block steps, forwards or backwards, and memory
carries over from window to window. Blocks, directions and partners are drawn from (seed, visit, row), cuts and targets
from (seed, step, row). So a run can resume at any step at no cost, and no host needs the rows of another. With
data.masking static, everything except the blocks is drawn from (seed, copy, block, window of the block), so a text is
the same at every visit; with data.static_masks, epoch e reads copy e modulo their number. Held-out text is read in
order, each block once, and is drawn as copy 0: its windows depend neither on the batch size nor on the run's seed and
weights. From a corpus to batches on a mesh:

    source = BatchSource(
        Corpus(folder), "train", tokenizer.is_word_start, config.data, config.model.mem_len, seed, plm.FILLING
    )
    put = sharding.batch_to_mesh(mesh, config.data.batch_size)  # of xlnet_jax.training
    for batch in map(put, source.iterate(start, stop, sharding.process_rows(mesh, config.data.batch_size))):
        ...
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from threading import Lock
from typing import Any

import numpy as np

from data_pipelines import permutation, windows
from data_pipelines.corpus import Corpus, SplitName, Start
from data_pipelines.ids import IdCorpus
from data_pipelines.mixture import Mixture
from data_pipelines.objectives import HELD_OUT, FieldTables, Filling, Windows, batch_spec
from data_pipelines.stateless import Purpose, uniforms
from data_pipelines.windows import documents_of, first_tokens
from xlnet_jax.dims import Batch
from xlnet_jax.errors import InputError
from xlnet_jax.settings.config import DataConfig
from xlnet_jax.storage.quiet import tensorflow

Rows = Sequence[int] | np.ndarray  # numbers of rows in the global batch, ascending
HELD_OUT_SEED = 2**31 - 1  # the same for all runs, so that all have the same held-out windows and targets


@dataclass(frozen=True)
class BatchSource:
    """Batches of one split of a corpus, with `batch_size` rows each. mem_len: as in ModelConfig.

    Held-out batches have `row_weights`: in the last batches, rows without a block have weight 0. max_windows: maximum
    number of held-out windows, rounded up to whole batches; None = all. Skipped blocks are spread evenly over the text.
    """

    corpus: Corpus | IdCorpus
    split: SplitName
    is_word_start: np.ndarray  # bool [V]
    data: DataConfig
    mem_len: int
    seed: int  # of training
    filling: Filling
    max_windows: int | None = None
    record_fields: FieldTables | None = None

    def __post_init__(self) -> None:
        of_records = self._records
        if bool(of_records) != (self.data.window == "records") or of_records.get("seq_len", self.data.seq_len) != (
            self.data.seq_len
        ):
            holds = f"records in windows of {of_records['seq_len']} tokens" if of_records else "running text"
            raise InputError(
                f"corpus {self.corpus.folder}: it holds {holds}, not what `data.window` {self.data.window} with "
                f"`data.seq_len` {self.data.seq_len} reads: give these, or prepare the text again"
            )
        if self.steps_per_block < 1:
            raise InputError(
                f"corpus {self.corpus.folder}: its blocks of {self.corpus.block_len} tokens cannot hold a window: "
                f"`data.seq_len` {self.data.seq_len} with `data.reuse_len` {self.data.reuse_len} needs "
                f"{windows.block_len(self.data)} for `data.windows_per_block` {self.data.windows_per_block}"
            )
        if self.split == "train":
            self._check_sources()
        blocks = self.corpus.num_blocks(self.split)
        if self.split == "train" and blocks < self.data.batch_size:
            raise InputError(
                f"corpus {self.corpus.folder}: {blocks} training blocks of {self.corpus.block_len} tokens are fewer "
                f"than the {self.data.batch_size} rows of a batch: lower `data.batch_size` or "
                "`data.windows_per_block`, or give more text"
            )

    def _check_sources(self) -> None:
        corpus, weights = self.corpus, self.data.weights
        names = corpus.manifest.sources
        if weights and len(weights) != len(names):
            raise InputError(
                "data.weights",
                ", ".join(map(str, weights)),
                f": {len(weights)} for the {len(names)} sources of corpus {corpus.folder}: {', '.join(names)}",
            )
        empty = [n for n, b in zip(names, corpus.manifest.splits["train"].source_blocks, strict=True) if not b]
        if empty and (weights or corpus.manifest.weights):
            raise InputError(
                f"corpus {corpus.folder}: the source {empty[0]} has less training text than one block of "
                f"{corpus.block_len} tokens, so it cannot have a weight: give it more text, or remove it"
            )

    @cached_property
    def steps_per_block(self) -> int:
        return windows.steps_per_block(self.corpus.block_len, self.data)

    @cached_property
    def steps_per_epoch(self) -> int:
        """Number of steps in an epoch: they read as many blocks as the split has (each block once, without weights).
        For held-out text: the number of steps that read it, or `max_windows` of it, once."""
        blocks, rows = self.corpus.num_blocks(self.split), self.data.batch_size
        if not self.is_held_out:
            return blocks // rows * self.steps_per_block
        steps = -(-blocks // rows) * self.steps_per_block
        return steps if self.max_windows is None else min(steps, -(-self.max_windows // rows))

    @property
    def is_held_out(self) -> bool:
        return self.split == "validation"

    @cached_property
    def _is_last_only(self) -> bool:
        """True for held-out records of which only the last symbol was held out."""
        return self.is_held_out and bool(self._records.get("holds_out_last"))

    @cached_property
    def _records(self) -> dict[str, Any]:
        """How the records of the corpus were cut into windows; {} = it holds running text."""
        return dict(self.corpus.manifest.made_from.get("records") or {})

    @cached_property
    def _visits(self) -> int:
        """Number of visits in an epoch. `max_windows` can cut the last one short."""
        return -(-self.steps_per_epoch // self.steps_per_block)

    @cached_property
    def _blocks_read(self) -> int:
        return min(self.corpus.num_blocks(self.split), self._visits * self.data.batch_size)

    @cached_property
    def _mixture(self) -> Mixture:
        manifest = self.corpus.manifest
        weights = () if self.is_held_out else self.data.weights or manifest.weights
        return Mixture(manifest.splits[self.split].source_blocks, weights, self.seed)

    def read_visit(self, visit: int, rows: Rows) -> Batch:
        """Read the blocks of `rows` (numbers in the global batch, ascending) for one visit, in a single read.

        Returns arrays in each row's reading order. tokens: int32 [B, S]. cuts: bool [B, S], True if the text may be cut
        into A and B before this token. partner_tokens, partner_cuts: the same for the blocks of random Bs; no rows if
        windows have no B. is_reversed: bool [B]. blocks, copies: int64 [B], numbers of the blocks and of what is drawn
        for them. documents: int32 [B, S], index of
        the first token of each token's document; no rows without data.pack.
        """
        own, partner, is_reversed = self.assign(visit, rows)
        blocks = np.concatenate([own, partner]) if self.data.window == "pairs" else own
        tokens, starts = self.corpus.read(self.split, blocks)
        flip = np.resize(is_reversed, len(blocks))[:, None]  # a partner block has the direction of its row
        tokens = np.where(flip, tokens[:, ::-1], tokens)
        # Reversing turns a cut before a token into a cut before its neighbor.
        starts = np.where(flip, np.roll(starts[:, ::-1], 1, axis=1), starts)
        cuts, n = starts > 0, len(rows)
        documents = first_tokens(starts[: n * self.data.pack] == Start.DOCUMENT)
        return {
            "tokens": tokens[:n],
            "cuts": cuts[:n],
            "partner_tokens": tokens[n:],
            "partner_cuts": cuts[n:],
            "is_reversed": is_reversed,
            "blocks": own,
            "copies": self._copies(visit, rows),
            "documents": documents,
        }

    def assign(self, visit: int, rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (block, partner block, True if read backwards) for each row."""
        if self.is_held_out:
            # Rows without a block read some block again, with weight 0.
            own = self._place(visit, rows) % self._blocks_read
            own = own * self.corpus.num_blocks(self.split) // self._blocks_read
        else:
            own = self._mixture.own_blocks(visit * self.data.batch_size + np.asarray(rows))
        draw = self._uniforms(Purpose.VISIT, 2, (0, self._copies(visit, rows), own), (visit, rows))
        return own, self._mixture.partners(own, draw[:, 1]), (draw[:, 0] < 0.5) & self.data.bidirectional

    def batch(self, visit: Batch, step: int, rows: Rows) -> Batch:
        """Return the rows of batch `step`, made from the blocks of their visit, in the form of data.emit."""
        data, (visit_number, index) = self.data, divmod(step, self.steps_per_block)

        def draw(purpose: Purpose, width: int) -> np.ndarray:
            return self._uniforms(purpose, width, (index, visit["copies"], visit["blocks"]), (step, rows))

        begin = index * windows.advance(data)
        if data.window == "pairs":
            arrays = windows.cut_windows(visit, begin, draw(Purpose.CUTS, windows.DRAWS), data)
        else:
            arrays = windows.cut_text(visit["tokens"], begin, data)
        arrays["is_reversed"] = visit["is_reversed"]
        if data.pack:
            arrays |= documents_of(visit["documents"], begin, data)
        if self.record_fields:
            arrays["segment_ids"] = self.record_fields.segment_V[arrays["input_ids"]]
        is_last_only = self._is_last_only
        if is_last_only and data.num_predict is None:
            data = replace(data, targets="all")
        # They move by one row in each step: a row does not stay in its stratum.
        strata = None if self._draws_by_text else (step + np.asarray(rows)) % data.batch_size
        filled = self.filling.fill(
            Windows(
                arrays, self.is_word_start, draw, data, self.mem_len > 0, self.record_fields, self.is_held_out,
                is_last_only, strata,
            )
        )  # fmt: skip
        filled["is_reversed"] = arrays["is_reversed"]
        filled["mem_filled"] = np.full(len(rows), min(self.mem_len, index * data.reuse_len), np.int32)
        if data.pair_loss != "none":
            filled["is_next"] = arrays["is_next"]
        if data.pack:
            filled["document_start"] = arrays["document_start"]
        if self.is_held_out:
            has_block = self._place(visit_number, rows) < self._blocks_read
            filled["row_weights"] = has_block.astype(np.float32)
            filled["target_weights"] = filled["target_weights"] * filled["row_weights"][:, None]
        return permutation.to_dense(filled) if data.emit == "dense" else filled

    def _place(self, visit: int, rows: Rows) -> np.ndarray:
        """Return the position of each row in held-out text, which restarts after an epoch: int [B]."""
        return visit % self._visits * self.data.batch_size + np.asarray(rows)

    def _copies(self, visit: int, rows: Rows) -> np.ndarray:
        """Return which of data.static_masks draws each row reads: int64 [B], its epoch modulo their number."""
        if self.is_held_out or self.data.static_masks == 1:
            return np.zeros(len(rows), np.int64)
        return self._mixture.epochs(visit * self.data.batch_size + np.asarray(rows)) % self.data.static_masks

    @property
    def _draws_by_text(self) -> bool:
        """True if what is drawn for a text is the same at every visit."""
        return self.is_held_out or self.data.masking == "static"

    def _uniforms(
        self, purpose: Purpose, width: int, by_text: tuple[int, np.ndarray, np.ndarray], by_time: tuple[int, Rows]
    ) -> np.ndarray:
        """Draw [B, width] from (window, copies, blocks) if a copy of a text is the same at every visit, else from
        (visit or step, rows)."""
        if not self._draws_by_text:
            step, rows = by_time
            return uniforms(self.seed, purpose, step, rows, width)
        seed, (window, copies, blocks) = HELD_OUT_SEED if self.is_held_out else self.seed, by_text
        drawn = np.empty((len(blocks), width))
        for copy in np.unique(copies).tolist():
            mine = copies == copy
            drawn[mine] = uniforms(seed, purpose, window + copy * self.steps_per_block, blocks[mine], width)
        return drawn

    def batch_at(self, step: int, rows: Rows | None = None) -> Batch:
        """Return batch `step`, equal to the one that `iterate` yields."""
        rows = range(self.data.batch_size) if rows is None else rows
        return self.batch(self.read_visit(step // self.steps_per_block, rows), step, rows)

    def iterate(self, start: int, stop: int, rows: Rows | None = None) -> Iterator[Batch]:
        """Yield the batches start ... stop - 1, made ahead of time by tf.data. Starting late costs no extra."""
        tf = tensorflow()
        rows = range(self.data.batch_size) if rows is None else rows
        spec = batch_spec(self.filling.fields, self.data) | (HELD_OUT if self.is_held_out else {})
        read_visit, reading = lru_cache(maxsize=2)(partial(self.read_visit, rows=rows)), Lock()
        mistakes: list[InputError] = []  # tf.data would convert them to its own errors

        def make(step: np.ndarray) -> list[np.ndarray]:
            try:
                with reading:  # or two threads could read the same visit
                    visit = read_visit(int(step) // self.steps_per_block)
                batch = self.batch(visit, int(step), rows)
            except InputError as mistake:
                mistakes.append(mistake)
                raise
            return [batch[name] for name in spec]

        # Autograph has nothing to convert here, and would write a converted copy to the temporary folder.
        @tf.autograph.experimental.do_not_convert
        def make_op(step: Any) -> Any:
            return tf.numpy_function(make, [step], [field.dtype for field in spec.values()], stateful=False)

        batches = tf.data.Dataset.range(start, stop).map(make_op, num_parallel_calls=2, deterministic=True)
        try:
            for arrays in batches.prefetch(4).as_numpy_iterator():
                yield dict(zip(spec, arrays, strict=True))
        except Exception:
            if mistakes:
                raise mistakes[0] from None
            raise
