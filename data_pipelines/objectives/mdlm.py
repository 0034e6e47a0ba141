"""Batches of masked diffusion: a random number of tokens of each window is masked (Sahoo et al. 2024, "Simple and
effective masked diffusion language models"; Nie et al. 2025, LLaDA).

The likelihood of a text of L tokens is at least its mean over all orders of prediction, by Jensen's inequality: -log p
<= sum over k of E[-log p(token | all but k hidden ones)], of a random token among k random hidden ones. With k drawn
uniformly from 1 to L and the k tokens masked at once, that is E[L / k x their summed loss] (LLaDA, equation 6, where
the masked share t = k / L): weights of L / k, which sum to L in each row. Held-out batches have these weights, and
training batches with data.bound_weights. Otherwise all targets of a training batch weigh the same, which ends with a
lower bound in the runs of docs/any_order.md.

The shares k / L of a training batch are stratified: of its B rows, each has a share from another of B equal intervals,
so that every batch has small and large ones (the low-discrepancy sampler of Kingma et al. 2021, "Variational diffusion
models", which Sahoo et al. use).
"""

import numpy as np

from data_pipelines import permutation
from data_pipelines.objectives import TARGETS, TOKENS, Filling, Windows
from data_pipelines.stateless import Purpose, choice, smallest_first
from data_pipelines.targets import NEVER
from data_pipelines.tokenizer import MASK
from xlnet_jax.dims import Batch


def fill(windows: Windows) -> Batch:
    """Return input_ids, perm_rank and the targets. Any token of text and any symbol of a record can be a target, and
    all targets read `<mask>`."""
    ids, length = windows.arrays["input_ids"], windows.data.seq_len
    can_be = windows.is_symbol if windows.record_fields else np.ones(ids.shape, bool)
    draw, size_B1 = windows.draw(Purpose.DIFFUSION, 1 + length), can_be.sum(1, keepdims=True)
    share_B1 = draw[:, :1]
    if windows.stratum_B is not None:
        share_B1 = (windows.stratum_B[:, None] + share_B1) / windows.data.batch_size
    count_B1 = 1 + choice(share_B1, size_B1)
    is_masked = np.zeros(ids.shape, bool)
    order = smallest_first(np.where(can_be, draw[:, 1:], NEVER))
    np.put_along_axis(is_masked, order, np.arange(length) < count_B1, axis=1)
    slots = permutation.target_slots(is_masked & can_be, ids, None)
    if windows.is_held_out or windows.data.bound_weights:
        slots["target_weights"] *= (size_B1 / count_B1).astype(np.float32)
    return {
        "input_ids": np.where(is_masked & can_be, MASK, ids).astype(np.int32),
        "perm_rank": np.zeros(ids.shape, np.int32),
        **slots,
    }


FILLING = Filling(
    objective="mdlm",
    fill=fill,
    fields={**TOKENS, **TARGETS},
    stream="content",
    target="own",
    draws_targets=False,
    mark="; [<mask>→piece] = what the network reads → the target",
    legend="""
The content stream predicts each target at the target's own position, where it reads <mask>. Every row sees the whole
window. With k targets in a window of L tokens, each counts L / k times in the held-out loss and, with
data.bound_weights, in training.""",
)
