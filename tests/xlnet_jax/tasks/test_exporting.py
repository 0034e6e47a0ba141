"""An exported model runs in a process that has jax and NumPy alone, for any batch size."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest

import xlnet_jax
from tests.xlnet_jax.random_models import BERT, random_model
from tests.xlnet_jax.tasks.task_runs import tiny
from xlnet_jax import InputError
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.models.inputs import text_inputs
from xlnet_jax.settings.config import HeadConfig

LENGTH, TEXTS = 16, ["a walk", "she was", "it"]
# Nothing but jax and NumPy can be imported from here on.
ALONE = """
import json, re, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("xlnet_jax", "data_pipelines", "flax", "tensorflow", "optax"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import numpy as np
from jax import export
for folder in sys.argv[1:]:
    forward = export.deserialize(bytearray(open(f"{folder}/model.stablehlo", "rb").read()))
    assert forward.platforms == ("cpu", "cuda", "tpu"), forward.platforms
    # The relative shift of CPUs, a gather of slices [1, 1, N, K], would be slow on TPUs.
    gathers = re.findall(r"gather.*slice_sizes = array<i64: ([0-9, ]+)>", forward.mlir_module())
    assert gathers and not [sizes for sizes in gathers if sizes.count(",") == 3], gathers
    weights, texts = dict(np.load(f"{folder}/weights.npz")), np.load(f"{folder}/texts.npy")
    for rows in (len(texts[0]), 1):
        (found,) = forward.call(weights, *texts[:, :rows]).values()
        np.save(f"{folder}/of_{rows}.npy", found)
"""


def padded(model):
    """Texts as `encode` pads them, to the length of the exported rows: int32 [3, texts, LENGTH]."""
    return np.stack([np.pad(a, ((0, 0), (LENGTH - a.shape[1], 0)), constant_values=fill) for a, fill in
                     zip(model.tokenize(TEXTS), (5, 0, 0), strict=True)])  # fmt: skip


@pytest.fixture(scope="module")
def folders(tokenizer, tmp_path_factory):
    """Checkpoints of a classifier and of a tagger, and what the command exports of each."""
    root = tmp_path_factory.mktemp("exported")
    config = dataclasses.replace(BERT, vocab_size=tokenizer.vocab_size)
    head = HeadConfig("classification", 3, labels=("a", "b", "c"))
    models = {
        "texts": random_model(tiny(tokenizer.vocab_size), head, tokenizer),
        "words": random_model(config, HeadConfig("token_classification", 2), tokenizer),
    }
    convert = COMMANDS["convert"]
    for name, model in models.items():
        xlnet_jax.save(model, root / f"{name}-checkpoint")
        source, target = str(root / f"{name}-checkpoint"), str(root / name)
        assert convert.main([source, target, "--to", "stablehlo", "--seq-len", str(LENGTH)]) == 0
        np.save(root / name / "texts.npy", padded(model))
    command = [sys.executable, "-c", ALONE, *(str(root / name) for name in models)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stderr
    return root


def test_a_classifier_gives_its_probabilities_for_two_batch_sizes(folders):
    model = xlnet_jax.load(folders / "texts-checkpoint")
    expected = [list(p.probabilities.values()) for p in model.predict(TEXTS, seq_len=LENGTH)]
    np.testing.assert_allclose(np.exp(np.load(folders / "texts" / "of_3.npy")), expected, rtol=1e-4)
    np.testing.assert_allclose(np.exp(np.load(folders / "texts" / "of_1.npy")), expected[:1], rtol=1e-4)
    about = json.loads((folders / "texts" / "export.json").read_text())
    assert (about["labels"], about["inputs"]["input_ids"]) == (["a", "b", "c"], ["batch", LENGTH])
    assert about["outputs"] == {"log_probs": ["batch", "3"]}
    assert (folders / "texts" / "tokenizer" / "spiece.model").exists()


def test_a_tagger_gives_the_probabilities_of_every_token(folders):
    model = xlnet_jax.load(folders / "words-checkpoint")
    ids, mask, segments = padded(model)
    logits_BLC = model.network.apply({"params": model.params}, text_inputs(ids, mask, segments))
    shifted = np.asarray(logits_BLC) - np.logaddexp.reduce(logits_BLC, axis=-1)[..., None]
    found = np.load(folders / "words" / "of_3.npy")
    np.testing.assert_allclose(found[mask == 1], shifted[mask == 1], atol=1e-4)


def test_what_cannot_be_exported_is_refused(tokenizer, folders, tmp_path):
    asker = random_model(tiny(tokenizer.vocab_size), HeadConfig("question_answering"), tokenizer)
    xlnet_jax.save(asker, tmp_path / "asker")
    with pytest.raises(InputError, match="a head for question_answering cannot be exported: classification"):
        xlnet_jax.export(xlnet_jax.load(tmp_path / "asker"), tmp_path / "x")
    with pytest.raises(InputError, match="exists: name a folder that does not"):
        xlnet_jax.export(xlnet_jax.load(folders / "texts-checkpoint"), folders / "texts")
    assert not (tmp_path / "x").exists()
