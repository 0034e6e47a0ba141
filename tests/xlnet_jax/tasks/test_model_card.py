"""The model card of a converted checkpoint says what is known of its training, and nothing else."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

import xlnet_jax
from tests.xlnet_jax.random_models import BERT, HEADS, random_model
from xlnet_jax.checkpoints.native import CONFIG
from xlnet_jax.interop import hf_files
from xlnet_jax.objectives.presets import demo
from xlnet_jax.settings.fields import to_dict
from xlnet_jax.storage.reading import with_version
from xlnet_jax.tasks.defaults import DEFAULTS
from xlnet_jax.tasks.model_card import FILE, write_card

PRETRAINING = replace(
    demo(), corpus=("/home/me/news/*.txt.gz", "tfds:c4/en"), init=f"xlnet/xlnet-base-cased@{'a' * 40}", steps=300
)
FINETUNING = replace(DEFAULTS["sst-2"](), init="/home/me/runs/mine", train=("/home/me/train.tsv",), objective="plm")


def run(folder, settings, step=200):
    """Write what a card reads of a run: the settings of its checkpoint, its losses and its results."""
    checkpoint = folder / "checkpoints" / str(step)
    (checkpoint / "params").mkdir(parents=True)
    (checkpoint / CONFIG).parent.mkdir()
    (checkpoint / CONFIG).write_text(json.dumps(with_version("checkpoint", to_dict(settings))))
    losses = [{"step": at, "split": "validation", "loss": 9 - at / 100, "unigram": 6.12} for at in (100, 200, 300)]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, [with_version("metrics", {}), *losses])))
    return folder


def card_of(model, source, folder):
    folder.mkdir()
    notes = hf_files.write(model, folder)
    write_card(model, source, folder, "me/mine", [*notes, "<sep> is a piece"])
    return (folder / FILE).read_text()


def header_of(card):
    return pytest.importorskip("yaml").safe_load(card.split("---")[1])


def test_the_card_of_a_run_has_its_text_its_settings_and_the_loss_of_its_step(tmp_path):
    card = card_of(random_model(), run(tmp_path / "run", PRETRAINING), tmp_path / "hf")
    assert header_of(card) == {
        "library_name": "transformers", "pipeline_tag": "text-generation", "base_model": "xlnet/xlnet-base-cased",
        "tags": ["xlnet", "xlnet_jax"],
    }  # fmt: skip
    for row in (
        "| objective | plm: permutations (XLNet) |",
        f"| started from | xlnet/xlnet-base-cased@{'a' * 40} |",
        "| text | news, c4-en |",
        "| steps | 200 of 300 |",
        "| held-out loss | 7.000 nats at step 200; by word frequencies alone 6.120 |",
    ):
        assert row in card
    assert json.loads(card.split("```json")[1].split("```")[0]) == {"steps": 300}
    for words in ("XLNetLMHeadModel.from_pretrained", 'xlnet_jax.load("me/mine")', r"\<sep> is a piece"):
        assert words in card
    assert "/home/me" not in card


BASELINE = {"answer": 'always answers "a", the most frequent label', "metrics": {"accuracy": 0.5}}


def test_the_card_of_a_finetuned_model_has_its_task_and_its_scores(tmp_path):
    folder = run(tmp_path / "run", FINETUNING)
    results = {"checkpoint": "checkpoints/200", "metrics": {"accuracy": 0.9166}, "baseline": BASELINE}
    (folder / "results.json").write_text(json.dumps(with_version("results", results)))
    model = random_model(head=replace(HEADS["classification"], summary="last"))
    card = card_of(model, folder, tmp_path / "hf")
    assert header_of(card)["pipeline_tag"] == "text-classification"
    assert "base_model" not in header_of(card)
    rows = (
        "task | sst-2",
        "started from | mine",
        "training examples | train",
        "held-out accuracy | 0.9166 (baseline 0.5)",
    )
    for words in (*(f"| {row} |" for row in rows), "(a, b, c)"):
        assert words in card
    assert "/home/me" not in card


def test_the_card_of_weights_without_a_run_or_a_tokenizer_claims_nothing(tmp_path):
    card = card_of(random_model(BERT), tmp_path, tmp_path / "hf")
    assert header_of(card)["tags"] == ["bert", "xlnet_jax"]
    assert "How the weights were trained is not stored with them." in card
    for absent in ("| objective", "## Scoring", "AutoTokenizer"):
        assert absent not in card


def test_labels_and_names_are_shown_as_they_are_and_are_no_markdown(tmp_path):
    labels = ("[x](http://evil)", "<img src=x>", "a|b", "`c`", "__d__\n# e", "www.evil.com")
    head = replace(HEADS["classification"], num_labels=len(labels), labels=labels)
    settings = replace(FINETUNING, train=("/data/<b>_x_.tsv",), init="/runs/[y](z)")
    card = card_of(random_model(head=head), run(tmp_path / "run", settings), tmp_path / "hf")
    shown = r"\[x\](http\://evil), \<img src=x\>, a\|b, \`c\`, \_\_d\_\_ \# e, www\.evil.com"
    assert f"({shown})" in card


def test_the_code_of_the_card_scores_as_we_do_and_a_causal_harness_does_worse_than_chance(
    tmp_path, monkeypatch, capsys
):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.chdir(tmp_path)
    xlnet_jax.convert(xlnet_jax.ConvertSettings("tiny", "converted", "hf"))
    card = (tmp_path / "converted" / FILE).read_text()
    there, _, scoring = (block.split("```")[0] for block in card.split("```python\n")[1:])
    scope = {}
    exec(there, scope)
    plain = scope["model"].eval()
    exec(scoring, scope)
    forward, backward = (
        eval(found) for found in re.findall(r"tensor\((\[\[.*?\]\])", capsys.readouterr().out, re.DOTALL)
    )
    (score,) = xlnet_jax.score_texts(
        xlnet_jax.load("tiny"), ["She opened the letter and"], ["left-to-right", "right-to-left"]
    )
    np.testing.assert_allclose([*forward, *backward], score.log_probs_OP, rtol=0, atol=1e-4)  # four digits are printed
    with torch.no_grad():
        as_causal = plain(scope["ids"]).logits[0, :-1].log_softmax(-1).gather(1, scope["ids"][0, 1:, None]).mean()
    assert as_causal < -np.log(plain.config.vocab_size) < score.log_probs_OP[0].mean()
