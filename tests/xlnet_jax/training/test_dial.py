"""One dial: a time, or FLOPs, chooses network, vocabulary, batch and steps."""

import itertools
import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest

from data_pipelines import sources
from tests.xlnet_jax.training.tiny_run import assert_same, records_of, state_of
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.errors import InputError
from xlnet_jax.objectives.presets import PRESETS, demo, preset
from xlnet_jax.planning.scaling_law import recipe_of
from xlnet_jax.settings.fields import with_values
from xlnet_jax.training import dial
from xlnet_jax.training.dial import LEAST_STEPS, best_choice, changed_steps, recipe, step_cost, steps_within
from xlnet_jax.training.dial_law import ngram_loss, read_law
from xlnet_jax.training.workdir import Workdir

train = COMMANDS["train"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Return a file of 400 lines, enough for blocks of the dial's windows."""
    file = tmp_path_factory.mktemp("text") / "text.txt"
    with open(sources.embedded()[0]) as novels:
        file.write_text("".join(itertools.islice(novels, 400)))
    return file


@pytest.fixture
def small(monkeypatch):
    """Let the dial choose from networks that a test can train."""
    monkeypatch.setattr(dial, "NETWORKS", ((1, 32),))
    monkeypatch.setattr(dial, "VOCABULARIES", (300,))
    monkeypatch.setattr(dial, "LEAST_STEPS", 4)
    monkeypatch.setattr(dial, "MEASURED_SECONDS", 0.0)


# ---- the choice ------------------------------------------------------------------------------------------------------


def test_more_flops_and_more_text_never_make_the_expected_loss_higher():
    law = read_law()
    budgets = [best_choice(law, 20_000_000, flops).nats for flops in (1e12, 4e12, 2e13, 1e14, 1e15)]
    assert budgets == sorted(budgets, reverse=True)
    texts = [best_choice(law, characters, 2e13).nats for characters in (300_000, 3_000_000, 30_000_000)]
    assert texts == sorted(texts, reverse=True)


def test_more_flops_choose_a_larger_network():
    few, many = (best_choice(read_law(), 20_000_000, flops) for flops in (4e12, 1e16))
    assert few.layers * few.width**2 < many.layers * many.width**2


def test_a_choice_costs_its_budget_and_a_given_size_stays():
    choice = best_choice(read_law(), 5_000_000, 1e13, [(4, 96)], [2_000])
    assert (choice.layers, choice.width, choice.vocab_size) == (4, 96, 2_000)
    assert choice.steps * step_cost(choice.config(preset())) == pytest.approx(1e13, rel=0.01)
    assert best_choice(read_law(), 5_000_000, 1e13, [(4, 96)], [2_000], 32).batch_size == 32


def test_a_short_text_gets_no_large_network():
    short, long = (best_choice(read_law(), characters, 1e15) for characters in (300_000, 60_000_000))
    assert 13 * short.layers * short.width**2 <= dial.MOST_WEIGHTS * 300_000
    assert long.width > short.width


def test_too_few_flops_choose_nothing():
    a_step = step_cost(with_values(preset(), recipe(2, 64, 500, 16, 1)))
    assert best_choice(read_law(), 5_000_000, 0.9 * LEAST_STEPS * a_step) is None


def test_the_recipe_is_that_of_the_law_of_modern_presets():
    assert recipe_of(with_values(preset(), recipe(2, 64, 4_000, 16, 800))) == "muon"


def test_text_that_is_read_again_counts_less():
    law = read_law()
    once, again = law.gain(2, 1e5, 2_000, 4e6, 8e6), law.gain(2, 1e5, 2_000, 4e6, 1e6)
    assert law.gain(2, 1e5, 2_000, 1e6, 1e6) < again < once
    assert law.gain(2, 1e5, 2_000, 1e9, 1e6) == pytest.approx(law.gain(2, 1e5, 2_000, 1e10, 1e6))


def test_a_text_of_more_predictable_words_is_learned_further():
    law = read_law()
    like_novels, more, less = (law.gain(2, 1e5, 2_000, 4e6, 8e6, r) for r in (1.0, 1.2, 0.8))
    assert like_novels == law.gain(2, 1e5, 2_000, 4e6, 8e6)
    assert more - like_novels == pytest.approx(like_novels - less)
    assert more / like_novels == pytest.approx(1 + law.T * 0.2)
    in_novels = float(np.dot(law.trigrams, (1, np.log(100_000), np.log(4_000))))
    assert law.of_trigrams(100_000, 1.2 * in_novels, 4_000) == pytest.approx(1.2)


def test_the_law_says_where_it_does_not_hold():
    law, config = read_law(), with_values(preset(), recipe(2, 64, 4_000, 16, 800))
    assert not list(law.limits(config, 2e6, 2e6, 1.0))
    far = with_values(config, {"model.num_layers": 48, "model.d_model": 2_048, "model.d_ff": 8_192})
    (line,) = law.limits(far, 2e6, 2e6, 1.0)
    assert line.startswith("EXTRAPOLATED to ")
    assert "parameters (fitted: " in line
    line, objective = law.limits(replace(config, objective="mlm"), 2e6, 2e6, 1.3)
    missed = (
        f"the law missed {len(law.errors_of_others)} runs on other texts by {max(law.errors_of_others):.2f} at most"
    )
    assert line == f"trigrams gain 1.30 times as much as in the fitted novels; {missed}"
    assert objective == "fitted to objective plm; does not hold for mlm"


def test_the_loss_of_ngrams_is_that_of_counting():
    train_tokens, held_out = (np.array(tokens, np.uint64) for tokens in ([1, 2, 1, 2, 1, 3], [1, 2, 1, 3]))
    once = [(3 + 3 / 4) / 9, (2 + 3 / 4) / 9, (1 + 3 / 4) / 9]  # of 1, 2 and 3: 6 tokens of 3 kinds, of 4 possible
    assert ngram_loss(train_tokens, held_out, 1) == pytest.approx(-np.log([once[0], once[1], once[0], once[2]]).mean())
    # The token before the first is the last one: after 3 comes 1 once, after 1 come 2, 2 and 3, after 2 comes 1 twice.
    twice = [(1 + once[0]) / 2, (2 + 2 * once[1]) / 5, (2 + once[0]) / 3, (1 + 2 * once[2]) / 5]
    assert ngram_loss(train_tokens, held_out, 2) == pytest.approx(-np.log(twice).mean())


def test_steps_and_their_evaluations_fill_the_time():
    steps = steps_within(100.0, 0.1, 16)
    evaluations = dial.EVALUATIONS * dial.EVALUATION * (dial.EVALUATED_WINDOWS / 16) * 0.1
    assert steps * 0.1 + evaluations == pytest.approx(100, abs=0.1)


def test_a_run_changes_its_steps_only_if_it_would_miss_the_time():
    assert changed_steps(100, 1_000, 900 * 0.104, 0.1, 5.0, 10_000) is None
    assert changed_steps(100, 1_000, 450.0, 1.0, 5.0, 10_000) == 545
    assert changed_steps(100, 1_000, 1_800.0, 1.0, 10.0, 10_000) == 1_890
    assert changed_steps(100, 1_000, -50.0, 1.0, 10.0, 10_000) == 101
    assert changed_steps(100, 1_000, 1_800.0, 1.0, 10.0, 1_000) is None  # more passes would overfit


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--minutes 0", "--minutes 0.0 must be above 0"),
        ("--minutes 5 --steps 9", "--steps has no effect: --minutes 5 chooses the steps; leave it out"),
        ("--minutes 5 --flops 1e12", "--minutes 5 and --flops both say how long to train: leave one of them out"),
        ("--hours 1 --preset base", "--hours 1 with --preset base: both choose the network; leave one of them out"),
        ("--minutes 5 --init tiny", "--minutes 5 with --init: no scaling law covers such runs; give --steps instead"),
    ],
)
def test_a_dial_that_contradicts_another_setting_is_refused_in_one_line(words, line):
    with pytest.raises(InputError) as refusal:
        train.main(words.split())
    assert str(refusal.value) == line


def test_a_budget_that_is_too_small_says_the_least(text, tmp_path, monkeypatch):
    monkeypatch.setattr(dial, "measure_step", lambda config: (1.0, 1.0))
    with pytest.raises(
        InputError, match=r"--minutes 0\.5 is too short to learn anything .*: give about [\d.]+ or more$"
    ):
        train.main(["--minutes", "0.5", "--corpus", str(text), "--workdir", str(tmp_path)])
    with pytest.raises(InputError, match=r"--flops 1000 is too short .*: give about \d\.\d+e\+\d+ or more$"):
        train.main(["--flops", "1000", "--corpus", str(text), "--workdir", str(tmp_path)])


def test_a_text_of_200_characters_is_refused(tmp_path, small):
    (tmp_path / "text.txt").write_text("A few words. " * 15)
    with pytest.raises(InputError, match="the text has 194 characters, too few to train on"):
        train.main(["--flops", "1e12", "--corpus", str(tmp_path / "text.txt"), "--workdir", str(tmp_path / "run")])


# ---- runs ------------------------------------------------------------------------------------------------------------


def words_of(text, workdir):
    a_step = step_cost(with_values(preset(), recipe(1, 32, 300, 8, 1)))
    return ["--flops", str(12.5 * a_step), "--data.batch-size", "8", "--corpus", str(text), "--workdir", str(workdir)]


def test_a_run_keeps_and_prints_its_choice_and_the_same_command_goes_on_with_it(text, tmp_path, small, capsys):
    workdir, words = Workdir(tmp_path / "run"), words_of(text, tmp_path / "run")
    assert train.main(words) == 0
    printed, choice = capsys.readouterr().out, json.loads(workdir.choice.read_text())
    assert all(line in printed for line in choice["lines"])
    assert f"expected: {choice['expected_loss']:.3f}" in printed
    config = json.loads(workdir.config.read_text())
    assert (config["steps"], config["model"]["d_model"], config["data"]["batch_size"]) == (12, 32, 8)
    assert (config["minutes"], config["hours"], config["flops"]) == (None, None, None)
    assert train.main(words) == 0
    assert "continues with what was chosen when it began" in capsys.readouterr().out
    # The printed flags make the same run.
    assert train.main([*choice["flags"], "--workdir", str(tmp_path / "again")]) == 0
    assert_same(state_of(tmp_path / "run"), state_of(tmp_path / "again"))
    workdir.choice.unlink()
    with pytest.raises(InputError, match=r"--flops .*: workdir .* holds a run with other settings"):
        train.main(words)


def test_a_run_that_is_slower_than_planned_ends_earlier_and_resumes_bit_for_bit(text, tmp_path, small, monkeypatch):
    answers = iter([8])
    monkeypatch.setattr("xlnet_jax.training.pretrain.seconds_of", lambda config: 1e9)
    monkeypatch.setattr(dial, "changed_steps", lambda *facts: next(answers, None))
    monkeypatch.setattr(dial, "FEWEST_STEPS", 1)
    run, again = tmp_path / "run", tmp_path / "again"
    assert train.main(words_of(text, run)) == 0
    assert json.loads((run / "config.json").read_text())["steps"] == 8
    choice = json.loads((run / "choice.json").read_text())
    now = f"8 steps end in time; now the expected held-out loss is {choice['expected_loss']:.2f} nats per piece"
    assert choice["lines"][-1] == f"pace        {now}"
    rates = {r["step"]: r["learning_rate"] for r in records_of(run) if r["split"] == "train"}
    assert rates[8] == pytest.approx(max(rates.values()) / 8, rel=0.3)  # the decay ends at the new end
    shutil.copytree(run, again)
    shutil.rmtree(again / "checkpoints" / "8")
    assert train.main(words_of(text, again)) == 0
    assert_same(state_of(run, 8), state_of(again, 8))
    assert math.isclose(max(rates), 8)


def test_a_text_that_is_read_less_than_once_gets_a_line_with_the_dial(text, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(PRESETS, "demo", lambda: replace(demo(), steps=3))

    def stop(*run):
        raise InputError("far enough")

    monkeypatch.setattr("xlnet_jax.training.pretrain.train", stop)
    for more in ([], ["--steps", "4"]):
        with pytest.raises(InputError, match="far enough"):
            train.main(["--corpus", str(text), "--workdir", str(tmp_path), "--data.batch-size", "8", *more])
        printed = capsys.readouterr().out
        command = f"chooses sizes for a given time: python -m xlnet_jax.train --corpus {text} --minutes 30\n"
        assert (command in printed) == (not more)
