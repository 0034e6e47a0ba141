"""Settings that follow from the size of the text."""

import pytest

from xlnet_jax.errors import InputError
from xlnet_jax.objectives.presets import PRESETS, preset
from xlnet_jax.objectives.records import OBJECTIVES
from xlnet_jax.objectives.registry import validate
from xlnet_jax.settings.fields import differences
from xlnet_jax.training.text_size import TextSize, describe, enough_characters, suit

THIRTY, THREE_HUNDRED = TextSize((3_365,), (), 50), TextSize((64_216,), (), 60)


def chosen(size, name="demo", **settings):
    config = preset(name, **settings)
    suited = suit(config, size)
    return {setting.name: setting.value for setting, _ in differences(suited, config)}


def test_the_smaller_the_text_the_smaller_the_run():
    few, more = chosen(THIRTY), chosen(THREE_HUNDRED)
    assert few["model.vocab-size"] == 210
    assert (few["data.seq-len"], few["data.reuse-len"], few["model.mem-len"]) == (32, 16, 16)
    assert (few["data.windows-per-block"], few["data.batch-size"], few["data.validation-fraction"]) == (2, 8, 0.2)
    assert (few["steps"], few["optimizer.warmup-steps"], few["eval.every-steps"]) == (200, 20, 50)
    assert (more["model.vocab-size"], more["data.windows-per-block"], more["steps"]) == (890, 4, 470)
    assert not {"data.seq-len", "data.batch-size"} & more.keys()


@pytest.mark.parametrize("name", PRESETS)
def test_a_large_text_changes_nothing_and_a_small_one_of_another_preset_the_vocabulary_alone(name):
    config = preset(name)
    assert suit(config, TextSize((enough_characters(config),), (), 60)) == config
    pieces = {"model.vocab-size"} if config.data.token_level == "piece" else set()
    assert name == "demo" or chosen(THREE_HUNDRED, name).keys() == pieces


@pytest.mark.parametrize(("characters", "rows"), [(800, 2), (1_500, 4), (3_000, 8), (64_000, 16)])
def test_a_batch_has_fewer_rows_than_the_text_has_blocks(characters, rows):
    assert suit(preset(), TextSize((characters,), (), 40)).data.batch_size == rows


def test_what_was_given_stays():
    given = {"steps": 3, "model": {"vocab_size": 300}, "data": {"windows_per_block": 16, "batch_size": 16}}
    assert not chosen(THREE_HUNDRED, **given)
    assert "model.vocab-size" not in chosen(THREE_HUNDRED, tokenizer="a.model")
    assert "model.vocab-size" not in chosen(THREE_HUNDRED, init="tiny")
    assert "steps" not in chosen(THIRTY, steps=1000)  # the preset's own, but given


@pytest.mark.parametrize("objective", [record.name for record in OBJECTIVES])
@pytest.mark.parametrize("size", [THIRTY, THREE_HUNDRED, TextSize((9_000, 800), (700,), 3_000)])
def test_the_chosen_settings_fit_together(objective, size):
    config = preset(objective=objective)
    validate(suit(config, size))
    assert describe(suit(config, size), config, size).startswith("chosen      --model.vocab-size ")


def test_a_vocabulary_has_room_for_every_character_of_the_text():
    assert chosen(TextSize((9_000,), (), 1_900))["model.vocab-size"] == 2_000


def test_a_text_that_is_too_small_for_any_windows_is_refused_with_a_command_that_works():
    with pytest.raises(
        InputError, match=r"630 characters, too few .* give about 800 or more; python -m xlnet_jax.train "
    ):
        chosen(TextSize((630,), (), 40))
