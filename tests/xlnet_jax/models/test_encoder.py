"""The network that the settings name, or that their positions imply."""

import dataclasses

import pytest

from xlnet_jax.errors import InputError
from xlnet_jax.models.bert import BertEncoder
from xlnet_jax.models.encoder import build_encoder
from xlnet_jax.models.xlnet import Backbone
from xlnet_jax.objectives.command_line import parse_config
from xlnet_jax.objectives.presets import PRESETS
from xlnet_jax.objectives.rules import validate

MASKED = ["--objective", "mlm", "--model.mem-len", "0", "--data.reuse-len", "0"]


def model_of(*words):
    return parse_config(list(words), "train", "").model


@pytest.mark.parametrize(
    ("words", "network", "positions"),
    [
        ([*MASKED, "--model.positions", "learned"], "bert", "learned"),
        ([*MASKED, "--model.network", "bert"], "bert", "learned"),
        ([*MASKED, "--model.network=bert", "--model.positions=learned"], "bert", "learned"),
        (["--preset", "bert-base", "--model.positions", "sinusoidal"], "xlnet", "sinusoidal"),
        (["--preset", "bert-base", "--model.network", "xlnet"], "xlnet", "relative"),
        (["--preset", "bert-base"], "bert", "learned"),
        (["--preset", "base"], "xlnet", "relative"),
    ],
)
def test_the_network_and_the_positions_imply_each_other_on_the_command_line(words, network, positions):
    model = model_of(*words)
    assert (model.network, model.positions) == (network, positions)
    assert isinstance(build_encoder(model), BertEncoder if network == "bert" else Backbone)


def test_positions_that_the_network_does_not_have_are_refused():
    bert = PRESETS["bert-base"]()
    contradictory = dataclasses.replace(bert, model=dataclasses.replace(bert.model, positions="relative"))
    with pytest.raises(InputError, match=r"model\.network bert with model\.positions relative: BERT's encoder has"):
        validate(contradictory)
    with pytest.raises(InputError, match=r"--model\.network brt: there is xlnet, bert: did you mean bert\?"):
        model_of("--model.network", "brt")
