"""The network gives the numbers of the original TensorFlow 1 code: both streams, masks, memory, gradients."""

from contextlib import nullcontext
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.xlnet_jax.kernels.running import running_kernels
from tests.xlnet_jax.reference_cases import HIDDEN, LOSS, Case, assert_close, assert_gradients, padded_at_the_end
from xlnet_jax.models.heads import XLNetLM
from xlnet_jax.models.inputs import dense_inputs, text_inputs
from xlnet_jax.models.masks import HIGHEST
from xlnet_jax.objectives.language_model import cross_entropy_BP

pytestmark = pytest.mark.contract

REFERENCE = Path(__file__).parents[2] / "reference/model"
CASES = sorted(path.stem for path in REFERENCE.glob("[a-e][0-9]_*.json"))
FUSED = ["a4_twostream_tm_clamp_reuse0", "b2_twostream_notm_relu_tie", "d3_uni_same_shortmem_relu_tie"]
"""Cases for fused attention: with memory and without it, both directions, spans, clamped distances"""


def inputs_of(case):
    mems_ZBMD = case.mems("inputs/mems")
    ids_BL = case.first("inputs/inp_k")
    batch = len(ids_BL)
    padding_BL = case.first("inputs/input_mask")
    return dense_inputs(
        ids_BL,
        segment_ids_BL=case.first("inputs/seg_id"),
        attention_mask_BL=None if padding_BL is None else 1 - padding_BL,
        perm_mask_BLL=case.first("inputs/perm_mask"),
        target_mapping_BPL=padded_at_the_end(case.first("inputs/target_mapping")),
        predicted_BL=case.first("inputs/inp_q"),
        # bi_data: the second half of the rows reads backwards.
        is_reversed_B=(jnp.arange(batch) >= batch // 2) & case.run["bi_data"],
        memory_BM=None if mems_ZBMD is None else jnp.ones((batch, mems_ZBMD.shape[2]), bool),
    )


def by_ranks(inputs):
    """Return inputs with ranks in place of the mask: a row's rank is the number of keys that it sees, a key's rank
    the lowest of the rows that see it."""
    mask_BTK = inputs.relations.mask_BTK
    row_BT = mask_BTK.sum(-1, dtype=np.int32)
    key_BK = np.where(mask_BTK, row_BT[:, :, None], HIGHEST).min(1)
    relations = inputs.relations._replace(row_rank_BT=row_BT, key_rank_BK=key_BK, mask_BTK=None)
    np.testing.assert_array_equal(relations.visible_BTK(), mask_BTK)
    return inputs._replace(relations=relations)


def loss_and_outputs(params, case, inputs):
    mems = case.mems("inputs/mems")
    (logits, outputs), sown = XLNetLM(case.config).apply(
        {"params": params},
        inputs,
        mems,
        reuse_len=case.run["reuse_len"] or None,
        mutable="intermediates",
    )
    weights = case.first("inputs/target_mask")
    nats = cross_entropy_BP(logits, case.first("inputs/target"))
    layers_ZBTD = sown["intermediates"]["backbone"]["layers"]["rows_BTD"][0]
    return (nats * weights).sum() / weights.sum(), (logits, nats, outputs, layers_ZBTD)


@pytest.mark.parametrize("name", CASES)
def test_the_network_gives_the_originals_numbers(name):
    case = Case(REFERENCE, name)
    assert_originals_numbers(case, lambda: inputs_of(case))


@pytest.mark.parametrize("device", ["v5e", "gpu"])
@pytest.mark.parametrize("name", FUSED)
def test_the_network_with_fused_attention_gives_the_originals_numbers(name, device):
    case = Case(REFERENCE, name)
    inputs = by_ranks(jax.device_get(jax.jit(lambda: inputs_of(case))()))
    with running_kernels(device):
        assert_originals_numbers(case, lambda: inputs)


def assert_originals_numbers(case, make_inputs):
    compute = jax.jit(jax.value_and_grad(lambda p: loss_and_outputs(p, case, make_inputs()), has_aux=True))
    (total, (logits, nats, outputs, layers)), grads = jax.device_get(compute(case.params))

    mapping = case.first("inputs/target_mapping")
    # Query rows whose target_mapping is all zero are not compared.
    real = np.ones(logits.shape[:2], bool) if mapping is None else mapping.any(-1)
    final = outputs.content_BLD if outputs.query_BPD is None else outputs.query_BPD
    assert_close(final[real], case.hidden("outputs/final")[real], HIDDEN)
    assert_close(logits[real], case.hidden("outputs/logits")[real], HIDDEN)
    assert_close(nats[real], case.first("outputs/lm_loss")[real], HIDDEN)
    assert_close(total, case.arrays["outputs/total_loss"], LOSS)
    length = case.arrays["inputs/inp_k"].shape[0]
    for i in range(case.config.num_layers):
        assert_close(layers[i, :, :length], case.hidden(f"outputs/layer_{i}_h"), HIDDEN)
        if outputs.query_BPD is not None:
            assert_close(layers[i, :, length:][real], case.hidden(f"outputs/layer_{i}_g")[real], HIDDEN)
    new_mems = case.mems("outputs/new_mems")
    if new_mems is None:
        assert outputs.new_mems_ZBMD.shape[2] == 0
    else:
        assert_close(outputs.new_mems_ZBMD, new_mems, HIDDEN)
    assert_gradients(grads, case.gradients)


@pytest.mark.parametrize(
    ("name", "device"),
    [
        *((name, None) for name in CASES if name.startswith("c")),
        ("c1_finetune_leftpad", "v5e"),
        ("c4_finetune_mems_leftpad", "gpu"),
    ],
)
def test_ranks_give_the_originals_finetuning_numbers_on_real_tokens(name, device):
    """Without perm_mask all ranks are equal. Padding rows are not compared."""
    case = Case(REFERENCE, name)
    ids, mems, padding = case.first("inputs/inp_k"), case.mems("inputs/mems"), case.first("inputs/input_mask")
    mask = np.ones_like(ids) if padding is None else 1 - padding
    mem_len = 0 if mems is None else mems.shape[2]

    @jax.jit
    def scores(params, mems):
        inputs = text_inputs(ids, mask, case.first("inputs/seg_id"), mem_len)
        return XLNetLM(case.config).apply({"params": params}, inputs, mems)[0]

    with running_kernels(device) if device else nullcontext():
        logits = np.asarray(scores(case.params, mems))
    real = mask == 1
    assert_close(logits[real], case.hidden("outputs/logits")[real], HIDDEN)
