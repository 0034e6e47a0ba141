"""Batches of permutation language modeling: targets, and an order in which they are predicted (Yang et al. 2019,
sections 2.2 and 2.3)."""

import numpy as np

from data_pipelines import permutation
from data_pipelines.objectives import SEGMENTS, TARGETS, TOKENS, Filling, Windows
from data_pipelines.stateless import Purpose, choice
from data_pipelines.targets import draw_targets
from data_pipelines.tokenizer import CLS, SEP
from data_pipelines.windows import lowest_of_document
from xlnet_jax.dims import Batch


def fill(windows: Windows) -> Batch:
    """Return input_ids, segment_ids, perm_rank and the targets; input_ids hold the targets themselves.

    If documents do not see each other, or every token is a target, the first targets of a document or of the window may
    see no token at all. Such targets become context for the others.
    """
    ids, data, draw = windows.arrays["input_ids"], windows.data, windows.draw
    functional = (ids == SEP) | (ids == CLS)
    if windows.record_fields:
        candidates = windows.is_symbol
    else:
        # Spans can fall on <sep> and <cls>, and are dropped there: their slots become padding, as in the original.
        candidates = np.ones_like(functional) if data.targets == "spans" else ~functional
    is_reversed = windows.arrays["is_reversed"]
    drawn = draw_targets(windows.is_word_start[ids], candidates, is_reversed, draw, data, windows.breaks)
    reuse = data.reuse_len
    places = (
        permutation.permuted_places(reuse, data.perm_size, draw(Purpose.ORDER_REUSED, data.perm_size)),
        permutation.permuted_places(data.seq_len - reuse, data.perm_size, draw(Purpose.ORDER_NEW, data.perm_size)),
    )

    sizes = np.array(data.group_sizes)
    size_B1 = sizes[choice(draw(Purpose.GROUP_SIZE, 1), len(sizes))] if len(sizes) > 1 else sizes[:, None]

    def ranks() -> np.ndarray:
        is_target = drawn & ~functional
        hidden = is_target if data.profile == "tf2" else drawn | functional
        reused, new = (
            permutation.group_places(of_part, is_target[:, part], size_B1)
            for of_part, part in zip(places, (slice(reuse), slice(reuse, None)), strict=True)
        )
        rank = permutation.perm_rank(hidden, reused, new, data)
        return rank if place is None else np.where(hidden, rank + place * (data.seq_len + 1), rank)

    place = _places_of_fields(windows)
    rank = ranks()
    starts = windows.arrays["document_start"] if data.pack else np.zeros_like(ids)
    # Groups without the dropped targets begin elsewhere, perhaps before all that another document shows.
    while (data.pack or data.targets == "all") and (blind := drawn & lowest_of_document(starts, rank)).any():
        drawn &= ~blind
        rank = ranks()
    return {
        "input_ids": ids,
        "segment_ids": windows.arrays["segment_ids"],
        "perm_rank": rank,
        **permutation.target_slots(drawn & ~functional, ids, data.num_predict),
    }


def _places_of_fields(windows: Windows) -> np.ndarray | None:
    """Return int32 [B, L], the place of each token's field in an order that is drawn for each row; None if the fields
    stand together."""
    if windows.record_fields is None or not windows.record_fields.place_OV.any():
        return None
    place_OV = windows.record_fields.place_OV
    order_B1 = choice(windows.draw(Purpose.FIELD_ORDER, 1), len(place_OV))
    return place_OV[order_B1, windows.arrays["input_ids"]]


FILLING = Filling(
    objective="plm",
    fill=fill,
    fields={**TOKENS, **SEGMENTS, **TARGETS},
    stream="query",
    target="own",
    mark="; [3:piece] = the third target in the order",
    legend="""
The query stream predicts each target from its position and from all tokens of lower rank: memory, context and earlier
targets. Targets in the reused part do not see A and B. <sep> and <cls> have ranks, but are never targets.""",
)
