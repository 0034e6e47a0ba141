"""Documents packed into one window do not see each other: proved by gradients, and against each document alone."""

import contextlib
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data_pipelines.windows import lowest_of_document
from tests.xlnet_jax.influence import influence_on_rows
from tests.xlnet_jax.kernels.running import running_kernels
from tests.xlnet_jax.random_models import strong_params
from xlnet_jax.models.heads import build_encoder
from xlnet_jax.models.inputs import compact_inputs
from xlnet_jax.settings.config import ModelConfig

LENGTH, MEMORY, FILLED = 14, 6, 4
BOTH_STREAMS = ModelConfig(
    vocab_size=40, num_layers=2, d_model=16, num_heads=2, d_head=8, d_ff=24, mem_len=MEMORY, dropout=0.0,
    attention_dropout=0.0,
)  # fmt: skip
CAUSAL = dataclasses.replace(BOTH_STREAMS, attn_type="uni", num_segments=0, same_length=True)
STARTS = np.array([[-3] * 3 + [3] * 5 + [8] + [9] * 5, [0] * 6 + [6] * 8, [-9] * LENGTH], np.int32)
IS_REVERSED = np.array([True, False, True])
DOCUMENTS = [(row, start) for row, starts in enumerate(STARTS) for start in np.unique(starts)]


def windows(model, starts_BL=STARTS, seed=0):
    """Keyword arguments of `compact_inputs`: random tokens in a random order, and four targets in each window that see
    a token of their document."""
    rng, rows = np.random.default_rng(seed), len(starts_BL)
    rank_BL = np.stack([rng.permutation(LENGTH) for _ in range(rows)]) * (model.attn_type == "bi")
    can_be_BL = ~lowest_of_document(starts_BL, rank_BL)
    targets_BP = None
    if model.attn_type == "bi":
        targets_BP = np.stack([np.sort(rng.choice(np.flatnonzero(row), 4, replace=False)) for row in can_be_BL])
    return {
        "input_ids_BL": rng.integers(9, 40, (rows, LENGTH)),
        "segment_ids_BL": rng.integers(2, size=(rows, LENGTH)) if model.num_segments else None,
        "perm_rank_BL": rank_BL,
        "target_positions_BP": targets_BP,
        "is_reversed_B": IS_REVERSED,
        "memory_BM": np.tile(np.arange(model.mem_len) >= model.mem_len - FILLED, (rows, 1)),
        "document_start_BL": starts_BL,
    }


def inputs_of(window):
    # In one program: one for each operation takes longer to compile.
    arrays = {name: None if a is None else jnp.asarray(a) for name, a in window.items()}
    return jax.jit(compact_inputs)(**arrays)


def places_BT(window):
    """Positions of content rows, then of query rows."""
    place_BL = np.tile(np.arange(LENGTH), (len(STARTS), 1))
    targets_BP = window["target_positions_BP"]
    return place_BL if targets_BP is None else np.concatenate([place_BL, targets_BP], axis=1)


def own_document_BTK(window):
    """bool: True at the keys of each row's own document, memory in use among them."""
    start_BK = np.concatenate([np.tile(np.arange(-MEMORY, 0), (len(STARTS), 1)), STARTS], axis=1)
    start_BT = np.take_along_axis(STARTS, places_BT(window), 1)
    # A token in memory belongs to the document that begins before or at it; its own position stands for its start.
    is_memory = np.arange(MEMORY + LENGTH) < MEMORY
    own_BTK = np.where(is_memory, start_BT[..., None] <= start_BK[:, None], start_BT[..., None] == start_BK[:, None])
    return own_BTK & (np.arange(-MEMORY, LENGTH) >= -FILLED)


@pytest.mark.parametrize("attention", ["plain", "fused"])
@pytest.mark.parametrize("model", [BOTH_STREAMS, CAUSAL], ids=["both streams", "causal, same length"])
def test_no_row_depends_on_a_token_or_on_memory_of_another_document(model, attention):
    window, model = windows(model), dataclasses.replace(model, attention=attention)
    params, inputs = strong_params(model)["backbone"], inputs_of(window)
    mems = jax.random.normal(jax.random.key(2), (model.num_layers, len(STARTS), MEMORY, model.d_model))
    own_BTK = own_document_BTK(window)
    with running_kernels() if attention == "fused" else contextlib.nullcontext():
        of_tokens, of_memory = influence_on_rows(model, params, inputs, mems)
    depends_BTK = np.swapaxes(np.concatenate([of_memory, of_tokens], axis=2), 0, 1) > 0
    assert not (depends_BTK & ~own_BTK).any()
    sees_BTK = np.asarray(inputs.relations.visible_BTK()) & own_BTK
    if model.attn_type == "uni":
        back_BTK = places_BT(window)[..., None] - np.arange(-MEMORY, LENGTH)
        sees_BTK &= (back_BTK >= 0) & (back_BTK <= MEMORY)
    assert depends_BTK[sees_BTK].all()
    assert sees_BTK.sum() > 3 * sees_BTK.shape[0] * sees_BTK.shape[1]


def test_a_packed_document_has_the_hidden_states_that_it_has_alone():
    """The window before packs documents too; alone, memory holds the document's own tokens."""
    model = dataclasses.replace(BOTH_STREAMS, mem_len=LENGTH)
    params = strong_params(model)["backbone"]
    empty = np.zeros((model.num_layers, len(STARTS), LENGTH, model.d_model), np.float32)
    starts_before = np.array([[0] * 11 + [11] * 3, [0] * 5 + [5] * 9, [0] * 5 + [5] * 9])
    before = windows(model, starts_before, seed=5) | {"memory_BM": np.zeros((3, LENGTH), bool)}
    window = windows(model) | {"memory_BM": np.ones((3, LENGTH), bool)}
    packed = outputs_of(model, params, window, outputs_of(model, params, before, empty).new_mems_ZBMD)
    for row, start in DOCUMENTS:
        places, memory, in_memory = np.flatnonzero(STARTS[row] == start), empty[:, row : row + 1], max(-start, 0)
        if in_memory:
            earlier = part(before, row, np.arange(LENGTH - in_memory, LENGTH))
            memory = outputs_of(model, params, earlier, memory).new_mems_ZBMD
        own = part(window, row, places) | {"memory_BM": np.arange(LENGTH)[None] >= LENGTH - in_memory}
        alone = outputs_of(model, params, own, memory)
        np.testing.assert_allclose(packed.content_BLD[row, places], alone.content_BLD[0], rtol=0, atol=1e-5)
        if alone.query_BPD is not None:
            slots = np.isin(window["target_positions_BP"][row], places)
            np.testing.assert_allclose(packed.query_BPD[row, slots], alone.query_BPD[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_places_that_are_added_to_embeddings_begin_anew_with_each_document(positions):
    changes = {"positions": positions, "mem_len": 0, "max_positions": LENGTH}
    model = dataclasses.replace(BOTH_STREAMS, **changes)
    params = strong_params(model)["backbone"]
    window = windows(model) | {"target_positions_BP": None, "is_reversed_B": np.zeros(3, bool)}
    packed = outputs_of(model, params, window, None).content_BLD
    for row, start in DOCUMENTS:
        places = np.flatnonzero(STARTS[row] == start)
        alone = outputs_of(model, params, part(window, row, places), None).content_BLD
        np.testing.assert_allclose(packed[row, places], alone[0], rtol=0, atol=1e-5)


def outputs_of(model, params, window, mems):
    """Outputs of the network, whose next memory is the whole window."""
    return jax.device_get(jax.jit(build_encoder(model).apply)({"params": params}, inputs_of(window), mems))


def part(window, row, places):
    """The tokens of one row at these positions, as a window of their own."""
    alone = {name: None if a is None else a[row : row + 1] for name, a in window.items()}
    alone = {name: a[:, places] if name.endswith("_BL") and a is not None else a for name, a in alone.items()}
    targets_BP = alone["target_positions_BP"]
    if targets_BP is not None:
        targets_BP = targets_BP[np.isin(targets_BP, places)][None] - places[0]
    is_asked = targets_BP is not None and targets_BP.size
    return alone | {"target_positions_BP": targets_BP if is_asked else None, "document_start_BL": None}
