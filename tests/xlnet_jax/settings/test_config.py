"""Settings: the presets hold the paper's numbers, and a run is told apart by its identity settings alone."""

import ast
import dataclasses
import inspect
import itertools
import json
import re

import pytest

from xlnet_jax.errors import InputError
from xlnet_jax.objectives.presets import PRESETS, demo, large
from xlnet_jax.objectives.registry import validate
from xlnet_jax.settings.config import Config
from xlnet_jax.settings.files import from_dict, identity_difference, to_dict
from xlnet_jax.tasks.config import FinetuneConfig


def test_large_is_the_papers_pretraining_setting():
    c = large()
    assert (c.model.num_layers, c.model.d_model, c.model.num_heads, c.model.d_head, c.model.d_ff) == (
        24,
        1024,
        16,
        64,
        4096,
    )
    assert (c.model.mem_len, c.model.dropout, c.model.attention_dropout) == (384, 0.1, 0.1)
    assert (c.data.seq_len, c.data.reuse_len, c.data.perm_size, c.data.num_predict) == (512, 256, 256, 85)
    assert (c.data.batch_size, c.steps, c.model.vocab_size) == (8192, 500_000, 32_000)
    o = c.optimizer
    assert (o.learning_rate, o.warmup_steps, o.schedule, o.eps, o.weight_decay) == (4e-4, 40_000, "linear", 1e-6, 0.01)


def test_large_v1_differs_from_large_in_batch_rate_and_warmup_only():
    v1 = PRESETS["large_v1"]()
    assert (v1.data.batch_size, v1.optimizer.learning_rate, v1.optimizer.warmup_steps) == (2048, 1e-5, 20_000)
    names = {d.partition(":")[0] for d in identity_difference(v1, large())}
    assert names == {"data.batch-size", "optimizer.learning-rate", "optimizer.warmup-steps"}


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_obeys_the_rules(name):
    validate(PRESETS[name]())
    assert PRESETS[name]().preset == name


def test_settings_survive_json():
    data = dataclasses.replace(demo().data, weights=(0.7, 0.3), num_predict=None)
    config = dataclasses.replace(demo(), data=data)
    assert from_dict(Config, json.loads(json.dumps(to_dict(config)))) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"n_layer": 3}}, "config.model.n_layer is no setting: did you mean model.num_layers?"),
        ({"model": 3}, "config.model is no setting"),
        ({"steps": "many"}, 'config.steps "many": give a whole number'),
        ({"steps": True}, "config.steps true: give a whole number"),
        ({"corpus": [1]}, "config.corpus [1]: give a list, each text"),
        ({"data": {"window": "triples"}}, 'config.data.window "triples": give one of pairs, sentences, text'),
    ],
)
def test_what_a_file_cannot_give_is_named(change, message):
    with pytest.raises(InputError, match=re.escape(message)):
        from_dict(Config, change)


def test_only_identity_settings_tell_runs_apart():
    here = demo()
    moved = dataclasses.replace(here, workdir="elsewhere", mesh=dataclasses.replace(here.mesh, fsdp=4))
    assert identity_difference(here, moved) == []
    other = dataclasses.replace(here, seed=1)
    assert identity_difference(here, other) == ["seed: 1 there, 0 here"]


def test_the_number_of_steps_may_change_where_the_schedule_has_its_own_length():
    longer = dataclasses.replace(demo(), steps=9_999)
    assert identity_difference(demo(), longer) == ["steps: 9999 there, 1000 here"]
    own = dataclasses.replace(demo().optimizer, decay_steps=5_000)
    here, there = (dataclasses.replace(c, optimizer=own) for c in (demo(), longer))
    assert identity_difference(here, there) == []


def kinds_in(kind):
    """Return a dataclass, the dataclasses of its fields, and its bases."""
    inner = [type(value) for value in vars(kind()).values() if dataclasses.is_dataclass(value)]
    return {base for found in (kind, *inner) for base in found.__mro__ if dataclasses.is_dataclass(base)}


@pytest.mark.parametrize("kind", sorted(kinds_in(Config) | kinds_in(FinetuneConfig), key=lambda kind: kind.__name__))
def test_every_setting_has_a_line_of_help(kind):
    body = ast.parse(inspect.getsource(kind)).body[0].body
    for line, following in itertools.pairwise([*body, None]):
        if isinstance(line, ast.AnnAssign) and not (dataclasses.is_dataclass(getattr(kind, line.target.id, None))):
            has_help = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            assert has_help, f"{kind.__name__}.{line.target.id} has no line of help below it"
