"""Requests for a comparison, and the one line in which a wrong request ends; steps that a budget pays for."""

import re
from pathlib import Path

import pytest

from tests.xlnet_jax.training.tiny import changed
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.errors import InputError, with_flags
from xlnet_jax.measurement.compare_settings import finetune_configs, list_differences, parse_comparison
from xlnet_jax.measurement.contenders import CONTENDERS, fit_to_budget, step_operations, step_tokens
from xlnet_jax.objectives.presets import demo
from xlnet_jax.training import machine
from xlnet_jax.training.optimizer import ITERATIONS

compare = COMMANDS["compare"]

GOOD = "--objectives plm,clm mlm --budget 1e6"


@pytest.fixture
def examples(tmp_path):
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text("sentence\tlabel\nfine\t1\n")
    (tmp_path / "empty").mkdir()
    return tmp_path


def parsed(command, **names):
    return parse_comparison([word.format(**names) for word in command.split()], "compare", "")


def test_each_task_starts_from_its_own_settings_and_takes_those_of_all_and_its_own(examples):
    command = GOOD + " --tasks sst-2={x} cola={x} --finetune steps=300 cola.steps=50 cola.data.seq-len=16"
    found = finetune_configs(parsed(command, x=examples))
    assert {task: c.steps for task, c in found.items()} == {"sst-2": 300, "cola": 50}
    assert {task: c.data.seq_len for task, c in found.items()} == {"sst-2": 128, "cola": 16}
    assert {task: c.optimizer.learning_rate for task, c in found.items()} == {"sst-2": 2e-5, "cola": 2e-5}
    assert {task: c.data.batch_size for task, c in found.items()} == {"sst-2": 128, "cola": 32}


def test_a_task_without_names_of_its_own_has_the_files_called_train_and_dev(tmp_path):
    for name in ("train.json", "dev.json", "test.json"):
        (tmp_path / name).touch()
    config = finetune_configs(parsed(GOOD + " --tasks squad={x}", x=tmp_path))["squad"]
    assert (config.train, config.eval) == ((f"{tmp_path}/train.json",), (f"{tmp_path}/dev.json",))


def test_a_task_whose_folder_moved_is_named(examples):
    ours, theirs = (parsed(GOOD + " --tasks sst-2={x}", x=folder) for folder in (examples, examples / "empty"))
    assert list_differences(ours, theirs) == [f"`tasks` sst-2: {examples}/empty there, {examples} here"]


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("--objectives plm,mlmm --budget 1", "--objectives mlmm: did you mean mlm?"),
        ("--objectives plm plm --budget 1", "--objectives plm plm: give at least one, and none twice"),
        ("--objectives plm", "--budget 0.0 must be above 0: give the cost of each contender, such as 2e6"),
        (GOOD + " --seed 3", "--seed 3: give --seeds instead"),
        (GOOD + " --objective clm", "--objective clm: compare starts from a preset of XLNet"),
        (GOOD + " --tasks sst-2", "--tasks sst-2 has no data: give the folder of its examples, as sst-2=FOLDER"),
        (GOOD + " --tasks sst2={x}", "--tasks sst2: did you mean sst-2?"),
        (GOOD + " --tasks ranking={x}", "--tasks ranking: compare cannot read documents, queries and"),
        (GOOD + " --tasks sst-2={x} --finetune stepz=3", "--finetune sst-2: unknown setting --stepz: did you mean"),
        (GOOD + " --tasks sst-2={x} --finetune init=runs/x", "--finetune sst-2: --init is set by the comparison"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_ends_in_one_line(command, line, examples):
    with pytest.raises(InputError) as mistake:
        parsed(command, x=examples)
    assert line in with_flags(str(mistake.value))


def test_several_hosts_are_refused(monkeypatch):
    monkeypatch.setattr(machine, "place_of", lambda tpu: machine.HostPlace("localhost:8476", 2, 0))
    with pytest.raises(InputError, match="compare runs on one host: give each host different --objectives"):
        compare.main(GOOD.split())


@pytest.mark.parametrize(("alpha", "beta"), [(6, 1), (9, 2)])
def test_one_token_in_seven_is_a_target_however_many_the_others_have(alpha, beta):
    common = changed(demo(), data={"mask_alpha": alpha, "mask_beta": beta, "num_predict": round(120 * beta / alpha)})
    data = CONTENDERS["plm-k7"](common).data
    assert (data.mask_alpha, data.mask_beta) == (7, 1)
    assert data.num_predict == pytest.approx(120 / 7, abs=1)


def test_groups_go_up_to_the_number_of_targets():
    for slots, groups in ((8, (1, 2, 4, 8)), (7, (1, 2, 4)), (30, (1, 2, 4, 8, 16))):
        assert CONTENDERS["plm-grouped"](changed(demo(), data={"num_predict": slots})).data.group_sizes == groups


def test_blocks_divide_both_parts_of_the_window():
    for seq_len, reuse_len, size in ((128, 64, 32), (128, 0, 32), (120, 48, 24), (60, 40, 20)):
        data = CONTENDERS["plm-blocks"](changed(demo(), data={"seq_len": seq_len, "reuse_len": reuse_len})).data
        assert (data.targets, data.num_predict, data.perm_size) == ("all", None, size)


def test_operations_count_the_products_of_muon():
    """Each iteration of Newton-Schulz multiplies X X^T, its square and the polynomial times X (Jordan et al. 2024)."""
    muon, adamw = demo(), changed(demo(), optimizer={"method": "adamw"})
    sizes = 2 * [*[(128, 128)] * 5, (128, 512), (512, 128)]  # q, k, v, r, o, and both of the feed-forward block
    expected = sum(ITERATIONS * 2 * (2 * min(n, m) ** 2 * max(n, m) + min(n, m) ** 3) for n, m in sizes)
    assert step_operations(muon) - step_operations(adamw) == expected


def test_the_page_names_every_contender():
    """The objectives, the rows of the paper's Table 6, and those named beside them."""
    page = (Path(__file__).parents[3] / "docs/objectives.md").read_text()
    rows = re.findall(r"^\| (?:\d .* \| )?`([a-z0-9-]+)`", page, re.MULTILINE)
    assert {*CONTENDERS} - {*rows} <= {"vanilla", "plm-grouped", "plm-blocks", "electra"}
    assert re.search(r"table above, `vanilla` .* and `electra`", page, re.DOTALL)


# ---- budgets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONTENDERS)
def test_equal_operations_are_as_many_updates_as_fit_and_not_one_more(name):
    common, budget = demo(), 1e12
    config = fit_to_budget(name, CONTENDERS[name](common), budget, "operations")
    assert config.steps * step_operations(config) <= budget < (config.steps + 1) * step_operations(config)


@pytest.mark.parametrize(
    ("decay_steps", "steps", "counts"),
    [(900, 300, (30, 270, 75)), (101, 50, (5, 6, 12)), (101, 1, (0, 1, 1))],  # of 1,000 steps; rounded, at least 1
)
def test_what_counts_updates_keeps_its_share(decay_steps, steps, counts):
    common = changed(demo(), optimizer={"decay_steps": decay_steps})
    config = fit_to_budget("plm", common, (steps + 0.9) * step_tokens(common), "tokens")
    optimizer = config.optimizer
    assert config.steps == steps
    assert (optimizer.warmup_steps, optimizer.decay_steps, config.eval.every_steps) == counts


def test_a_budget_below_one_update_is_refused_with_what_one_costs():
    with pytest.raises(InputError, match=r"`budget` 2047 is less than one step of plm, which costs 2,048 tokens"):
        fit_to_budget("plm", demo(), 2047, "tokens")


def test_settings_that_a_contender_cannot_have_are_refused_by_its_name():
    common = changed(demo(), data={"emit": "dense"})
    with pytest.raises(InputError, match=r"^clm: `objective` clm with `data\.emit` dense"):
        fit_to_budget("clm", CONTENDERS["clm"](common), 1e9, "tokens")
