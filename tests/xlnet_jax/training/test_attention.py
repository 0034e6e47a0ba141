"""The attention implementation of a run: the choice, the comparison before the run, and training with either."""

import contextlib
import dataclasses
import io
import json
import re

import jax
import numpy as np
import pytest
from rich.console import Console

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
from xlnet_jax.training.hosts import ALONE, Hosts, Process


def with_attention(config, name, **model):
    return changed(config, {"attention": name, **model})


def process():
    return Process(ALONE, Console(file=io.StringIO(), width=200), began=0.0)


def printed(process):
    return process.console.file.getvalue()


DENSE = changed(CONFIG, data={"emit": "dense"})
NARROW = changed(CONFIG, {"d_head": 6})


@pytest.mark.parametrize(
    ("config", "device", "reason"),
    [
        (CONFIG, "v5e", None),
        (CONFIG, "gpu", None),
        (CONFIG, None, "the device is cpu, and there is no kernel for it"),
        (NARROW, "v5e", "heads are 6 wide, and the kernel wants a width that divides 128"),
        (DENSE, "v5e", "the mask is dense, and the kernel computes visibility from ranks and spans"),
    ],
    ids=["tpu", "gpu", "cpu", "heads", "dense"],
)
def test_attention_is_fused_where_there_is_a_kernel_and_else_plain_or_refused(config, device, reason):
    mesh = sharding.make_mesh(config, jax.devices()[:1])
    with interpret_kernels(device) if device else contextlib.nullcontext():
        assert choose_attention(with_attention(config, "plain"), mesh) == ("plain", "plain")
        if reason is None:
            assert choose_attention(with_attention(config, "auto"), mesh) == ("fused", "fused")
            assert choose_attention(with_attention(config, "fused"), mesh) == ("fused", "fused")
            return
        assert choose_attention(with_attention(config, "auto"), mesh) == ("plain", f"plain: {reason}")
        with pytest.raises(InputError, match=f"^model.attention fused: {reason}; auto would take plain$"):
            choose_attention(with_attention(config, "fused"), mesh)


def test_a_kernel_that_computes_something_else_on_this_device_is_not_used(monkeypatch):
    monkeypatch.setitem(table.IMPLEMENTATIONS, "fused", lambda inputs: 1.1 * plain.attention_BNTH(inputs))
    config, alone = with_attention(CONFIG, "auto", num_heads=1), process()
    with interpret_kernels():
        assert check_attention(config, alone, lambda: two_texts(16, 0)) == "plain"
    words = "attention   plain: on this device the .* by the fused kernel is off by 10% of its size\n"
    assert re.fullmatch(words, printed(alone))


def test_a_kernel_that_is_wrong_on_another_host_is_not_used(monkeypatch):
    monkeypatch.setattr(attention, "difference", lambda *_: (1e-3, "output"))
    alone = process()
    other = dataclasses.replace(alone, hosts=OneIsWrong())
    with interpret_kernels():
        assert check_attention(CONFIG, other, lambda: two_texts(16, 0)) == "plain"
    assert printed(alone).endswith("the gradient of the keys by the fused kernel is off by 50% of its size\n")


class OneIsWrong(Hosts):
    def gather(self, name, value):
        return json.loads(json.dumps([value, (0.5, "gradient of the keys"), value]))


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
    monkeypatch.setattr(
        attention, "difference", lambda model, _, parts: asked.append((model, parts)) or (0.0, "output")
    )
    with interpret_kernels():
        check_attention(config, process(), lambda: two_texts(16, 0))
    assert [(model.num_heads, parts) for model, parts in asked] == compared
    assert len({model.d_model for model, _ in asked}) == len(asked)


def test_a_run_says_which_attention_it_uses(monkeypatch):
    alone = process()
    assert check_attention(with_attention(CONFIG, "plain"), alone, None) == "plain"
    assert printed(alone) == "attention   plain\n"
    monkeypatch.setattr(attention, "difference", lambda *_: (1e-3, "output"))
    with interpret_kernels():
        assert check_attention(CONFIG, alone, lambda: two_texts(16, 0)) == "fused"
    assert printed(alone).splitlines()[1:] == ["attention   fused"]


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
    plain = train_tiny(with_attention(CONFIG, "plain"), devices=1, steps=20)[0]
    with interpret_kernels():
        fused = train_tiny(with_attention(CONFIG, "fused"), devices=1, steps=20)[0]
    np.testing.assert_allclose(fused, plain, rtol=0, atol=1e-5)
    assert fused != plain
