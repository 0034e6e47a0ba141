"""The attention implementation of a run: the choice, the comparison before the run, and training with either."""

import contextlib
import dataclasses
import re

import jax
import numpy as np
import pytest

from tests.xlnet_jax.kernels.running import running_kernels
from tests.xlnet_jax.training.test_step import train as train_tiny
from tests.xlnet_jax.training.tiny import CONFIG, changed
from xlnet_jax.errors import InputError
from xlnet_jax.kernels import implementations as table
from xlnet_jax.kernels import plain
from xlnet_jax.kernels.mesh import interpret_kernels
from xlnet_jax.training import attention, sharding
from xlnet_jax.training.attention import (
    LENGTH,
    MEMORY,
    TOLERANCE,
    check_attention,
    choose_attention,
    compute_both,
    difference,
    largest_shares,
)
from xlnet_jax.training.hosts import Process

DENSE = changed(CONFIG, data={"emit": "dense"})


@pytest.mark.parametrize(
    ("config", "device", "reason"),
    [
        (CONFIG, "v5e", None),
        (CONFIG, "gpu", None),
        (CONFIG, None, "the device is cpu, and there is no kernel for it"),
        (changed(CONFIG, {"d_head": 6}), "v5e", "heads are 6 wide, and the kernel needs a width that divides 128"),
        (
            changed(CONFIG, data={"emit": "dense"}),
            "v5e",
            "the mask is dense, and the kernel computes visibility from ranks and spans",
        ),
    ],
    ids=["tpu", "gpu", "cpu", "heads", "dense"],
)
def test_attention_is_fused_where_there_is_a_kernel_and_else_plain_or_refused(config, device, reason):
    mesh = sharding.make_mesh(config, jax.devices()[:1])
    plain, auto, fused = (changed(config, {"attention": name}) for name in ("plain", "auto", "fused"))
    with interpret_kernels(device) if device else contextlib.nullcontext():
        assert choose_attention(plain, mesh) == ("plain", "plain")
        if reason is None:
            # setup.cfg allows no later jax.
            words = {"v5e": "fused", "gpu": "fused (Pallas-Triton, deprecated by jax: up to jax 0.12)"}[device]
            assert choose_attention(auto, mesh) == choose_attention(fused, mesh) == ("fused", words)
            return
        assert choose_attention(auto, mesh) == ("plain", f"plain: {reason}")
        with pytest.raises(InputError, match=f"^`model.attention` fused: {reason}; auto would take plain$"):
            choose_attention(fused, mesh)


def test_an_implementation_that_the_settings_name_is_used():
    config = changed(CONFIG, {"attention": "by_head"})
    assert choose_attention(config, sharding.make_mesh(config)) == ("by_head", "by_head")


def check(config, process=None):
    return check_attention(config, process or Process())


def test_a_kernel_that_computes_something_else_on_this_device_is_not_used(monkeypatch, capsys):
    monkeypatch.setitem(table.IMPLEMENTATIONS, "fused", lambda inputs: 1.1 * plain.attention_BNTH(inputs))
    with interpret_kernels():
        assert check(CONFIG) == "plain"
    words = "attention   plain: on this device the .* by the fused kernel is off by 10% of its size\n"
    assert re.fullmatch(words, capsys.readouterr().out)


def test_a_kernel_that_is_wrong_on_another_host_is_not_used(monkeypatch, capsys):
    monkeypatch.setattr(attention, "difference", lambda _: (1e-3, "output"))
    process = Process()
    with interpret_kernels():
        assert check(CONFIG, process) == "fused"
        process.gather = lambda _, value: [value, (0.5, "gradient of the keys"), value]
        assert check(CONFIG, process) == "plain"
    first, second = capsys.readouterr().out.splitlines()
    assert first == "attention   fused"
    assert second.endswith("the gradient of the keys by the fused kernel is off by 50% of its size")


@pytest.mark.parametrize("device", ["v5e", "gpu"])
@pytest.mark.parametrize(("dtype", "d_head"), [("float32", 64), ("bfloat16", 128)])
def test_a_right_kernel_differs_by_less_than_half_of_what_is_allowed(dtype, d_head, device):
    with running_kernels(device):
        share, _ = difference(dataclasses.replace(CONFIG.model, dtype=dtype, d_head=d_head))
    assert 0 < share < (1e-3 if dtype == "float32" else TOLERANCE[dtype] / 2)


IN_ONE_PLACE = [
    ("gradient of biases_3NH", np.s_[0]),  # r_w
    ("gradient of biases_3NH", np.s_[1]),  # r_r
    ("gradient of biases_3NH", np.s_[2]),  # r_s
    ("output", np.s_[:, :, LENGTH:]),  # of the query stream
    ("gradient of query_BNTH", np.s_[:, :, LENGTH:]),
    ("gradient of query_BNTH", np.s_[:, :, 21]),
    ("gradient of key_BNKH", np.s_[:, :, :MEMORY]),
    ("gradient of key_BNKH", np.s_[1]),  # of what reads backwards
    ("gradient of value_BNKH", np.s_[:, :, -4:]),
    ("gradient of position_key_2NRH", np.s_[0]),  # of sines
    ("gradient of position_key_2NRH", np.s_[:, :, 200:208]),
]


@pytest.fixture(scope="module")
def both():
    """Return the output and the gradients of the kernel, and those of plain attention."""
    with running_kernels("v5e"):
        return compute_both(dataclasses.replace(CONFIG.model, dtype="bfloat16"))


@pytest.mark.parametrize("factor", [0.5, 0.0, -1.0])
def test_a_fault_in_the_output_or_in_any_gradient_is_found_and_named(factor, both):
    ours, reference = both
    assert len(ours) == 7
    assert max(largest_shares(ours, reference).values()) < TOLERANCE["bfloat16"] / 2
    for name, where in [*((name, np.s_[:]) for name in ours), *IN_ONE_PLACE]:
        faulty = ours | {name: ours[name].at[where].multiply(factor)}
        shares = largest_shares(faulty, reference)
        assert max(shares, key=shares.get) == name
        assert shares[name] > TOLERANCE["bfloat16"]


def test_what_is_not_finite_is_infinitely_far(both):
    ours, reference = both
    name = "gradient of key_BNKH"
    assert largest_shares(ours | {name: ours[name].at[0, 0, 3, 3].set(np.nan)}, reference)[name] == np.inf


@pytest.mark.slow
def test_steps_with_the_kernel_lose_what_they_lose_without():
    plain = train_tiny(changed(CONFIG, {"attention": "plain"}), devices=1, steps=8)[0]
    with running_kernels():
        fused = train_tiny(changed(CONFIG, {"attention": "fused"}), devices=1, steps=8)[0]
    np.testing.assert_allclose(fused, plain, rtol=0, atol=1e-5)
