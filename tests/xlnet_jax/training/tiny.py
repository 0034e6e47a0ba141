"""Tiny model and batches, made of arrays: no text, no TensorFlow; and its training steps."""

import dataclasses

import jax
import numpy as np

from data_pipelines.permutation import perm_rank, permuted_places, target_slots, to_dense
from xlnet_jax.objectives.language_model import objective_of
from xlnet_jax.settings.config import Config, DataConfig, ModelConfig, OptimizerConfig
from xlnet_jax.training.step import Program

CONFIG = Config(
    steps=20,
    seed=3,
    model=ModelConfig(
        vocab_size=60,
        num_layers=2,
        d_model=16,
        num_heads=2,
        d_head=8,
        d_ff=32,
        mem_len=8,
        init_std=0.2,
        dropout=0.1,
        attention_dropout=0.1,
    ),
    data=DataConfig(batch_size=8, seq_len=16, reuse_len=8, perm_size=8, num_predict=6),
    optimizer=OptimizerConfig(learning_rate=3e-3, warmup_steps=2),
)
NO_DROPOUT = dataclasses.replace(CONFIG, model=dataclasses.replace(CONFIG.model, dropout=0.0, attention_dropout=0.0))


def batch_at(step, data=CONFIG.data):
    """Return a batch of random windows: a pure function of the step."""
    rng = np.random.default_rng(step)
    rows, length, half = data.batch_size, data.seq_len, data.reuse_len
    ids = rng.integers(9, CONFIG.model.vocab_size, (rows, length)).astype(np.int32)
    targets = rng.random((rows, length)).argsort(1) < CONFIG.data.num_predict
    targets[:, -2:] = False
    places = [permuted_places(half, data.perm_size, rng.random((rows, data.perm_size))) for _ in range(2)]
    functional = np.zeros_like(targets)
    functional[:, -2:] = True
    compact = {
        "input_ids": ids,
        "segment_ids": np.repeat([[0] * 11 + [1] * 4 + [2]], rows, axis=0).astype(np.int32),
        "perm_rank": perm_rank(targets | functional, *places, data),
        **target_slots(targets, ids, data.num_predict),
        "is_reversed": rng.random(rows) < 0.5,
        "mem_filled": np.full(rows, min(8, 8 * step), np.int32),
    }
    return to_dense(compact) if data.emit == "dense" else compact


def changed(config, model=None, data=None, optimizer=None, **others):
    """Return the settings with some of the network, of the data, of the optimizer and of the others replaced."""
    parts = {"model": model or {}, "data": data or {}, "optimizer": optimizer or {}}
    inner = {name: dataclasses.replace(getattr(config, name), **values) for name, values in parts.items()}
    return dataclasses.replace(config, **inner, **others)


def program_of(config, devices=8, objective=None, tx=None):
    """Return the program of a run on some of the devices, by this objective and optimizer (None = as configured)."""
    return Program.of(config, objective or objective_of(config), jax.devices()[:devices], tx)


def steps_of(program, batches, state=None):
    """Yield the state and the metrics after each batch; nothing goes between host and devices but as asked."""
    state = program.init_state({}) if state is None else state
    for batch in batches:
        on_mesh = program.put(batch)
        with jax.transfer_guard("disallow"):
            state, metrics = program.train_step(state, on_mesh)
        yield state, {name: float(value) for name, value in metrics.items()}
