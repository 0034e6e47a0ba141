"""Every public function ends with one clear line, whatever it is given."""

import dataclasses
import functools
import inspect
import io
import os
import pickle
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest

import xlnet_jax
from tests.xlnet_jax.random_models import random_params
from xlnet_jax import InputError
from xlnet_jax.settings.config import HeadConfig

WRONG = {
    "None": None, "a number": 3, "no number": float("nan"), "text": "text", "bytes": b"x", "an empty list": [],
    "a list of text": ["a b"], "a list of None": [None], "a list of lists": [["a"]], "a dictionary": {},
    "a path to nothing": "no/such/path", "a Path to nothing": Path("no/such"), "an object": object(),
    "an array": np.zeros(3),
}  # fmt: skip
FUNCTIONS = [name for name in xlnet_jax.PUBLIC if inspect.isfunction(getattr(xlnet_jax, name))]


@pytest.fixture(scope="module")
def tiny():
    return xlnet_jax.load("tiny")


def classifier_of(model):
    head = HeadConfig("classification", 2, labels=("bad", "good"))
    return dataclasses.replace(model, params=random_params(model.model, head), head=head)


@pytest.fixture
def right(tiny, tmp_path, monkeypatch):
    """A good value for each argument that has no default."""
    monkeypatch.chdir(tmp_path)
    return {
        "batch": {"input_ids": np.zeros((1, 4), np.int32)},
        "checkpoint": "tiny",
        "classifier": classifier_of(tiny),
        "config": xlnet_jax.preset("demo", corpus="no/such/text"),  # so that nothing is trained
        "corpus": "nothing",
        "folder": "nothing",
        "model": tiny,
        "name": "demo",
        "out": "picture.png",
        "path": "made",
        "pretrained": tiny,
        "reference": "MKTAY",
        "settings": None,
        "text": "It is a truth",
        "tokenizer": tiny.tokenizer,
        **{name: ["truth"] for name in ("hidden", "inputs", "mutants", "prompts", "sentences", "targets", "texts")},
    }


@pytest.mark.parametrize("name", [*FUNCTIONS, "Model.predict", "Model.encode"])
def test_a_wrong_argument_ends_in_one_line(right, name):
    of_model = functools.partial(getattr, right["classifier" if name == "Model.predict" else "model"])
    function = of_model(name.removeprefix("Model.")) if "." in name else getattr(xlnet_jax, name)
    parameters = inspect.signature(function).parameters.values()
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for wrong in named:
        for what, value in WRONG.items():
            given = {p.name: right[p.name] for p in named if p.default is p.empty} | {wrong.name: value}
            try:
                with redirect_stdout(io.StringIO()):
                    function(**given)
            except InputError as error:
                message = str(error)
            except Exception as error:
                pytest.fail(f"{wrong.name} is {what}: {error!r}")
            else:
                continue  # such as the text "text"
            assert message, (wrong.name, what)
            assert "\n" not in message, (wrong.name, what)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: xlnet_jax.score_texts("tiny", ["a"]), '`pretrained` must be a Pretrained, not "tiny"'),
        (lambda: xlnet_jax.embed_texts(None, ["a"]), "`pretrained` must be a Pretrained, not None"),
        (lambda: xlnet_jax.load(None), "`path` must be text or a path, not None"),
        (lambda: xlnet_jax.load("tiny", partial="yes"), '`partial` must be true or false, not "yes"'),
        (lambda: xlnet_jax.on_device(1, "half"), "`pretrained` must be a Pretrained, not 1"),
        (lambda: xlnet_jax.convert({}), "`settings` must be a ConvertSettings, not a dict"),
        (
            lambda: xlnet_jax.pretrain(xlnet_jax.preset(), callbacks=[1]),
            "`callbacks` must be a list, each a Callback, not [1]",
        ),
        (
            lambda: xlnet_jax.pretrain(xlnet_jax.preset(), optimizer="adam"),
            '`optimizer` must be a GradientTransformation or None, not "adam"',
        ),
        (lambda: xlnet_jax.on_device("x"), '`pretrained` must be a Pretrained, not "x"'),
    ],
)  # fmt: skip
def test_the_line_says_what_an_argument_must_be(call, message):
    with pytest.raises(InputError) as error:
        call()
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": None}, "`pretrained.objective` must be text, not None"),
        ({"objective": "plum"}, "`pretrained.objective` plum must be one of "),
        ({"objective": ["plm"]}, '`pretrained.objective` must be text, not ["plm"]'),
        ({"model": None}, "`pretrained.model` must be a ModelConfig, not None"),
        ({"head": "classification"}, '`pretrained.head` must be a HeadConfig or None, not "classification"'),
        ({"tokenizer": "spiece.model"}, '`pretrained.tokenizer` must be a Tokenizer or None, not "spiece.model"'),
        ({"reuse_len": "8"}, '`pretrained.reuse_len` must be a whole number or None, not "8"'),
        ({"params": None}, "`pretrained.params` must be a dict, not None"),
        ({"params": {}}, "the network is incomplete: "),
        ({"thresholds": None}, "`pretrained.thresholds` must be a Mapping, not None"),
    ],
)
def test_a_record_with_wrong_fields_is_not_saved(tiny, tmp_path, changes, message):
    with pytest.raises(InputError) as error:
        xlnet_jax.save(dataclasses.replace(tiny, **changes), tmp_path / "made")
    assert str(error.value).startswith(message)
    assert os.listdir(tmp_path) == []


def test_right_arguments_pass_in_every_form(tiny):
    for texts in ("a text", ["a text"], ("a text",), iter(["a text"]), np.array(["a text"])):
        assert xlnet_jax.embed_texts(tiny, texts).shape == (1, 128)
    assert pickle.loads(pickle.dumps(xlnet_jax.embed_texts)) is xlnet_jax.embed_texts
