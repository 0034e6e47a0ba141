"""Equal weights, batches and settings: finetuning beside Hugging Face's networks and PyTorch's AdamW."""

import dataclasses

import jax
import numpy as np
import pytest

import xlnet_jax
from tests.xlnet_jax.random_models import SMALL, random_model
from xlnet_jax.settings.config import HeadConfig, OptimizerConfig
from xlnet_jax.tasks.config import FinetuneConfig, TaskDataConfig
from xlnet_jax.tasks.defaults import make_task
from xlnet_jax.tasks.features import Features, TrainingBatches
from xlnet_jax.tasks.selection import Supervised
from xlnet_jax.training.optimizer import learning_rate
from xlnet_jax.training.step import Program

torch = pytest.importorskip("torch", reason="no PyTorch: pip install -e '.[bench]'")
transformers = pytest.importorskip("transformers", reason="no transformers: pip install -e '.[bench]'")

STEPS, ROWS, LENGTH = 20, 8, 12
MODEL = dataclasses.replace(SMALL, mem_len=0)
HEADS = {
    "classification": HeadConfig("classification", 3, "last", labels=("a", "b", "c")),
    "regression": HeadConfig("regression"),
}
NOT_DECAYED = ("bias", "layer_norm", "r_w_bias", "r_r_bias", "r_s_bias")


def features(task):
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, LENGTH + 1, 24)
    tokens = {
        "input_ids": [rng.integers(9, MODEL.vocab_size, n).astype(np.int32) for n in lengths],
        "segment_ids": [np.array([0] * (n - 1) + [2], np.int32) for n in lengths],
    }
    labels = rng.integers(0, 3, 24).astype(np.int32 if task == "classification" else np.float32)
    return Features(tokens, {"labels": labels}, np.arange(24))


def our_losses(task, start, batches, optimizer):
    config = FinetuneConfig(
        task=task, init="x", steps=STEPS, model=MODEL, head=HEADS[task], optimizer=optimizer,
        data=TaskDataConfig(batch_size=ROWS, seq_len=LENGTH),
    )  # fmt: skip
    program = Program.of(config, Supervised(config, make_task(config)), jax.devices()[:1])
    params = {**start.params, "backbone": {k: v for k, v in start.params["backbone"].items() if k != "mask_embedding"}}
    state, losses = program.init_state(params), []
    for batch in batches:
        state, metrics = program.train_step(state, program.put(batch))
        losses.append(float(metrics["loss"]))
    return losses


def their_losses(model, batches, optimizer):
    groups = {True: [], False: []}
    for name, parameter in model.named_parameters():
        groups[not any(word in name for word in NOT_DECAYED)].append(parameter)
    decays = [{"params": groups[True], "weight_decay": optimizer.weight_decay}, {"params": groups[False]}]
    adamw = torch.optim.AdamW(decays, lr=1.0, eps=optimizer.eps, weight_decay=0.0)
    rate, losses = learning_rate(optimizer, STEPS), []
    for step, batch in enumerate(batches):
        given = {name: torch.as_tensor(batch[name]) for name in ("input_ids", "attention_mask", "labels")}
        given = {name: a if a.is_floating_point() else a.long() for name, a in given.items()}
        loss = model(**given, token_type_ids=torch.as_tensor(batch["segment_ids"]).long()).loss
        adamw.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), optimizer.clip_norm)
        for group in adamw.param_groups:
            group["lr"] = float(rate(step))
        adamw.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("task", HEADS)
def test_losses_of_twenty_updates_are_those_of_pytorch(task, tmp_path):
    optimizer = OptimizerConfig(learning_rate=1e-2, warmup_steps=4, weight_decay=0.01, clip_norm=1.0)
    data = TaskDataConfig(batch_size=ROWS, seq_len=LENGTH, buckets=(10,))
    everything = features(task)
    batches = list(TrainingBatches(lambda _: everything, data, seed=1).iterate(0, STEPS, np.arange(ROWS)))
    assert len({batch["input_ids"].shape for batch in batches}) > 1
    start = random_model(MODEL, HEADS[task])
    xlnet_jax.save(start, tmp_path / "hf", "hf")
    model = transformers.XLNetForSequenceClassification.from_pretrained(tmp_path / "hf").train()
    ours, theirs = our_losses(task, start, batches, optimizer), their_losses(model, batches, optimizer)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    assert np.mean(ours[-5:]) < np.mean(ours[:5])
