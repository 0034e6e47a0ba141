"""Training a head alone: the network stays as it is, and costs neither gradients nor optimizer state."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import xlnet_jax
from tests.xlnet_jax.random_models import random_params
from tests.xlnet_jax.tasks.conftest import BAD, GOOD, finetune, words
from tests.xlnet_jax.tasks.task_runs import json_lines, tiny
from tests.xlnet_jax.tasks.test_run import records
from xlnet_jax.errors import InputError
from xlnet_jax.interop.weights import flatten
from xlnet_jax.objectives.language_model import BatchDropout
from xlnet_jax.settings.fields import with_values
from xlnet_jax.tasks.config import TaskDataConfig
from xlnet_jax.tasks.defaults import DEFAULTS, make_task
from xlnet_jax.tasks.features import collate
from xlnet_jax.tasks.prepare import FROZEN_RATE, frozen_start, prepare
from xlnet_jax.tasks.selection import Supervised
from xlnet_jax.training.step import Program, batch_like
from xlnet_jax.training.workdir import Workdir

ROWS = [{"text": text, "label": label} for texts, label in ((GOOD, "good"), (BAD, "bad")) for text in texts]


def supervised(task, rows, tokenizer, folder, *, frozen, dropout=0.0):
    """Return the training objective of a task on a tiny network, and a batch of all its examples."""
    config = DEFAULTS[task]()
    config = replace(
        config, frozen=frozen, data=TaskDataConfig(batch_size=8, seq_len=32, buckets=(32,)),
        model=replace(tiny(tokenizer.vocab_size), num_layers=3, dropout=dropout, attention_dropout=dropout),
    )  # fmt: skip
    examples = make_task(config).read(json_lines(folder / "rows.jsonl", rows), "train")
    config = replace(config, head=make_task(config).head(examples))
    features = make_task(config).features(examples, tokenizer, config.head, training=True)
    return Supervised(config, make_task(config)), collate(features, np.arange(8) % len(features), 32, "left")


@pytest.mark.parametrize(
    "more", [[], ["--optimizer.layer-decay", "0.5", "--optimizer.accumulate", "2", "--data.batch-size", "16"]]
)
def test_only_the_head_changes_and_it_learns(pretrained, table, tmp_path, more):
    assert finetune.main(words(pretrained, table, tmp_path / "run", "--frozen", "--steps", "40", *more)) == 0
    before, after = (flatten(xlnet_jax.load(path).params) for path in (pretrained, tmp_path / "run"))
    of_network = {path for path in after if path.startswith("backbone/")}
    assert {path for path in before if path.startswith("backbone/")} - of_network == {"backbone/mask_embedding"}
    assert all(np.array_equal(before[path], after[path]) for path in of_network)
    assert xlnet_jax.load(tmp_path / "run").finetuning.frozen
    losses = [record["loss"] for record in records(tmp_path / "run", "train")]
    assert np.mean(losses[-10:]) < np.mean(losses[:10]) - 0.05


def test_the_network_has_no_optimizer_state_and_no_backward_pass(tokenizer, tmp_path):
    flops, bytes_of_state = {}, {}
    for frozen in (True, False):
        objective, batch = supervised("classification", ROWS, tokenizer, tmp_path, frozen=frozen)
        program = Program.of(objective.config, objective, jax.devices()[:1])
        like = batch_like({name: array[:1] for name, array in batch.items()}, 8, program.mesh)
        flops[frozen] = program.train_step.lower(program.plan, like).compile().cost_analysis()["flops"]
        bytes_of_state[frozen] = sum(
            leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(program.plan.opt_state)
        )
    head = random_params(objective.config.model, objective.config.head)
    own = sum(a.size for path, a in flatten(head).items() if not path.startswith("backbone/"))
    assert bytes_of_state[True] < 2 * 4 * own + 100 < bytes_of_state[False] / 10
    # A backward pass costs twice a forward pass.
    assert flops[True] < 0.45 * flops[False]


def test_the_network_has_no_dropout_and_the_head_keeps_its_own(tokenizer, tmp_path):
    tagged = [{"words": text.split(), "labels": ["O"] * len(text.split())} for text in GOOD + BAD]
    tagged[0]["labels"][0] = "B-X"
    dropout = BatchDropout(jax.random.key(1), jnp.arange(8))

    def losses(task, rows, frozen):
        objective, batch = supervised(task, rows, tokenizer, tmp_path, frozen=frozen, dropout=0.5)
        params = random_params(objective.config.model, objective.config.head)
        return [float(objective.score(params, batch, jnp.zeros(()), d).loss_sum) for d in (dropout, None)]

    with_dropout, without = losses("token_classification", tagged, True)  # whose head has none
    assert with_dropout == without
    for task, rows, frozen in (("token_classification", tagged, False), ("classification", ROWS, True)):
        with_dropout, without = losses(task, rows, frozen)
        assert abs(with_dropout - without) > 1e-3


def test_a_head_alone_starts_with_a_rate_of_its_own_and_the_mean_of_the_states(pretrained, table, tmp_path):
    config = replace(DEFAULTS["rte"](), frozen=True)
    assert frozen_start(config) == {"optimizer.learning_rate": FROZEN_RATE, "head.summary": "mean"}
    bert = with_values(config, {"model.positions": "learned"})
    assert frozen_start(bert) == {"optimizer.learning_rate": FROZEN_RATE}
    config = replace(DEFAULTS["classification"](), init=str(pretrained), train=(str(table),), frozen=True)
    config = with_values(config, {"narrow_start": False, "data.seq_len": 32})
    said = Console(record=True, width=500)
    config = prepare(config, 0, [Workdir(tmp_path / "run")], said).settings.final()
    assert (config.optimizer.learning_rate, config.head.summary) == (FROZEN_RATE, "mean")
    assert "as only the head is trained" in said.export_text()


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (["--task", "embedding"], "frozen with --task embedding: its head has no weights, so nothing would be trained"),
        (["--optimizer.method", "muon"], "optimizer.method muon with --frozen: it is for the matrices in layers"),
    ],
)
def test_what_has_nothing_to_train_is_refused(pretrained, table, tmp_path, more, line):
    with pytest.raises(InputError, match=line):
        finetune.main(words(pretrained, table, tmp_path / "run", "--frozen", *more))
