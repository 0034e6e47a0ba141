"""The attention implementation of a run: the choice, the comparison before the run, and training with either."""

import dataclasses
import io

import jax
import numpy as np
import pytest
from rich.console import Console

from tests.xlnet_jax.random_models import BERT, CAUSAL, SMALL
from tests.xlnet_jax.training.test_step import train
from tests.xlnet_jax.training.tiny import CONFIG
from xlnet_jax.errors import InputError
from xlnet_jax.kernels import plain
from xlnet_jax.kernels.fused.call import interpreted
from xlnet_jax.kernels.triton import call as triton
from xlnet_jax.models import attention as table
from xlnet_jax.training import attention, sharding
from xlnet_jax.training.attention import chosen, difference, settled
from xlnet_jax.training.run.hosts import ALONE
from xlnet_jax.training.run.process import Process


def with_attention(config, name, **model):
    return dataclasses.replace(config, model=dataclasses.replace(config.model, attention=name, **model))


def one_device(config=CONFIG):
    return sharding.make_mesh(config, jax.devices()[:1])


def process():
    return Process(ALONE, Console(file=io.StringIO(), width=200), began=0.0)


def printed(process):
    return process.console.file.getvalue()


@pytest.mark.parametrize("name", ["auto", "plain"])
def test_without_a_kernel_for_the_device_attention_is_plain(name):
    model, words = chosen(with_attention(CONFIG, name), one_device())
    assert model.attention == "plain"
    assert words == ("plain" if name == "plain" else "plain: the device is cpu, and there is no kernel for it")


on_both = pytest.mark.parametrize("interpreted_kernel", [interpreted, triton.interpreted], ids=["TPU", "GPU"])


@on_both
@pytest.mark.parametrize("name", ["auto", "fused"])
def test_where_there_is_a_kernel_attention_is_fused(interpreted_kernel, name):
    with interpreted_kernel():
        model, words = chosen(with_attention(CONFIG, name), one_device())
    assert (model.attention, words) == ("fused", "fused")


DENSE = dataclasses.replace(CONFIG.data, emit="dense")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (with_attention(CONFIG, "fused", d_head=6), "heads are 6 wide, and the kernel wants a width that divides 128"),
        (
            dataclasses.replace(CONFIG, data=DENSE),
            "the mask is dense, and the kernel computes visibility from ranks and spans",
        ),
    ],
    ids=["heads", "dense"],
)
def test_a_run_that_the_kernel_cannot_compute_is_plain_or_refused_where_the_kernel_is_asked_for(config, reason):
    with interpreted():
        assert chosen(with_attention(config, "auto"), one_device())[1] == f"plain: {reason}"
        with pytest.raises(InputError, match=f"^model.attention fused: {reason}; auto would take plain$"):
            chosen(with_attention(config, "fused"), one_device())


def test_the_kernel_is_refused_on_other_devices():
    expected = "model.attention fused: the device is cpu, and there is no kernel for it; auto would take plain"
    with pytest.raises(InputError, match=expected):
        chosen(with_attention(CONFIG, "fused"), one_device())


@on_both
@pytest.mark.parametrize(
    "model",
    [
        dataclasses.replace(model, d_head=64, num_heads=2, dropout=0.1, attention_dropout=0.1)
        for model in (SMALL, BERT, CAUSAL)
    ],
    ids=["xlnet", "bert", "causal"],
)
def test_the_first_layer_is_that_of_plain_attention(interpreted_kernel, model):
    difference.cache_clear()
    with interpreted_kernel():
        assert difference(model) < 2e-5


def test_a_kernel_that_computes_something_else_on_this_device_is_not_used(monkeypatch):
    monkeypatch.setitem(table.IMPLEMENTATIONS, "fused", lambda inputs: 1.1 * plain.attention_BNTH(inputs))
    config, alone = with_attention(CONFIG, "auto", num_heads=1), process()
    with interpreted():
        assert settled(config, "run", alone).model.attention == "plain"
    assert printed(alone).startswith("attention   plain: on this device the fused kernel differs from it by 0.")


def test_a_run_says_which_attention_it_uses(monkeypatch):
    monkeypatch.setattr(attention, "difference", lambda model: 1e-3)
    alone = process()
    assert settled(with_attention(CONFIG, "plain"), "run", alone).model.attention == "plain"
    assert printed(alone) == "attention   plain\n"
    with interpreted():
        assert settled(CONFIG, "run", alone).model.attention == "fused"
    assert printed(alone).splitlines()[1:] == ["attention   fused"]


@pytest.mark.slow
def test_twenty_steps_with_the_kernel_lose_what_they_lose_without():
    plain = train(with_attention(CONFIG, "plain"), devices=1, steps=20)[0]
    with interpreted():
        fused = train(with_attention(CONFIG, "fused"), devices=1, steps=20)[0]
    np.testing.assert_allclose(fused, plain, rtol=0, atol=1e-5)
    assert fused != plain
