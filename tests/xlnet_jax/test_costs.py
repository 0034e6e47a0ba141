"""Operations counted by hand, held to the matrix products that jax traces; and chips by the names of their devices.

The content stream of the last layer counts, though a step need not compute it (models/last_layer.py)."""

import math
from dataclasses import replace

import jax
import jax.extend
import jax.numpy as jnp
import pytest

from tests.xlnet_jax.training.tiny import CONFIG
from xlnet_jax.costs import CHIPS, chip_of, peak_flops, spared_multiply_adds
from xlnet_jax.measurement.contenders import CONTENDERS, step_operations
from xlnet_jax.objectives import language_model
from xlnet_jax.objectives.language_model import BatchDropout, objective_of
from xlnet_jax.objectives.presets import large
from xlnet_jax.objectives.registry import multiply_adds, needed_flops, recomputed_flops, step_flops
from xlnet_jax.settings.fields import with_values
from xlnet_jax.training.optimizer import make_optimizer
from xlnet_jax.training.sharding import make_mesh, unboxed
from xlnet_jax.training.step import batch_of_windows


def traced(jaxpr):
    """Multiply-adds of all products of a traced function: the body of a scan counts as often as it runs, and one of the
    branches of a condition."""
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            sizes = [eqn.invars[0].aval.shape[axis] for axis in contracted]
            total += math.prod(eqn.outvars[0].aval.shape) * math.prod(sizes)
        counts = [traced(sub) for sub in jax.extend.core.jaxprs_in_params(eqn.params)]
        inner = max(counts) if eqn.primitive.name == "cond" else sum(counts)
        total += inner * eqn.params.get("length", 1)
    return total


@pytest.fixture
def in_full(monkeypatch):
    """Every layer computes both streams."""
    apply = language_model.apply
    monkeypatch.setattr(language_model, "apply", lambda *a, needs_content=True, **others: apply(*a, **others))


def traced_in(config, transformation):
    """Return the multiply-adds traced in the loss of a batch, or in a transformation of that loss."""
    objective, key = objective_of(config), jax.random.key(0)
    dropout = BatchDropout(key, jnp.arange(config.data.batch_size))
    params = jax.eval_shape(lambda: unboxed(objective.init(key)))

    def loss(params, batch, mems):
        scored = objective.score(params, batch, mems, dropout)
        return scored.loss_sum + sum(scored.row_losses.values())

    batch = batch_of_windows(config, make_mesh(config, jax.devices()))
    return traced(jax.make_jaxpr(transformation(loss))(params, batch, objective.mems).jaxpr)


NARROW = {
    "albert": with_values(CONTENDERS["bert"](CONFIG), {"model.embedding_width": 6, "model.share_layers": "all"}),
    "narrow": with_values(CONTENDERS["electra"](CONFIG), {"model.embedding_width": 6}),
}
CONFIGS = {name: contender(CONFIG) for name, contender in CONTENDERS.items()} | NARROW


def test_a_last_layer_without_content_saves_its_rows_in_all_but_keys_and_values():
    model, data = CONFIG.model, CONFIG.data
    keys, heads = model.mem_len + data.seq_len, model.num_heads * model.d_head
    of_row = heads * (2 * model.d_model + 3 * keys + data.seq_len + 1) + 2 * model.d_model * model.d_ff
    forward = sum(part.forward for part in multiply_adds(CONFIG).values())
    assert forward - traced_in(CONFIG, lambda loss: loss) == data.batch_size * data.seq_len * of_row


def test_a_step_needs_neither_content_rows_of_the_last_layer_nor_columns_of_other_rows_distances():
    model, data = CONFIG.model, CONFIG.data
    forward = sum(part.forward for part in multiply_adds(CONFIG).values())
    rows = (model.num_layers - 1) * (data.seq_len + data.num_slots) + data.num_slots
    columns = data.batch_size * rows * model.num_heads * model.d_head * data.seq_len
    needed = traced_in(CONFIG, lambda loss: loss) - columns
    assert spared_multiply_adds(CONFIG, data.num_slots) == forward - needed
    assert step_flops(CONFIG) - needed_flops(CONFIG) == 6 * (forward - needed)
    # 3.1% of Large are columns and 2.8% content rows, which count once.
    assert needed_flops(large()) / step_flops(large()) == pytest.approx(0.942, abs=0.002)
    assert needed_flops(CONFIGS["clm"]) < step_flops(CONFIGS["clm"])  # columns alone: it has one stream
    assert needed_flops(CONFIGS["bert"]) == step_flops(CONFIGS["bert"])  # learned positions


@pytest.mark.usefixtures("in_full")
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_both_passes_of_every_contender_count_what_jax_traces(config):
    """But for a gradient of the memory, which jax takes along with that of the window's own keys and drops."""
    counted = multiply_adds(config)
    forward = sum(part.forward for part in counted.values())
    assert traced_in(config, lambda loss: loss) == forward
    dropped = counted["keys and values of memory"].forward if config.model.mem_len else 0
    assert traced_in(config, jax.grad) == step_flops(config) // 2 + dropped


@pytest.mark.usefixtures("in_full")
@pytest.mark.parametrize("remat", ["full", "dots", "feed_forward", "attention"])
def test_a_step_counts_what_jax_traces_with_what_remat_computes_again(remat):
    config = replace(CONFIG, model=replace(CONFIG.model, remat=remat))
    counted = (step_flops(config) + recomputed_flops(config)) // 2
    dropped = multiply_adds(CONFIG)["keys and values of memory"].forward
    assert traced_in(config, jax.grad) == counted + dropped


@pytest.mark.parametrize("name", ["plm", "albert", "electra"])
def test_muon_counts_what_jax_traces(name):
    config = with_values((CONFIGS | NARROW)[name], {"optimizer.method": "muon"})
    params = jax.eval_shape(lambda: unboxed(objective_of(config).init(jax.random.key(0))))
    tx = make_optimizer(config.optimizer, config.steps)
    update = traced(jax.make_jaxpr(tx.update)(params, jax.eval_shape(tx.init, params), params).jaxpr)
    assert 2 * update == step_operations(config) - step_flops(config) > 0


def test_the_papers_step_is_the_sum_that_its_sizes_make():
    """B 8192, L 512, P 85, M 384, D 1024 = N x H, F 4096, V 32000, Z 24, written out."""
    own = 2 * 8192 * (597 + 512) * 1024**2 + 8192 * 597 * 1024 * (896 + 1408 + 1 + 896) + 2 * 8192 * 597 * 1024 * 4096
    once = 2 * 8192 * 384 * 1024**2 + 1408 * 1024**2
    assert step_flops(large()) == 2 * (24 * (3 * own + 2 * once) + 3 * 8192 * 85 * 1024 * 32000)


def test_a_device_has_its_share_of_the_peak_of_its_chip_and_nothing_is_made_up_of_one_that_is_not_known():
    assert peak_flops("TPU v3") == 123e12 / 2
    assert peak_flops("TPU v5 lite") == 197e12
    for kind in ("cpu", "NVIDIA H200 MIG 1g.18gb", ""):
        assert chip_of(kind) is None
        assert peak_flops(kind) is None


def test_the_clock_of_a_tpu_times_its_multipliers_is_its_peak():
    arrays = {"v2": 1, "v3": 2, "v4": 8, "v5e": 4, "v5p": 8, "v6e": 16, "v7": 16}  # of 128 x 128, in a device
    tpus = {chip.name: chip for chip in CHIPS if chip.clock}
    assert set(tpus) == set(arrays)
    for name, chip in tpus.items():
        assert 2 * 128**2 * arrays[name] * chip.clock == pytest.approx(chip.flops / chip.devices, rel=0.005)
