"""The optimizer: its schedule, its clipping, and the parameters without weight decay."""

import dataclasses
import functools

import jax
import numpy as np
import optax
import pytest

from tests.xlnet_jax.training.tiny import NO_DROPOUT
from xlnet_jax.interop.weights import flatten
from xlnet_jax.models.heads import init_params
from xlnet_jax.settings.config import HeadConfig, OptimizerConfig
from xlnet_jax.training.optimizer import (
    decayed,
    learning_rate,
    make_optimizer,
    stored_as_bfloat16,
)
from xlnet_jax.training.sharding import unboxed

CONFIG = OptimizerConfig(learning_rate=1.0, warmup_steps=10)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"schedule": "linear"}, [0, 0.5, 1, 0.5, 0, 0]),
        ({"schedule": "constant"}, [0, 0.5, 1, 1, 1, 1]),
        ({"schedule": "cosine"}, [0, 0.5, 1, 0.5, 0, 0]),
        ({"schedule": "wsd", "decay_share": 1 / 3}, [0, 0.5, 1, 1, 0, 0]),
        ({"schedule": "wsd", "decay_share": 0.5, "decay_steps": 24, "min_lr_ratio": 0.1}, [0, 0.5, 1, 0.4, 0.1, 0.1]),
        ({"schedule": "inverse_sqrt"}, [0, 0.5, 1, 0.5**0.5, 3**-0.5, 9.9**-0.5]),
        ({"schedule": "inverse_sqrt", "min_lr_ratio": 0.6}, [0, 0.5, 1, 0.5**0.5, 0.6, 0.6]),
        # at its floor, and at a length of its own
        ({"schedule": "linear", "min_lr_ratio": 0.1, "decay_steps": 15}, [0, 0.5, 1, 0.1, 0.1, 0.1]),
        ({"schedule": "cosine", "min_lr_ratio": 0.1, "decay_steps": 30}, [0, 0.5, 1, 0.55, 0.1, 0.1]),
    ],
)
def test_the_rate_rises_from_zero_and_decays_to_the_end(config, expected):
    rate = learning_rate(dataclasses.replace(CONFIG, **config), steps=30)
    np.testing.assert_allclose([rate(t) for t in (0, 5, 10, 20, 30, 99)], expected, atol=1e-6)


def test_the_inverse_square_root_is_that_of_the_transformer_paper():
    # Vaswani et al. 2017, section 5.3 and equation 3: width 512, 4,000 steps of warmup.
    width, warmup = 512, 4000
    config = OptimizerConfig(schedule="inverse_sqrt", learning_rate=(width * warmup) ** -0.5, warmup_steps=warmup)
    steps = np.array([1, 40, 3999, 4000, 4001, 16_000, 100_000], float)
    expected = width**-0.5 * np.minimum(steps**-0.5, steps * warmup**-1.5)
    for total in (5000, 100_000):
        np.testing.assert_allclose([learning_rate(config, total)(t) for t in steps], expected, rtol=1e-4)


def params():
    return {"kernel": np.ones((2, 2), np.float32), "bias": np.ones(2, np.float32)}


def updates_of(params, gradients=None, **config):
    """Return the first updates; gradients: the parameters, where none are given."""
    tx = make_optimizer(dataclasses.replace(CONFIG, warmup_steps=0, **config), steps=10)
    first = jax.jit(lambda gradients, params: tx.update(gradients, tx.init(params), params)[0])
    return jax.device_get(first(params if gradients is None else gradients, params))


def drawn(model):
    return jax.jit(lambda key: unboxed(init_params(model, None, key)))(jax.random.key(0))


def test_weight_decay_leaves_biases_alone():
    updates = updates_of(params(), jax.tree.map(np.zeros_like, params()), weight_decay=0.1)
    np.testing.assert_allclose(updates["kernel"], -0.1, rtol=1e-6)
    assert not np.any(updates["bias"])


@pytest.mark.parametrize("positions", ["relative", "learned"])
def test_all_matrices_and_embeddings_of_a_network_decay_and_nothing_else(positions):
    model = dataclasses.replace(NO_DROPOUT.model, positions=positions)
    names = {True: set(), False: set()}
    for head in (None, HeadConfig("classification", 3, summary="attn"), HeadConfig("question_answering")):
        shapes = unboxed(jax.eval_shape(functools.partial(init_params, model, head), jax.random.key(0)))
        for path, is_decayed in flatten(decayed(shapes)).items():
            names[is_decayed].add(path.rpartition("/")[2])
    matrices = {"kernel", "word_embedding", "segment_embedding", *"qkvo"}
    own = {"r", "mask_embedding"} if positions == "relative" else {"position_embedding"}
    vectors = {"scale", "bias", "output_bias", "query"} | ({"biases"} if positions == "relative" else set())
    assert names == {True: matrices | own, False: vectors}


def test_the_2019_optimizer_scales_no_layers_where_it_does_not_clip():
    """model_utils.py, get_train_op: the scale stands in the branch that clips."""
    updates = [updates_of(network(), profile="paper2019", clip_norm=0.0, layer_decay=decay) for decay in (1.0, 0.5)]
    jax.tree.map(np.testing.assert_array_equal, *updates)


def test_the_gradient_is_clipped_by_its_global_norm():
    """Adam hides a scale; its second moment shows it."""
    tx = make_optimizer(CONFIG, steps=100)
    _, state = tx.update(jax.tree.map(lambda p: 100.0 * p, params()), tx.init(params()), params())
    moments = optax.tree_utils.tree_get(state, "nu")
    total = sum(float(m.sum()) for m in jax.tree.leaves(moments))
    np.testing.assert_allclose(total, 0.001 * CONFIG.clip_norm**2, rtol=1e-4)


def network():
    layers = {"kernel": np.ones((3, 2, 2), np.float32), "biases": np.ones((3, 2), np.float32)}
    return {
        "backbone": {"word_embedding": np.ones((4, 2), np.float32), "layers": layers},
        "output_bias": np.ones(4, np.float32),
    }


def test_layer_decay_scales_the_learning_rate_from_the_top_down():
    """Adam would undo a scale of the gradient; the update itself must shrink, weight decay with it."""
    updates = [updates_of(network(), weight_decay=0.1, layer_decay=decay) for decay in (1.0, 0.5)]
    ratio = jax.tree.map(lambda a, b: np.asarray(b / a), *updates)
    for name in ("kernel", "biases"):
        by_layer = ratio["backbone"]["layers"][name].reshape(3, -1)
        np.testing.assert_allclose(by_layer, np.broadcast_to([[0.25], [0.5], [1.0]], by_layer.shape), rtol=1e-6)
    np.testing.assert_allclose(ratio["backbone"]["word_embedding"], 0.125, rtol=1e-6)
    np.testing.assert_allclose(ratio["output_bias"], 1.0)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_matrix_rate_scales_adams_updates_of_matrices_in_layers_alone(weight_decay):
    params = network()
    params["backbone"]["layers"]["segment_embedding"] = np.ones((3, 2, 2), np.float32)
    whole, scaled = (updates_of(params, weight_decay=weight_decay, matrix_rate=share) for share in (1.0, 0.25))
    matrix = whole["backbone"]["layers"]["kernel"]
    np.testing.assert_allclose(
        scaled["backbone"]["layers"]["kernel"], 0.25 * (matrix + weight_decay) - weight_decay, rtol=1e-5
    )
    scaled["backbone"]["layers"]["kernel"] = matrix
    jax.tree.map(np.testing.assert_array_equal, scaled, whole)


@pytest.mark.parametrize("positions", ["relative", "learned"])
def test_muon_makes_the_updates_of_matrices_orthogonal_and_leaves_all_others_to_adam(positions):
    model = dataclasses.replace(NO_DROPOUT.model, positions=positions, d_model=16, num_heads=3, d_head=8, d_ff=64)
    params = drawn(model)
    adam, muon = (flatten(updates_of(params, method=method, weight_decay=0.0)) for method in ("adamw", "muon"))
    wider = {"q": 1.5, "k": 1.5, "v": 1.5, "r": 1.5, "o": 1, "inner": 4, "outer": 1}
    for path, update in muon.items():
        folder, leaf = ["", *path.split("/")][-2:]
        if "layers" not in path or leaf in ("biases", "bias", "scale", "segment_embedding"):
            np.testing.assert_array_equal(update, adam[path], err_msg=path)
            continue
        name = folder if leaf == "kernel" else leaf
        rows = {"outer": 64, "o": 24 if leaf == "kernel" else 16}.get(name, 16)
        matrices = np.asarray(update).reshape(model.num_layers, rows, -1)
        singular = np.linalg.svd(matrices, compute_uv=False) / np.sqrt(wider[name])
        assert 0.6 < singular.min() <= singular.max() < 1.3, path
        gradients = flatten(params)[path].reshape(matrices.shape)
        expected = [-np.sqrt(wider[name]) * nearly_orthogonal(gradient) for gradient in gradients]
        np.testing.assert_allclose(matrices, expected, rtol=0, atol=1e-5, err_msg=path)


def nearly_orthogonal(matrix):
    """Jordan et al. 2024 with the first scaling of Boissin et al. 2025, section 3, in float64: three iterations."""
    x = np.float64(matrix.T if matrix.shape[0] > matrix.shape[1] else matrix)
    x /= np.sqrt(np.abs(x @ x.T).sum(1, keepdims=True))
    for _ in range(3):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def test_muons_update_does_not_depend_on_the_size_of_the_gradients():
    params = drawn(NO_DROPOUT.model)
    large, small = (
        flatten(updates_of(params, jax.tree.map(lambda p, size=size: size * p, params), method="muon", clip_norm=0.0))
        for size in (1.0, 1e-5)
    )
    for path in ("backbone/layers/attention/q", "backbone/layers/feed_forward/inner/kernel"):
        np.testing.assert_allclose(small[path], large[path], rtol=1e-3, atol=1e-6, err_msg=path)


def test_moments_in_bfloat16_follow_changes_that_its_rounding_would_lose():
    """Without gradients the second moment falls by a thousandth an update; to the nearest, 1 would stay 1."""
    exact = optax.scale_by_adam(0.9, 0.999, 1e-6)
    stored = stored_as_bfloat16(exact)
    weights = np.zeros(2_000, np.float32)
    state = stored.init(weights)
    assert state.mu.dtype == state.nu.dtype == jax.numpy.bfloat16
    state = state._replace(nu=jax.numpy.ones_like(state.nu))
    state = jax.jit(lambda s: jax.lax.fori_loop(0, 500, lambda _, s: stored.update(weights, s)[1], s))(state)
    np.testing.assert_allclose(np.asarray(state.nu, np.float32).mean(), 0.999**500, rtol=0.02)
    assert state.mu.dtype == state.nu.dtype == jax.numpy.bfloat16
