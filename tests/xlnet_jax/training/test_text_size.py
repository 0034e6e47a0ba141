"""Settings that follow from the size of the text. text_sizes.jsonl has what is chosen for texts of many sizes."""

import json
from pathlib import Path

import pytest

from xlnet_jax.errors import InputError
from xlnet_jax.objectives.presets import PRESETS, defaults_of, preset
from xlnet_jax.objectives.records import OBJECTIVES
from xlnet_jax.objectives.registry import validate
from xlnet_jax.settings.fields import differences
from xlnet_jax.settings.resolution import Resolution
from xlnet_jax.training.text_size import TextSize, choose_sizes, enough_characters

THIRTY, THREE_HUNDRED = TextSize((3_365,), (), 50), TextSize((64_216,), (), 60)


def suited(size, name="demo", **given):
    config = preset(name, **given)
    settings = Resolution.of(config, defaults_of(config))
    choose_sizes(settings, size)
    return settings


def chosen(size, name="demo", **given):
    differing = differences(suited(size, name, **given).final(), preset(name, **given))
    return {setting.name: setting.value for setting, _ in differing}


RECORDED = [json.loads(line) for line in Path(__file__).with_name("text_sizes.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("row", RECORDED, ids=lambda row: f"{row['preset']} {row['train'][0]} {row['given']}")
def test_the_sizes_for_a_text(row):
    size = TextSize(tuple(row["train"]), tuple(row["validation"]), 50)
    if isinstance(row["chosen"], str):
        with pytest.raises(InputError) as refusal:
            chosen(size, row["preset"], **row["given"])
        assert str(refusal.value) == row["chosen"]
    else:
        assert chosen(size, row["preset"], **row["given"]) == row["chosen"]


@pytest.mark.parametrize("name", PRESETS)
def test_a_large_text_changes_nothing_and_a_small_one_of_another_preset_the_vocabulary_alone(name):
    config = preset(name)
    assert not chosen(TextSize((enough_characters(config),), (), 60), name)
    pieces = {"model.vocab-size"} if config.data.token_level == "piece" else set()
    assert name == "demo" or chosen(THREE_HUNDRED, name).keys() == pieces


def test_what_was_given_stays():
    given = {"steps": 3, "model": {"vocab_size": 300}, "data": {"windows_per_block": 16, "batch_size": 16}}
    assert not chosen(THREE_HUNDRED, **given)
    assert "model.vocab-size" not in chosen(THREE_HUNDRED, tokenizer="a.model")
    assert "steps" not in chosen(THIRTY, steps=1000)  # the preset's own, but given
    assert chosen(TextSize((300,), (), 20), data={"seq_len": 64})["data.batch-size"] == 2  # less than a block


@pytest.mark.parametrize("objective", [record.name for record in OBJECTIVES])
@pytest.mark.parametrize("size", [THIRTY, THREE_HUNDRED, TextSize((9_000, 800), (700,), 3_000)])
def test_the_chosen_settings_fit_together(objective, size):
    settings = suited(size, objective=objective)
    validate(settings.final())
    (line,) = settings.log
    assert line.startswith("chosen      --model.vocab-size ")


def test_the_log_has_what_a_user_may_want_to_change():
    assert suited(THREE_HUNDRED).log == [
        "chosen      --model.vocab-size 890 (not 4000), --data.windows-per-block 4 (not 16), "
        "--data.validation-fraction 0.08 (not 0.05), --steps 470 (not 1000), as the text has 64,216 characters"
    ]


def test_a_vocabulary_has_room_for_every_character_of_the_text():
    assert chosen(TextSize((9_000,), (), 1_900))["model.vocab-size"] == 2_000
