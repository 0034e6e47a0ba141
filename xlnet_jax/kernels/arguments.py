"""Define the arguments of an attention call and what all implementations share.

An implementation takes one `AttentionInputs` and returns float [B, N, T, H]. It computes masks, segment comparisons and
dropout masks itself from vectors. No argument has the shape [B, T, K] except the dense mask of dense batches.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from xlnet_jax.kernels.dropout import AttentionDropout


class Relations(NamedTuple):
    """Which keys each row may attend to, which are in its segment, and how far away they are.

    A row sees a key if all given conditions hold: the key's rank is at most that of the row (models/masks.py), its
    position is within the bounds of the row, and the mask allows it. At least one condition is given. All layers of a
    network share these vectors.

    In a window the keys are in order, at -M to L - 1. Content rows come first, if there are any, in order from 0. The
    last P rows are query rows, at any positions from 0 to L - 1.
    """

    row_rank_BT: Any = None  # int32
    key_rank_BK: Any = None  # int32
    row_first_BT: Any = None  # int32, lowest position that the row sees
    row_last_BT: Any = None  # int32, highest position that the row sees
    key_position_BK: Any = None  # int32, memory below 0
    mask_BTK: Any = None  # bool, True = may attend
    row_segment_BT: Any = None  # int32; None = no segment encodings
    key_segment_BK: Any = None  # int32
    query_position_BP: Any = None  # int32; None = no query rows
    is_reversed_B: Any = None  # bool, True = the example is read backwards; None = none is

    @property
    def num_targets(self) -> int:
        """Number of query rows, P."""
        return 0 if self.query_position_BP is None else self.query_position_BP.shape[1]

    @property
    def num_rows(self) -> int:
        """Number of rows, T."""
        by_row = (self.row_rank_BT, self.row_first_BT, self.mask_BTK)
        return next(x.shape[1] for x in by_row if x is not None)

    def visible_BTK(self) -> jnp.ndarray:
        """Return bool [B, T, K]: True where a row may attend to a key."""
        conditions = []
        if self.row_rank_BT is not None:
            conditions.append(self.key_rank_BK[:, None, :] <= self.row_rank_BT[:, :, None])
        if self.row_first_BT is not None:
            key_B1K = self.key_position_BK[:, None, :]
            conditions.append((self.row_first_BT[:, :, None] <= key_B1K) & (key_B1K <= self.row_last_BT[:, :, None]))
        if self.mask_BTK is not None:
            conditions.append(self.mask_BTK)
        return functools.reduce(jnp.logical_and, conditions)

    def within(self, first_BT: jnp.ndarray, last_BT: jnp.ndarray) -> "Relations":
        """Return these relations with rows limited to keys within these bounds: int32 positions, both inclusive."""
        if self.row_first_BT is not None:
            first_BT = jnp.maximum(self.row_first_BT, first_BT)
            last_BT = jnp.minimum(self.row_last_BT, last_BT)
        return self._replace(row_first_BT=first_BT, row_last_BT=last_BT)

    def of_rows(self, take: Callable[[jnp.ndarray], jnp.ndarray]) -> "Relations":
        """Return the relations of some rows, with the same query positions. take: selects rows of an array [B, T,
        …]."""
        by_row = {name: x for name, x in self._asdict().items() if "T" in name.rpartition("_")[2] and x is not None}
        return self._replace(**{name: take(x) for name, x in by_row.items()})


class AttentionInputs(NamedTuple):
    """Arguments of one attention call. A term that is None does not contribute to the scores.

    Column j of the position keys (r of Transformer-XL, section 3.3) belongs to the distance K - j from a row back to a
    key, for j from 0 to R - 1, with R = K + L.
    """

    query_BNTH: Any
    key_BNKH: Any
    value_BNKH: Any
    relations: Relations
    biases_3NH: Any = None  # float32: r_w, r_r and r_s
    position_key_2NRH: Any = None  # float32; sine and cosine part; forwards = their sum, backwards = cosine - sine
    segment_key_2NH: Any = None  # float; [0] for keys in the row's segment, [1] for keys in another
    dropout: AttentionDropout | None = None

    @property
    def num_places(self) -> int:
        """Number of possible positions of rows, L; without relative positions, the number of rows."""
        if self.position_key_2NRH is None:
            return self.query_BNTH.shape[2]
        return self.position_key_2NRH.shape[2] - self.key_BNKH.shape[2]

    def dropout_numbers(self) -> tuple[jnp.ndarray, jnp.ndarray]:
        """Return the numbers of rows [B, T] and keys [B, K] from which dropout masks are computed, int32."""
        assert self.dropout is not None
        (batch, _, rows, _), keys = self.query_BNTH.shape, self.key_BNKH.shape[2]
        row_T, key_K = self.dropout.number_rows(rows), jnp.arange(keys)
        return jnp.broadcast_to(row_T[None], (batch, rows)), jnp.broadcast_to(key_K[None], (batch, keys))


Implementation: TypeAlias = Callable[[AttentionInputs], jnp.ndarray]


def numbers_of(inputs: AttentionInputs) -> dict[str, Any]:
    """Return the arguments of a call that have gradients, by name, without None."""
    names = ("query_BNTH", "key_BNKH", "value_BNKH", "biases_3NH", "position_key_2NRH", "segment_key_2NH")
    return {name: x for name in names if (x := getattr(inputs, name)) is not None}


WIDEST = 128
"""Maximum head width of fused kernels: wider heads do not fit the lanes of a TPU or the registers of a GPU."""


def find_obstacle(inputs: AttentionInputs) -> str | None:
    """Return a clause that says why no fused kernel supports these arguments on any device; None if one may."""
    if inputs.relations.mask_BTK is not None:
        return "the mask is dense, and the kernel computes visibility from ranks and spans"
    if WIDEST % inputs.query_BNTH.shape[-1]:
        return f"heads are {inputs.query_BNTH.shape[-1]} wide, and the kernel needs a width that divides {WIDEST}"
    if inputs.query_BNTH.dtype not in (jnp.bfloat16, jnp.float32):
        return f"queries are {inputs.query_BNTH.dtype}, and the kernel supports only bfloat16 and float32"
    return None


MASKED = -1e30
"""Attention bias of a key that a row may not see. It is finite because some rows see no key: a softmax over only -inf
would have the gradient NaN."""


einsum_float32 = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
"""einsum that accumulates and returns float32 for operands of any type"""


def like(array: Any, dtype: Any = None) -> Any:
    """Return the shape and dtype of an array, or another dtype; None for None."""
    return None if array is None else jax.ShapeDtypeStruct(array.shape, dtype or array.dtype)


def round_up(size: int, multiple: int) -> int:
    """Return the smallest multiple that is at least `size`."""
    return -(-size // multiple) * multiple


def pad(x: jnp.ndarray, axis: int, after: int, before: int = 0, value: float = 0) -> jnp.ndarray:
    """Return an array padded along one axis."""
    if not before and not after:
        return x
    widths = [(0, 0)] * x.ndim
    widths[axis] = (before, after)
    return jnp.pad(x, widths, constant_values=value)
