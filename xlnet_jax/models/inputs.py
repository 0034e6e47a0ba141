"""Inputs of the network, made from batches in compact or dense form, or from plain text."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp

from xlnet_jax.dims import CLS_SEGMENT
from xlnet_jax.errors import InputError
from xlnet_jax.kernels.arguments import Relations
from xlnet_jax.models.checks import check_arrays
from xlnet_jax.models.masks import document_bounds, mask_relations, rank_relations
from xlnet_jax.settings.config import ModelConfig


class Inputs(NamedTuple):
    """Inputs of the network. T = L + P rows: the content stream, then the query stream at target_positions."""

    input_ids_BL: jnp.ndarray  # int32
    segment_ids_BL: jnp.ndarray | None  # int32; None = no segment encodings
    relations: Relations  # which of the K keys each of the T rows sees (models/masks.py)
    is_reversed_B: jnp.ndarray  # bool
    target_positions_BP: jnp.ndarray | None  # int32; None = no query stream
    memory_BM: jnp.ndarray  # bool, memory slots in use; unused ones read as zeros
    positions_BL: jnp.ndarray  # int32, positions in the window or document from 0, counting real tokens only
    example_B: jnp.ndarray  # int32, index of each example in the global batch; dropout masks depend on it
    predicted_BP: jnp.ndarray | None = None  # bool, query rows that start from the mask embedding; None = all


def check_inputs(inputs: Any, mems_ZBMD: Any, config: ModelConfig) -> None:
    """Raise InputError for inputs and memory (None = none) that do not fit the network or each other."""
    if not isinstance(inputs, Inputs):
        why = f"is of type {type(inputs).__name__}: make it with text_inputs, dense_inputs or compact_inputs"
        raise InputError("inputs", "", f"{why} (xlnet_jax.models.inputs)")
    sizes = {"V": config.vocab_size, "Z": config.num_layers, "D": config.d_model}
    if config.positions == "learned":  # segments are rows of a table, not only equal or not
        sizes["segments"] = max(config.num_segments, CLS_SEGMENT + 1)
    fields = inputs._asdict()
    relations = fields.pop("relations")
    check_arrays(sizes, **fields, mems_ZBMD=mems_ZBMD)
    (batch, length), mem_len = inputs.input_ids_BL.shape, inputs.memory_BM.shape[1]
    targets = 0 if inputs.target_positions_BP is None else inputs.target_positions_BP.shape[1]
    check_arrays({"B": batch, "K": mem_len + length, "T": length + targets}, **relations._asdict())


def compact_inputs(
    input_ids_BL: jnp.ndarray,
    *,
    segment_ids_BL: jnp.ndarray | None = None,
    perm_rank_BL: jnp.ndarray | None = None,
    target_positions_BP: jnp.ndarray | None = None,
    is_reversed_B: jnp.ndarray | None = None,
    memory_BM: jnp.ndarray | None = None,
    attention_mask_BL: jnp.ndarray | None = None,
    document_start_BL: jnp.ndarray | None = None,
    attend_empty_memory: bool = False,
) -> Inputs:
    """Return inputs from ranks and positions, the compact form (data_pipelines/objectives/__init__.py).

    perm_rank: None = all tokens see each other; target_positions: None = no query stream; is_reversed: None = none;
    memory: bool, slots in use, None = no memory; attention_mask: 1 = real token, None = all are real; document_start:
    as in `document_bounds`: rows see only their own document, and positions count from its start, None = the window is
    one text; attend_empty_memory: rows also attend to unused slots, as zeros. Raises InputError for arrays that do not
    fit together.
    """
    check_arrays(
        input_ids_BL=input_ids_BL,
        segment_ids_BL=segment_ids_BL,
        perm_rank_BL=perm_rank_BL,
        target_positions_BP=target_positions_BP,
        is_reversed_B=is_reversed_B,
        memory_BM=memory_BM,
        attention_mask_BL=attention_mask_BL,
        document_start_BL=document_start_BL,
    )
    batch = input_ids_BL.shape[0]
    rank_BL = jnp.zeros_like(input_ids_BL) if perm_rank_BL is None else perm_rank_BL
    memory_BM = jnp.zeros((batch, 0), bool) if memory_BM is None else memory_BM.astype(bool)
    attended_BM = jnp.ones_like(memory_BM) if attend_empty_memory else memory_BM
    relations = rank_relations(rank_BL, target_positions_BP, attended_BM, attention_mask_BL)
    positions_BL = _positions_BL(input_ids_BL.shape, attention_mask_BL)
    if document_start_BL is not None:
        relations = relations.within(*document_bounds(document_start_BL, target_positions_BP))
        positions_BL = positions_BL - jnp.take_along_axis(positions_BL, jnp.maximum(document_start_BL, 0), axis=1)
    return Inputs(
        input_ids_BL,
        segment_ids_BL,
        relations,
        jnp.zeros(batch, bool) if is_reversed_B is None else is_reversed_B.astype(bool),
        target_positions_BP,
        memory_BM,
        positions_BL,
        jnp.arange(batch),
    )


def _positions_BL(shape: tuple[int, ...], attention_mask_BL: jnp.ndarray | None) -> jnp.ndarray:
    if attention_mask_BL is None:
        return jnp.broadcast_to(jnp.arange(shape[1], dtype=jnp.int32)[None], shape)
    return jnp.maximum(jnp.cumsum(attention_mask_BL.astype(jnp.int32), axis=1) - 1, 0)


def dense_inputs(
    input_ids_BL: jnp.ndarray,
    *,
    segment_ids_BL: jnp.ndarray | None = None,
    attention_mask_BL: jnp.ndarray | None = None,
    perm_mask_BLL: jnp.ndarray | None = None,
    tied_BLL: jnp.ndarray | None = None,
    target_mapping_BPL: jnp.ndarray | None = None,
    predicted_BL: jnp.ndarray | None = None,
    is_reversed_B: jnp.ndarray | None = None,
    memory_BM: jnp.ndarray | None = None,
    attend_empty_memory: bool = False,
) -> Inputs:
    """Return inputs from tensors of the 2019 code or of Hugging Face, batch first (`transformer_xl` of modeling.py).

    attention_mask: 1 = real token; perm_mask: 1 = row may NOT attend; tied: as in `mask_relations`, which these tensors
    cannot express; target_mapping: one-hot rows, the positions of the query stream. Without it, predicted (the
    original's inp_q, 1 = starts from the mask embedding) adds a query stream at all positions. Without both there is
    only the content stream. memory: slots in use, None = no memory. Raises InputError for arrays that do not fit
    together, and for rows of target_mapping that are not one-hot.
    """
    check_arrays(
        input_ids_BL=input_ids_BL,
        segment_ids_BL=segment_ids_BL,
        attention_mask_BL=attention_mask_BL,
        perm_mask_BLL=perm_mask_BLL,
        tied_BLL=tied_BLL,
        target_mapping_BPL=target_mapping_BPL,
        predicted_BL=predicted_BL,
        is_reversed_B=is_reversed_B,
        memory_BM=memory_BM,
    )
    batch, length = input_ids_BL.shape
    positions_BP = predicted_BP = None
    if target_mapping_BPL is not None:
        positions_BP = target_mapping_BPL.argmax(-1).astype(jnp.int32)
    elif predicted_BL is not None:
        positions_BP = _positions_BL((batch, length), None)
        predicted_BP = predicted_BL.astype(bool)
    memory_BM = jnp.zeros((batch, 0), bool) if memory_BM is None else memory_BM.astype(bool)
    attended_BM = jnp.ones_like(memory_BM) if attend_empty_memory else memory_BM
    allowed_BLL = jnp.ones((batch, length, length), bool)
    if perm_mask_BLL is not None:
        allowed_BLL &= ~perm_mask_BLL.astype(bool)
    if attention_mask_BL is not None:
        allowed_BLL &= attention_mask_BL.astype(bool)[:, None, :]
    return Inputs(
        input_ids_BL,
        segment_ids_BL,
        mask_relations(allowed_BLL, positions_BP, attended_BM, None if tied_BLL is None else tied_BLL.astype(bool)),
        jnp.zeros(batch, bool) if is_reversed_B is None else is_reversed_B.astype(bool),
        positions_BP,
        memory_BM,
        _positions_BL((batch, length), attention_mask_BL),
        jnp.arange(batch),
        predicted_BP,
    )


def text_inputs(
    input_ids_BL: jnp.ndarray,
    attention_mask_BL: jnp.ndarray | None = None,
    segment_ids_BL: jnp.ndarray | None = None,
    mem_len: int = 0,
) -> Inputs:
    """Return inputs of text in which all tokens see each other, for finetuning and embedding.

    attention_mask: 1 = real token, padding on either side; mem_len: slots of the memory passed with it, all in use.
    Raises InputError for arrays that do not fit together.
    """
    check_arrays(input_ids_BL=input_ids_BL)
    return compact_inputs(
        input_ids_BL,
        segment_ids_BL=segment_ids_BL,
        memory_BM=jnp.ones((input_ids_BL.shape[0], mem_len), bool),
        attention_mask_BL=attention_mask_BL,
    )


def text_windows(
    input_ids_BL: jnp.ndarray,
    attention_mask_BL: jnp.ndarray,
    segment_ids_BL: jnp.ndarray,
    window_len: int,
    mem_len: int,
) -> Iterator[Inputs]:
    """Yield a text as windows of window_len tokens, each read with the memory of the mem_len positions before it.

    Rows see only real tokens in that memory. L must be a multiple of window_len, or smaller. Padding must be on the
    left; its length does not change the result.
    """
    check_arrays(input_ids_BL=input_ids_BL, attention_mask_BL=attention_mask_BL, segment_ids_BL=segment_ids_BL)
    for begin in range(0, input_ids_BL.shape[1], window_len):
        window = slice(begin, begin + window_len)
        memory_BM = attention_mask_BL[:, max(begin - mem_len, 0) : begin].astype(bool)
        yield compact_inputs(
            input_ids_BL[:, window],
            segment_ids_BL=segment_ids_BL[:, window],
            memory_BM=memory_BM,
            attention_mask_BL=attention_mask_BL[:, window],
        )
