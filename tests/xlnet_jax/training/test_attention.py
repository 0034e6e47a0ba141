"""The attention implementation of a run: the choice, the comparison before the run, and training with either."""

import contextlib
import dataclasses
import re

import jax
import numpy as np
import pytest

from tests.xlnet_jax.kernels.running import running_kernels
from tests.xlnet_jax.training.test_golden import RUNS
from tests.xlnet_jax.training.test_step import train as train_tiny
from tests.xlnet_jax.training.tiny import CONFIG, changed
from tests.xlnet_jax.training.tiny_run import arguments
from xlnet_jax import train
from xlnet_jax.errors import InputError
from xlnet_jax.kernels import implementations as table
from xlnet_jax.kernels import plain
from xlnet_jax.kernels.mesh import interpret_kernels
from xlnet_jax.settings.config import MeshConfig
from xlnet_jax.training import attention, sharding
from xlnet_jax.training.attention import check_attention, choose_attention, two_texts
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
        with pytest.raises(InputError, match=f"^model.attention fused: {reason}; auto would take plain$"):
            choose_attention(fused, mesh)


def check(config, process=None):
    return check_attention(config, process or Process(), lambda: two_texts(16, 0))


def test_a_kernel_that_computes_something_else_on_this_device_is_not_used(monkeypatch, capsys):
    monkeypatch.setitem(table.IMPLEMENTATIONS, "fused", lambda inputs: 1.1 * plain.attention_BNTH(inputs))
    with interpret_kernels():
        assert check(changed(CONFIG, {"num_heads": 1})) == "plain"
    words = "attention   plain: on this device the .* by the fused kernel is off by 10% of its size\n"
    assert re.fullmatch(words, capsys.readouterr().out)


def test_a_kernel_that_is_wrong_on_another_host_is_not_used(monkeypatch, capsys):
    monkeypatch.setattr(attention, "difference", lambda *_: (1e-3, "output"))
    process = Process()
    with interpret_kernels():
        assert check(CONFIG, process) == "fused"
        process.gather = lambda _, value: [value, (0.5, "gradient of the keys"), value]
        assert check(CONFIG, process) == "plain"
    first, second = capsys.readouterr().out.splitlines()
    assert first == "attention   fused"
    assert second.endswith("the gradient of the keys by the fused kernel is off by 50% of its size")


@pytest.mark.parametrize(
    ("config", "compared"),
    [
        (CONFIG, [(2, 1)]),
        (dataclasses.replace(CONFIG, mesh=MeshConfig(tensor=2, context=2)), [(1, 2)]),
        (dataclasses.replace(RUNS["electra"], mesh=MeshConfig(tensor=2)), [(1, 1), (1, 1)]),
    ],
    ids=["alone", "divided", "two networks"],
)
def test_every_network_is_compared_with_the_heads_and_parts_of_one_device(config, compared, monkeypatch):
    asked = []
    monkeypatch.setattr(attention, "difference", lambda model, _, parts: asked.append((model, parts)) or (0.0, ""))
    with interpret_kernels():
        check(config)
    assert [(model.num_heads, parts) for model, parts in asked] == compared
    assert len({model.d_model for model, _ in asked}) == len(asked)


def test_pretraining_compares_kernels_on_its_own_windows(text, tmp_path, monkeypatch, capsys):
    samples = []
    monkeypatch.setattr(attention, "difference", lambda _, sample, __: samples.append(sample) or (1.0, "output"))
    with interpret_kernels():
        assert train.main(arguments(text, tmp_path / "run", "--steps", "1")) == 0
    assert "attention   plain: on this device the output by the fused kernel" in capsys.readouterr().out
    (windows,) = samples
    assert windows.input_ids_BL.shape == (2, 32)
    assert windows.target_positions_BP.shape == (2, 6)
    assert windows.is_reversed_B.tolist() == [False, True]
    assert windows.memory_BM.sum(1).tolist() == [16, 8]


@pytest.mark.slow
def test_twenty_steps_with_the_kernel_lose_what_they_lose_without():
    plain = train_tiny(changed(CONFIG, {"attention": "plain"}), devices=1, steps=20)[0]
    with running_kernels():
        fused = train_tiny(changed(CONFIG, {"attention": "fused"}), devices=1, steps=20)[0]
    np.testing.assert_allclose(fused, plain, rtol=0, atol=1e-5)
    assert fused != plain
