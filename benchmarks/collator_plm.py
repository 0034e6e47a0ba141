"""Run a train command whose targets and orders are those of transformers' DataCollatorForPermutationLanguageModeling.

    python -m benchmarks.collator_plm SETTINGS OF xlnet_jax.train

The objective is plm, and windows hold records. The class itself is called for the symbols of each record, with its
defaults. It hides the targets from both streams: a target sees where earlier targets of its order are, but not what
they are. Everything else is as in xlnet_jax.train, and so are held-out last symbols.
"""

import random
import sys
from types import SimpleNamespace

import numpy as np

from data_pipelines import permutation
from data_pipelines.objectives import Windows, plm
from data_pipelines.stateless import Purpose
from data_pipelines.tokenizer import MASK, PAD
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.dims import Batch

TOKENIZER = SimpleNamespace(
    mask_token="<mask>",
    mask_token_id=MASK,
    pad_token="<pad>",
    pad_token_id=PAD,
    get_special_tokens_mask=lambda ids, already_has_special_tokens: [i == PAD for i in ids],
)
"""what the class reads of a tokenizer"""


def fill(windows: Windows) -> Batch:
    """Return the arrays of `plm.fill` with the targets and orders of the collator."""
    if windows.is_last_only:
        return plm.fill(windows)
    ids, data, is_symbol = windows.arrays["input_ids"], windows.data, windows.is_symbol
    # A number for each record of the batch, in the order of its symbols.
    begins = np.arange(len(ids))[:, None] * ids.shape[1] + windows.arrays["document_start"]
    _, record, lengths = np.unique(begins[is_symbol], return_inverse=True, return_counts=True)
    place = np.concatenate([np.arange(length) for length in lengths])
    symbols = np.full((len(lengths), lengths.max() + lengths.max() % 2), PAD)  # the class wants even lengths
    symbols[record, place] = ids[is_symbol]
    rank, is_target = np.zeros(ids.shape, np.int32), np.zeros(ids.shape, bool)
    ranks_of = collate(symbols, windows.draw(Purpose.ORDER_NEW, 1)[0, 0])
    rank[is_symbol] = ranks_of[record, place]
    is_target[is_symbol] = rank[is_symbol] > 0
    return {
        "input_ids": np.where(is_target, MASK, ids).astype(np.int32),
        "segment_ids": windows.arrays["segment_ids"],
        "perm_rank": rank,
        **permutation.target_slots(is_target, ids, data.num_predict),
    }


def collate(symbols: np.ndarray, uniform: float) -> np.ndarray:
    """Return the rank of each symbol, int [B, L]: 0 = context, which all see; others see those of lower rank. symbols:
    int [B, L], L even, padded on the right; uniform: seed of the random numbers, in [0, 1)."""
    from transformers import DataCollatorForPermutationLanguageModeling

    random.seed(uniform)
    np.random.seed(int(uniform * 2**32))
    collator = DataCollatorForPermutationLanguageModeling(TOKENIZER, return_tensors="np")
    read, perm_mask, _, labels = collator.numpy_mask_tokens(symbols.copy())
    is_target = labels != -100
    assert ((read == MASK) == is_target).all()
    earlier = (is_target[:, None, :] & (perm_mask == 0)).sum(2)  # targets that each row sees
    return np.where(is_target, 1 + earlier, 0)


if __name__ == "__main__":
    object.__setattr__(plm.FILLING, "fill", fill)
    sys.exit(COMMANDS["train"].main(sys.argv[1:]))
