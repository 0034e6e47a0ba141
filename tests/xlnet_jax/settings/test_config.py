"""Settings: the presets hold the paper's numbers, and a run is told apart by its identity settings alone."""

import dataclasses
import json

import pytest

from xlnet_jax.objectives.presets import PRESETS, demo, large
from xlnet_jax.objectives.registry import validate
from xlnet_jax.settings.config import Config
from xlnet_jax.settings.fields import (
    docstrings_of,
    flatten,
    from_dict,
    identity_difference,
    to_dict,
)
from xlnet_jax.tasks.config import FinetuneConfig


def test_large_is_the_papers_pretraining_setting():
    c = large()
    m, d, o = c.model, c.data, c.optimizer
    assert (m.num_layers, m.d_model, m.num_heads, m.d_head, m.d_ff) == (24, 1024, 16, 64, 4096)
    assert (m.vocab_size, m.mem_len, m.dropout, m.attention_dropout) == (32_000, 384, 0.1, 0.1)
    assert (d.seq_len, d.reuse_len, d.perm_size, d.num_predict) == (512, 256, 256, 85)
    assert (d.batch_size, c.steps) == (8192, 500_000)
    assert (o.learning_rate, o.warmup_steps, o.schedule, o.eps, o.weight_decay) == (4e-4, 40_000, "linear", 1e-6, 0.01)
    v1 = PRESETS["large_v1"]()
    assert (v1.data.batch_size, v1.optimizer.learning_rate, v1.optimizer.warmup_steps) == (2048, 1e-5, 20_000)
    names = {d.partition(":")[0] for d in identity_difference(v1, c)}
    assert names == {"`data.batch_size`", "`optimizer.learning_rate`", "`optimizer.warmup_steps`"}


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_obeys_the_rules(name):
    validate(PRESETS[name]())
    assert PRESETS[name]().preset == name


def test_settings_survive_json():
    data = dataclasses.replace(demo().data, weights=(0.7, 0.3), num_predict=None)
    config = dataclasses.replace(demo(), data=data)
    assert from_dict(Config, json.loads(json.dumps(to_dict(config)))) == config


def test_only_identity_settings_tell_runs_apart():
    here = demo()
    moved = dataclasses.replace(here, workdir="elsewhere", mesh=dataclasses.replace(here.mesh, fsdp=4))
    assert identity_difference(here, moved) == []
    longer = dataclasses.replace(here, seed=1, steps=9_999)
    assert identity_difference(here, longer) == ["`steps`: 9999 there, 1000 here", "`seed`: 1 there, 0 here"]
    assert identity_difference(here, longer, resumes=True) == ["`seed`: 1 there, 0 here"]


@pytest.mark.parametrize("kind", [Config, FinetuneConfig])
def test_every_setting_has_a_line_of_help(kind):
    for group in (kind(), *filter(dataclasses.is_dataclass, vars(kind()).values())):
        own = {setting.python_name for setting in flatten(group) if "." not in setting.name}
        assert own <= docstrings_of(type(group)).keys()
