"""The study of proteins: related ones stay together, n-grams are probabilities, and runs differ in what is compared."""

import argparse
import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks import proteins, studies
from xlnet_jax.__main__ import COMMANDS

GIVEN = argparse.Namespace(workdir=Path("PROTEINS"), proteins=Path("p.fasta"), variants=Path("variants"), seeds=2)


def test_related_proteins_are_in_one_group():
    draw = np.random.default_rng(0)
    first, second = ("".join(draw.choice(list("ACDEFGHIKLMNPQRSTVWY"), 80)) for _ in range(2))
    mutated = first[:40] + "W" + first[41:]
    group = proteins.groups_of([first, second, mutated, second[:30] + first[:30]])
    assert group[0] == group[2] == group[3] == group[1], "the last one joins both"
    group = proteins.groups_of([first, second, mutated])
    assert group[0] == group[2] != group[1]


def test_groups_are_held_out_whole_and_always_the_same():
    draw = np.random.default_rng(1)
    families = ["".join(draw.choice(list("ACDEFGHIKLMNPQRSTVWY"), 60)) for _ in range(200)]
    whole = {f"{i}-{j}": family[j:] for i, family in enumerate(families) for j in range(2)}
    train, held_out = proteins.split(whole)
    assert proteins.split(whole) == (train, held_out)
    assert train.keys() | held_out.keys() == whole.keys()
    of_train, of_held_out = ({header.partition("-")[0] for header in part} for part in (train, held_out))
    assert len(of_held_out) > 2
    assert not of_train & of_held_out


@pytest.mark.parametrize("order", [1, 2, 3])
def test_probabilities_of_the_next_residue_sum_to_one(order):
    train = ["ACCA", "CAD", "AAC"]

    def nats(text: str) -> float:
        return len(text) * proteins.ngram_loss(train, [text], order)

    for context in ("AC", "CA", "DD"):
        assert sum(math.exp(nats(context) - nats(context + letter)) for letter in "ACD") == pytest.approx(1)


def jobs_of(measured):
    for name in proteins.OBJECTIVES:
        yield from proteins.tuning(name, lambda: measured, GIVEN)
    yield from proteins.runs_of(measured, GIVEN)


def test_runs_differ_only_in_objective_rate_and_steps(tmp_path):
    kinds, every = ("tune", "full"), (proteins.OBJECTIVES, proteins.RATES)
    losses = {f"{name}-{kind}-{rate:g}": {"loss": rate} for kind in kinds for name, rate in itertools.product(*every)}
    for job in (jobs := [*jobs_of(losses)]):
        module, *words = job.command(tmp_path)
        objective, kind, number = job.name.split("-")
        config = COMMANDS["train"].parse(words)
        steps = proteins.TUNING if kind == "tune" else proteins.STEPS
        rate = min(proteins.RATES) if kind == "seed" else float(number)
        assert (module, config.steps, config.optimizer.learning_rate) == ("xlnet_jax.train", steps, rate)
        assert config.objective == objective
        assert (config.data.seq_len, config.data.batch_size) == (proteins.WINDOW, proteins.BATCH)
    assert len(jobs) == len(proteins.OBJECTIVES) * (len(proteins.RATES) + 1 + GIVEN.seeds)


def test_records_have_the_commands_of_their_runs(tmp_path):
    measured = studies.read(studies.MEASURED / proteins.NAME)
    jobs = {job.name: job for job in jobs_of(measured)}
    assert [*measured.pop("ngrams")] == ["losses", "residues"]
    for name, record in measured.items():
        assert studies.shown(jobs[name].command(tmp_path), tmp_path) == record["command"]


def test_losses_are_per_residue_and_their_differences_are_paired_by_protein():
    nats = {"plm": ([280, 590], [284, 586]), "mdlm": ([287, 590],)}
    runs = {name: [{"losses": {"likelihood": of_seed}} for of_seed in of] for name, of in nats.items()}
    ngrams = {"losses": {"unigrams": 2.95}, "residues": [100, 200]}
    _, rows = proteins.losses_table(runs, ngrams)
    assert rows[:2] == [["unigrams", "", "2.950", "", ""], ["plm", "2", "2.900", "", ""]]
    assert rows[2][:3] == ["mdlm", "1", "2.923"]
    # 5 nats more in the first protein and 2 in the second, of 150 residues on average
    assert rows[2][3] == "+0.023 (+0.013 to +0.033)"
