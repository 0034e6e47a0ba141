"""Batches of prefix language modeling: the first tokens of a window see each other, and each token after them is
predicted from all before it (UniLM's sequence-to-sequence masks, Dong et al. 2019, section 2.3; T5's prefix LM, Raffel
et al. 2020, section 3.2.1)."""

import numpy as np

from data_pipelines.objectives import TARGETS, TOKENS, Filling, Windows
from data_pipelines.stateless import Purpose, choice
from xlnet_jax.dims import Batch


def fill(windows: Windows) -> Batch:
    """Return input_ids, perm_rank and the targets. A row's prefix has 1 to L - 1 tokens, with every length
    equally likely."""
    ids, length = windows.arrays["input_ids"], windows.data.seq_len
    positions = np.broadcast_to(np.arange(length, dtype=np.int32), ids.shape)
    last_of_prefix = choice(windows.draw(Purpose.PREFIX, 1), length - 1)  # int64 [B, 1]
    return {
        "input_ids": ids,
        "perm_rank": np.maximum(positions - last_of_prefix, 0).astype(np.int32),
        "target_positions": positions,
        "target_ids": np.concatenate([ids[:, 1:], windows.arrays["next_ids"][:, None]], axis=1),
        "target_weights": (positions >= last_of_prefix).astype(np.float32),
    }


FILLING = Filling(
    objective="prefix",
    fill=fill,
    fields={**TOKENS, **TARGETS},
    stream="content",
    target="next",
    draws_targets=False,
    mark="; each piece from the last one of the prefix on predicts the next",
    legend="""
Positions in the prefix see the memory and the whole prefix. The last position of the prefix and every later position
predict the next piece from the memory, the prefix, and the window up to and including themselves.""",
)
