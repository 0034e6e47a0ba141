"""Define the forward kernel. It computes the attention output of a tile of rows and the softmax statistics for the
backward kernel.

With w = exp(score - maximum) and s = sum of w of a row, and m the dropout mask scaled by 1 / (1 - rate):

    output = sum over keys of m w value / s

A window that does not fit the chip is divided into blocks of keys. The outputs o of two blocks, not yet divided by the
sums s of their softmax with maxima x, are joined as (Milakov and Gimelshein 2018, section 3)

    x = max(x1, x2)     s = s1 2^(x1 - x) + s2 2^(x2 - x)     o = o1 2^(x1 - x) + o2 2^(x2 - x)
"""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from xlnet_jax.kernels.arguments import MASKED
from xlnet_jax.kernels.tpu.grid import Place, call_at, compiler_params, grid_of
from xlnet_jax.kernels.tpu.operands import TpuOperands, estimate_cost, operand_blocks, row_blocks, softmax_blocks
from xlnet_jax.kernels.tpu.scores import (
    STRIP,
    ScoreStages,
    Scratch,
    Step,
    add_to,
    chunks,
    head_scratch,
    join_heads_TH,
    load,
    packed,
    product,
    read_keys,
    run_stages,
    scratch_shapes,
    store,
)
from xlnet_jax.kernels.tpu.tiles import LANES, ROWS, TpuSizes

LEAST = 4 * MASKED
"""maximum of no scores"""


class ForwardScratch(NamedTuple):
    """Scratch memory of the forward kernel besides `Scratch`. Tuples have an item for each head in flight."""

    dropped: tuple[Any, ...]  # [T, K]: dropout(w); in float32 the scores of Scratch are reused
    softmax_TS: Any  # float32; columns: maximum and sum of each head of the group
    softmax_ST: Any  # the same, transposed
    maximum: tuple[Any, ...]  # float32 [T, 128], the same in all lanes
    value_HK: Any
    # Of a long window: float32 results of the blocks of keys so far, for the rows of a block of positions and all query
    # rows.
    joined_HT: Any = None  # output, not divided by the sums
    joined_ST: Any = None  # as `softmax_ST`


def forward(whole: TpuSizes, operands: TpuOperands, interpret: Any) -> tuple[jnp.ndarray, jnp.ndarray]:
    """Return the output [B, T, N x H], and float32 [B, softmax rows of each group, T] (`TpuSizes.softmax_rows`)."""
    batch, query_BTH, sizes = len(operands.query_BTH), operands.query_BTH, whole.of_block
    softmax_BST = jax.ShapeDtypeStruct((batch, sizes.num_groups * sizes.softmax_rows, whole.padded_rows), jnp.float32)
    memory = ForwardScratch(
        head_scratch(sizes, sizes.padded_keys, query_BTH.dtype, query_BTH.dtype != jnp.float32),
        pltpu.VMEM((ROWS, sizes.softmax_rows), jnp.float32),
        pltpu.VMEM((sizes.softmax_rows, ROWS), jnp.float32),
        head_scratch(sizes, LANES, jnp.float32),
        packed(sizes.width, sizes.padded_keys, query_BTH.dtype),
    )
    if not whole.fits:
        memory = memory._replace(
            joined_HT=pltpu.VMEM((sizes.width, sizes.padded_rows), jnp.float32),
            joined_ST=pltpu.VMEM((sizes.softmax_rows, sizes.padded_rows), jnp.float32),
        )
    return pl.pallas_call(
        functools.partial(_forward_kernel, whole),
        grid=grid_of(whole, batch),
        in_specs=[operand_blocks(whole, operands)],
        out_specs=(row_blocks(whole, is_output=True), softmax_blocks(whole, is_output=True)),
        out_shape=(jax.ShapeDtypeStruct(query_BTH.shape, query_BTH.dtype), softmax_BST),
        scratch_shapes=[scratch_shapes(sizes), memory],  # type: ignore[list-item]
        compiler_params=compiler_params(whole),
        cost_estimate=estimate_cost(whole, operands, (query_BTH, softmax_BST), products=3),
        interpret=interpret,
        name="fused_attention_forward",
    )(operands)


def _forward_kernel(
    whole: TpuSizes, refs: TpuOperands, read_BTH: Any, softmax_BST: Any, scratch: Scratch, memory: ForwardScratch
) -> None:
    place, sizes = Place.here(), whole.of_block
    # Weights in float32 overwrite the scores.
    memory = memory._replace(dropped=memory.dropped or scratch.content)

    @pl.when(place.tile == 0)
    def read() -> None:
        read_keys(refs, scratch)
        store(memory.value_HK, 0, refs.value_BKH[0].T)

    if not whole.fits:
        pl.when(place.is_first(whole))(lambda: _clear(place, memory))

    def attend(is_query: bool) -> None:
        stages = OutputStages(whole, place, is_query, refs, scratch, memory)
        stages.read_integers()
        reads_HT = stages.compute_HT()
        if not whole.fits:
            stages.join(reads_HT)
            return
        softmax_ST = memory.softmax_ST[...]
        read_TH = _divide_TH(sizes, reads_HT, softmax_ST[:, : stages.rows])
        read_BTH[0, : stages.rows], softmax_BST[0] = read_TH.astype(read_BTH.dtype), softmax_ST

    call_at(whole, place, refs, attend)
    if whole.fits:
        return

    @pl.when(place.is_last(whole))
    def finish() -> None:
        rows = place.rows(ROWS)
        reads_HT = [memory.joined_HT[sizes.lanes(head), rows] for head in range(sizes.heads_in_group)]
        softmax_ST = memory.joined_ST[:, rows]
        read_BTH[0] = _divide_TH(sizes, reads_HT, softmax_ST).astype(read_BTH.dtype)
        softmax_BST[0] = softmax_ST


def _divide_TH(sizes: TpuSizes, reads_HT: list[jnp.ndarray], softmax_ST: jnp.ndarray) -> jnp.ndarray:
    """Divide the output of each head by the sum of its softmax, and join the heads."""
    inverse_ST = 1.0 / ((1.0 - sizes.dropout_rate) * softmax_ST)
    return join_heads_TH(
        sizes, [read_HT * inverse_ST[2 * head + 1 : 2 * head + 2] for head, read_HT in enumerate(reads_HT)]
    )


def _clear(place: Place, memory: ForwardScratch) -> None:
    rows = place.rows(ROWS)
    memory.joined_HT[:, rows] = jnp.zeros_like(memory.joined_HT[:, rows])
    row_S1 = jax.lax.broadcasted_iota(jnp.int32, (len(memory.joined_ST), 1), 0)
    memory.joined_ST[:, rows] = jnp.broadcast_to(jnp.where(row_S1 % 2 == 0, LEAST, 0.0), (len(row_S1), ROWS))


@dataclass(frozen=True)
class OutputStages(ScoreStages):
    """Stages that compute the output of a tile."""

    memory: ForwardScratch

    def compute_HT(self) -> list[jnp.ndarray]:
        """Return each head's sums of the weighted values; write the softmax statistics."""
        rows = self.read_rows(self.sizes.scale_2)
        reads: dict[int, jnp.ndarray] = {}
        run_stages(
            self.sizes,
            [
                functools.partial(self.product_steps, rows),
                self.shift_steps,
                self.softmax_steps,
                functools.partial(self.read_steps, reads),
            ],
        )
        return list(reads.values())

    def softmax_steps(self, head: int) -> list[Step]:
        """Return the steps that store the dropped weights of a head."""
        return self.strip_steps(functools.partial(self.score, head), functools.partial(self.weigh, head))

    def score(self, head: int, start: Any) -> None:
        """Store the scores of a strip and their maximum."""
        here, i = pl.ds(start, STRIP), self.buffer(head)
        score_TK = self.scores_TK(head, here)
        self.scratch.content[i][here] = score_TK
        maximum_T1 = score_TK.max(1, keepdims=True)
        self.memory.softmax_TS[here, 2 * head : 2 * head + 1] = maximum_T1
        self.memory.maximum[i][here] = jnp.broadcast_to(maximum_T1, (STRIP, LANES))

    def weigh(self, head: int, start: Any) -> None:
        """Store the weights of a strip and their sum."""
        here, i = pl.ds(start, STRIP), self.buffer(head)
        weights_TK = jnp.exp2(self.scratch.content[i][here] - self.widen_TK(self.memory.maximum[i], here))
        self.memory.softmax_TS[here, 2 * head + 1 : 2 * head + 2] = weights_TK.sum(1, keepdims=True)
        (kept_TK,) = self.drop_TK(head, here, weights_TK)
        store(self.memory.dropped[i], start, kept_TK.astype(self.operand))

    def read_steps(self, reads: dict[int, jnp.ndarray], head: int) -> list[Step]:
        """Return the steps that add a head's sums of weighted values to `reads`."""
        dropped_TK = self.memory.dropped[self.buffer(head)]

        def transpose_softmax() -> None:
            self.memory.softmax_ST[...] = self.memory.softmax_TS[...].T

        def multiply_chunk(chunk: Any) -> None:
            value_HK = self.load_head_HK(self.memory.value_HK, head, chunk)
            add_to(reads, head, product(value_HK, load(dropped_TK, 0, self.rows, chunk), 1, 1))

        steps = [functools.partial(multiply_chunk, chunk) for chunk in chunks(self.sizes.padded_keys)]
        is_last = head == self.sizes.heads_in_group - 1
        return [transpose_softmax] * is_last + steps

    def join(self, reads_HT: list[jnp.ndarray]) -> None:
        """Join the results of another block of keys to those of the rows that are here."""
        memory, rows, is_here_1T = self.memory, self.place.rows(self.rows), self.is_here_1T(self.rows)
        joined_ST, softmax_ST = memory.joined_ST, memory.softmax_ST[...]
        for head, read_HT in enumerate(reads_HT):
            of_maximum, of_sum = (slice(row, row + 1) for row in (2 * head, 2 * head + 1))
            old, new = joined_ST[of_maximum, rows], softmax_ST[of_maximum, : self.rows]
            maximum = jnp.where(is_here_1T, jnp.maximum(old, new), old)
            of_old, of_new = jnp.exp2(old - maximum), jnp.where(is_here_1T, jnp.exp2(new - maximum), 0.0)
            joined_ST[of_maximum, rows] = maximum
            joined_ST[of_sum, rows] = joined_ST[of_sum, rows] * of_old + softmax_ST[of_sum, : self.rows] * of_new
            there = (self.sizes.lanes(head), rows)
            memory.joined_HT[there] = memory.joined_HT[there] * of_old + read_HT * of_new
